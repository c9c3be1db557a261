"""Files: JSON Lines in and out, canonical JSON, checksums, writes that are whole or absent."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cohyde.errors import UserError

CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 24
"""Bytes of a line of JSON at most: no record of ours comes near it, and a file without line ends goes far beyond."""
Fault = Callable[[str, str, str], None]
"""Is told ``(kind, where, what)`` of something wrong in a file."""
HowFar = Callable[[int, int], None]
"""Is told ``(bytes read, bytes in all)`` of a file."""
TELL_EVERY = 1 << 10


def check_readable(path: Path, remedy: str = "") -> None:
    """Refuse a path under which there is no file, or none that may be read.

    Raises:
        UserError: what is there instead; with the remedy, but where permission is all that is missing.
    """
    if not path.is_file():
        raise UserError(f"{path}: {'is a directory, not a file' if path.is_dir() else 'does not exist'}", remedy)
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: permission denied", "make the file readable for whoever runs this")


def read_jsonl(
    path: Path, fault: Fault | None = None, how_far: HowFar | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, row)`` for every line of a JSON Lines file that is not blank.

    Args:
        path: the file; a byte order mark at its start is skipped.
        fault: is told of each line that is no UTF-8 or no JSON object, which is then left out; without it the first
            such line raises.
        how_far: is told every 1,024 lines how far it is.

    Raises:
        UserError: the file is missing or may not be read, or (without ``fault``) a line is wrong; names file and line.
    """
    check_readable(path, "expected a JSON Lines file, one JSON object a line")
    size, done = path.stat().st_size, 0
    with path.open("rb") as handle:
        for number, raw in enumerate(handle, start=1):
            done += len(raw)
            if how_far is not None and number % TELL_EVERY == 0:
                how_far(done, size)
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                row = _json_object(raw)
            except _BadLine as error:
                if fault is None:
                    raise UserError(f"{path}:{number}: {error}", error.remedy) from None
                fault(error.kind, f"{path}:{number}", str(error))
                continue
            yield number, row


class _BadLine(ValueError):
    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.kind, self.remedy = kind, remedy


def _json_object(raw: bytes) -> dict[str, Any]:
    remedy = "each line has to be one JSON object"
    if len(raw) > LONGEST_LINE:
        raise _BadLine("line too long", f"a line of {len(raw) / 1e6:.0f} MB; at most 16 MB are read", remedy)
    try:
        row = json.loads(raw.decode("utf-8").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        what = f"not UTF-8 (byte {error.start + 1} of the line is 0x{raw[error.start]:02x})"
        raise _BadLine("not UTF-8", what, "convert the file to UTF-8") from None
    except json.JSONDecodeError as error:
        raise _BadLine("malformed JSON", f"not JSON: {error.msg} at column {error.colno}", remedy) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested as deep
        raise _BadLine("malformed JSON", f"not JSON that can be read: {error}", remedy) from None
    if not isinstance(row, dict):
        raise _BadLine("malformed JSON", f"expected a JSON object, got {type(row).__name__}", remedy)
    return row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSON Lines file."""
    return [row for _, row in read_jsonl(path)]


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON Lines, whole or not at all; returns their number."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_text(path, "".join(line + "\n" for line in lines))
    return len(lines)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by way of a temporary neighbour and one rename, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text. NaN, infinity and objects raise."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_text(text: str) -> str:
    """Hexadecimal SHA-256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: Path, read: Callable[[int], None] = lambda count: None) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in chunks of 1 MiB; ``read`` is told the bytes of each."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK_BYTES):
            digest.update(chunk)
            read(len(chunk))
    return digest.hexdigest()
