"""What the store asks of a file system, and the errors of one that is full or closed to us."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cohyde.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT}
CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def as_user_error(error: BaseException, place: Path) -> UserError | None:
    """What a person can do about an error of the file system; None where it is something else.

    Libraries wrap a full disk in errors of their own (safetensors, torch), hence the look at the text.
    """
    number = error.errno if isinstance(error, OSError) else None
    where = getattr(error, "filename", None) or place
    if number in FULL or os.strerror(errno.ENOSPC) in str(error):
        return UserError(f"{where}: no space left on the device", "free some space, or give another --store DIR")
    if number in CLOSED:
        return UserError(f"{where}: {os.strerror(number or 0).lower()}", "give a --store DIR that can be written to")
    return None


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Any failure to write below ``place`` becomes a :class:`UserError` that names the path."""
    try:
        yield
    except OSError as error:
        known = as_user_error(error, place)
        if known is None:
            reason = (error.strerror or str(error)).lower()
            known = UserError(f"{error.filename or place}: {reason}", "give a --store DIR that can be written to")
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
