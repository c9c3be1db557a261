"""The files that an import is given: paths, or folders that hold them under their published names."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from cohyde.errors import UserError

HIDDEN = "."


@dataclass(frozen=True)
class Sources:
    """What a person named, in order; each path exists and is a file or a folder."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, given: Sequence[str | Path]) -> "Sources":
        """Check what was named.

        Raises:
            UserError: nothing is named, or a path does not exist, is a link that leads nowhere, or no file or folder.
        """
        if not given:
            raise UserError("nothing to import", "name the files, or the folder that holds them")
        return cls(tuple(_checked(Path(path).expanduser()) for path in given))

    def named(self, *patterns: str) -> list[Path]:
        """The files that match one of the patterns (``qrels/*.tsv``, ``**/G?_*.json``), each once.

        A pattern is matched below each folder; of a file that was named itself, only its last part has to match.
        The order is that of the patterns, and by path within one.
        """
        found: dict[Path, None] = {}
        for pattern in patterns:
            for path in self.paths:
                if path.is_dir():
                    matches = [file for file in sorted(path.glob(pattern)) if file.is_file()]
                else:
                    matches = [path] if fnmatch(path.name, pattern.rpartition("/")[2]) else []
                found |= dict.fromkeys(matches)
        return list(found)

    def one(self, *patterns: str) -> Path:
        """The one file that matches.

        Raises:
            UserError: none matches, or several do; names what was looked for.
        """
        found = self.some(*patterns)
        if len(found) > 1:
            examples = ", ".join(map(str, found[:3]))
            raise UserError(
                f"{self}: {len(found)} files match {' or '.join(patterns)}: {examples}", "name the one to read"
            )
        return found[0]

    def some(self, *patterns: str) -> list[Path]:
        """The files that match, at least one; as :meth:`named`.

        Raises:
            UserError: none matches; names what was looked for.
        """
        found = self.named(*patterns)
        if not found:
            raise UserError(f"{self}: no {' or '.join(patterns)} there", self._what_there_is())
        return found

    def optional(self, *patterns: str) -> Path | None:
        """The one file that matches, or None where there is none; several are an error, as for :meth:`one`."""
        return self.one(*patterns) if self.named(*patterns) else None

    def files(self, *suffixes: str) -> list[Path]:
        """Every file that was named, whatever its suffix, and those with one of the suffixes in the named folders.

        Raises:
            UserError: there is none.
        """
        found: dict[Path, None] = {}
        for path in self.paths:
            below = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            seen = [file for file in below if file == path or _is_meant(file, path, suffixes)]
            found |= dict.fromkeys(seen)
        if not found:
            raise UserError(f"{self}: no {' or '.join(f'*{suffix}' for suffix in suffixes)} there")
        return list(found)

    def _what_there_is(self) -> str:
        entries = [entry for path in self.paths if path.is_dir() for entry in path.iterdir()]
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
        return f"there is: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else ""

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))


def _is_meant(file: Path, folder: Path, suffixes: Sequence[str]) -> bool:
    parts = file.relative_to(folder).parts
    return file.suffix in suffixes and not any(part.startswith(HIDDEN) for part in parts)


def _checked(path: Path) -> Path:
    if path.is_symlink() and not path.exists():
        raise UserError(
            f"{path}: a symbolic link that leads nowhere", "its target is gone, or links go round in a circle"
        )
    if not os.path.lexists(path):
        raise UserError(f"{path} does not exist", "name a file, or the folder that holds the published files")
    if not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is neither a file nor a folder")
    return path
