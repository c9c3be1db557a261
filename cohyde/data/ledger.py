"""Long work that survives a kill: each finished row is on disk before the next is begun."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohyde.filesystem import writing_to
from cohyde.io import canonical_json, read_rows, sha256_text


class Ledger:
    """Finished rows of long work, one JSON line each, so that a kill costs the row in work alone.

    Work with another identity (another prompt, model or seed) has a file of its own in the same folder, so that
    nothing of it is ever taken for this one's.
    """

    rows: list[dict[str, Any]]
    """All finished rows, in order: those found on disk, then those appended since."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open the ledger of some work, and read what is done already.

        Half a line at the end, which a kill may leave, is cut off.

        Args:
            folder: where ledgers lie; made if need be.
            identity: JSON data: all that can change a row. No secrets: its hash names the file.

        Raises:
            UserError: a line that is whole is no JSON object (names file and line); the folder cannot be written to.
        """
        self.path = folder / f"{sha256_text(canonical_json(identity))[:12]}.jsonl"
        with writing_to(folder, "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            _cut_half_line(self.path)
        self.rows = read_rows(self.path) if self.path.exists() else []

    def append(self, row: dict[str, Any]) -> None:
        """Add a finished row: one write, flushed and on disk when this returns.

        Raises:
            UserError: the disk is full, or the folder cannot be written to.
        """
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with writing_to(self.path.parent, "folder"), self.path.open("ab") as handle:
            handle.write(line.encode("utf-8"))
            handle.flush()
            os.fsync(handle.fileno())
        self.rows.append(row)


def _cut_half_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as handle:
        content = handle.read()
        handle.truncate(content.rfind(b"\n") + 1)
