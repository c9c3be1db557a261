"""Places: the few things that leases, attempts and records ask of where their small files lie."""

import errno
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from cohyde.filesystem import replace_text
from cohyde.io import write_text

NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}


class Place(Protocol):
    """Small text files by name, each whole or absent. Whatever cannot be done raises an :class:`OSError`."""

    def names(self) -> list[str]:
        """Of all files and folders in it; none where it does not exist."""
        ...

    def times(self, pattern: str) -> dict[str, float]:
        """When each file that matches a pattern such as ``*/run.yaml`` was last written, by name."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def age(self, name: str) -> float:
        """Seconds since it was written, as far as clocks agree."""
        ...

    def read(self, name: str) -> str:
        """Its text."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write it over an older one, to last."""
        ...

    def replace(self, name: str, text: str) -> None:
        """The same, for what is written again and again and may be lost with the machine."""
        ...

    def touch(self, name: str) -> None:
        """Make it, empty."""
        ...

    def refresh(self, name: str) -> None:
        """Have a file that is there be of now."""
        ...

    def create(self, name: str, text: str, token: str) -> bool:
        """Make it if there is none; whether it was us. Of many who do, one wins. ``token``: of this caller alone."""
        ...

    def claim(self, name: str) -> bool:
        """Make a folder if there is none; whether it was us."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def clear(self) -> None:
        """Remove all of it."""
        ...

    def below(self, name: str) -> "Place":
        """The place of a folder in it."""
        ...


class Folder:
    """A :class:`Place` on a file system, which may be a shared one: no locks, since NFS has none to be trusted."""

    def __init__(self, path: Path) -> None:
        """Nothing is created."""
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        """See :class:`Place`."""
        try:
            return os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def times(self, pattern: str) -> dict[str, float]:
        """See :class:`Place`."""
        return {path.relative_to(self.path).as_posix(): path.stat().st_mtime for path in self.path.glob(pattern)}

    def exists(self, name: str) -> bool:
        """See :class:`Place`."""
        return (self.path / name).exists()

    def age(self, name: str) -> float:
        """See :class:`Place`."""
        return time.time() - (self.path / name).stat().st_mtime

    def read(self, name: str) -> str:
        """See :class:`Place`."""
        return (self.path / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """See :class:`Place`."""
        write_text(self.path / name, text)

    def replace(self, name: str, text: str) -> None:
        """See :class:`Place`."""
        replace_text(self.path / name, text)

    def touch(self, name: str) -> None:
        """See :class:`Place`."""
        (self.path / name).touch()

    def refresh(self, name: str) -> None:
        """See :class:`Place`."""
        os.utime(self.path / name)

    def create(self, name: str, text: str, token: str) -> bool:
        """See :class:`Place`. A hard link to a finished file is made or not, also on NFS."""
        self.path.mkdir(parents=True, exist_ok=True)
        target, temporary = self.path / name, self.path / f".{name}.{token}"
        temporary.write_text(text, encoding="utf-8")
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return _create_exclusively(target, text)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def claim(self, name: str) -> bool:
        """See :class:`Place`."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            (self.path / name).mkdir()
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """See :class:`Place`."""
        (self.path / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """See :class:`Place`."""
        shutil.rmtree(self.path, ignore_errors=True)

    def below(self, name: str) -> "Folder":
        """See :class:`Place`."""
        return Folder(self.path / name)


def _create_exclusively(target: Path, text: str) -> bool:
    """For file systems without hard links: a reader may see the file before its content, and waits then."""
    try:
        with target.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        return False
    return True


def place_of(where: Path | Place) -> Place:
    """A folder as a place."""
    return Folder(where) if isinstance(where, Path) else where


def read_if_there(place: Place, name: str) -> str | None:
    """A file's text; None where it is not there, or cannot be read now."""
    with suppress(OSError):
        return place.read(name)
    return None
