"""What we ask of a file system: writes that are whole or absent, and errors that say what to do about them."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cohyde.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT}
CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
STORE = "--store DIR"
REPLACEABLE = "dataset.yaml"
"""What a folder has to hold to be replaced: the card that every dataset and every export of ours has."""


def cache_root() -> Path:
    """``$COHYDE_CACHE``, else ``$XDG_CACHE_HOME/cohyde``, else ``~/.cache/cohyde``."""
    own = os.environ.get("COHYDE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "cohyde"


def as_user_error(error: BaseException, place: Path, option: str = STORE) -> UserError | None:
    """What a person can do about an error of the file system; None where it is something else.

    ``option`` is what gives another place. Libraries wrap a full disk in errors of their own (safetensors, torch),
    hence the look at the text.
    """
    number = error.errno if isinstance(error, OSError) else None
    where = getattr(error, "filename", None) or place
    if number in FULL or os.strerror(errno.ENOSPC) in str(error):
        return UserError(f"{where}: no space left on the device", f"free some space, or give another {option}")
    if number in CLOSED:
        return UserError(f"{where}: {os.strerror(number or 0).lower()}", f"give a {option} that can be written to")
    return None


@contextmanager
def writing_to(place: Path, option: str = STORE) -> Iterator[None]:
    """Any failure to write below ``place`` becomes a :class:`UserError` that names the path and the ``option``."""
    try:
        yield
    except UserError:  # an object store's, which says what to do
        raise
    except OSError as error:
        known = as_user_error(error, place, option)
        if known is None:
            reason = (error.strerror or str(error)).lower()
            known = UserError(f"{error.filename or place}: {reason}", f"give a {option} that can be written to")
        raise known from error


def try_to_write(folder: Path) -> None:
    """Make the folder and write a file there: what permission bits say is not true for root, nor on every mount."""
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-test-") as handle:
            handle.write(b"written")
            handle.flush()


def replace_text(path: Path, text: str) -> None:
    """Whole or not at all for readers, but not flushed to the disk: for small files written again and again."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@contextmanager
def whole_folder(
    target: Path, *, overwrite: bool = False, card: str = REPLACEABLE, what: str = "dataset", option: str = "--out DIR"
) -> Iterator[Path]:
    """A folder to write in that becomes ``target`` in the end, by one rename; where the body fails, nothing is left.

    Args:
        target: must not exist, or be an empty folder, unless it may be replaced.
        overwrite: replace what is there, once the new folder is complete; only one with a card is, so that a slip of
            the pen costs nobody their home folder.
        card: the file by which a folder of this kind is known.
        what: what messages call one.
        option: what gives another target.

    Raises:
        UserError: something is there already, or the place cannot be written to.
    """
    target = Path(os.path.abspath(target))
    if os.path.lexists(target) and not overwrite and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists already", f"give another {option}, or replace it with --overwrite")
    if target.is_dir() and any(target.iterdir()) and not (target / card).is_file():
        raise UserError(f"{target} is no {what}, and is not replaced", f"give another {option}")
    with writing_to(target, option):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield scratch
        with writing_to(target, option):
            scratch.chmod(0o755)
            flush_tree(scratch)
            _put_in_place(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def check_apart(source: Path, target: Path) -> None:
    """Refuse to make a folder of something that it would replace.

    Raises:
        UserError: ``source`` is ``target``, or lies below it.
    """
    if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(target)):
        raise UserError(f"{target} would replace {source}, which it is made of", "give another --out DIR")


def _put_in_place(scratch: Path, target: Path) -> None:
    if os.path.lexists(target):
        # Two renames, so that the old one is there until the new one is: a folder cannot be replaced in one.
        grave = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.")) / target.name
        os.rename(target, grave)
        os.rename(scratch, target)
        shutil.rmtree(grave.parent, ignore_errors=True)
    else:
        os.rename(scratch, target)
    flush(target.parent)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below, and ``folder`` itself, to the disk."""
    for here, _, names in os.walk(folder):
        for name in names:
            flush(Path(here, name))
        flush(Path(here))


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
