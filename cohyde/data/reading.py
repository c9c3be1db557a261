"""How public files are read: JSON, JSON Lines, JSON arrays, CSV, TSV, YAML, Parquet; each record with its place.

What is wrong with one record is told to the findings, and the record is left out; a file that is wrong as a whole
(truncated, a column missing, no text at all) raises.
"""

import ast
import csv
import gc
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from cohyde.data.validation import Findings
from cohyde.errors import UserError
from cohyde.io import check_readable, read_jsonl
from cohyde.progress import Progress, Silent

MARK = "\ufeff"
WHITESPACE = " \t\r\n"
OPENING_LINE = re.compile(r"\{[ \t\r]*\n")
REPORT_EVERY = 1 << 10
PARQUET_ROWS = 1 << 12
YAML_SCALARS = {
    "null": ("null|Null|NULL|~|", ("n", "N", "~", "")),
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9]\d*)", "-+0123456789"),
    "float": (r"[-+]?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][-+]?\d+)?", "-+0123456789"),
    "merge": ("<<", "<"),
}
"""What is no text in YAML 1.2, by pattern and first characters; merge keys besides, since many documents have them."""


@dataclass(frozen=True)
class Reading:
    """A reader that counts faults and tells how far it is. ``files`` collects what was opened, for the card."""

    findings: Findings
    progress: Progress = field(default_factory=Silent)
    files: dict[Path, None] = field(default_factory=dict)

    def jsonl(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """``(path:line, object)`` of each line of a JSON Lines file."""
        self._opened(path)
        size = path.stat().st_size if path.is_file() else 0
        for count, (number, row) in enumerate(read_jsonl(path, self.findings.fault), start=1):
            if count % REPORT_EVERY == 0:
                self.progress.update(count, 0, f"lines of {path.name} ({size / 1e6:.0f} MB)")
            yield f"{path}:{number}", row

    def json(self, path: Path) -> Any:
        """A whole JSON document.

        Raises:
            UserError: it is empty, no UTF-8 or no JSON; names line and column.
        """
        text = self.text(path)
        with _growing():
            value, at = _decoded(path, text, _skip(text, 0), str(path))
        if (rest := _skip(text, at)) < len(text):
            _raise_malformed(path, json.JSONDecodeError("more text after the document", text, rest))
        return value

    def json_items(self, path: Path) -> Iterator[tuple[str, Any]]:
        """``(path#/position, value)`` of a JSON array, decoded item by item, or ``(path:line, value)`` of JSON Lines.

        Which of the two it is, the first character tells. A large array is never held as objects; its text is.

        Raises:
            UserError: as :meth:`json`; among others, the array is not closed.
        """
        text = self.text(path)
        at = _skip(text, 0)
        if text[at] == "{":
            if OPENING_LINE.match(text, at):
                found = "one object over several lines"
                raise UserError(f"{path}: expected a JSON array, or one object a line; found {found}")
            yield from self.jsonl(path)
            return
        if text[at] != "[":
            raise UserError(f"{path}: expected a JSON array, found {text[at : at + 20]!r}")
        at = _skip(text, at + 1)
        position, closed = 0, text.startswith("]", at)
        while not closed:
            where = f"{path}#/{position}"
            value, at = _decoded(path, text, at, where)
            yield where, value
            position += 1
            if position % REPORT_EVERY == 0:
                self.progress.update(at, len(text), f"characters of {path.name}")
            at = _skip(text, at)
            closed = text.startswith("]", at)
            if not closed and not text.startswith(",", at):
                _raise_malformed(path, json.JSONDecodeError("expected ',' or the array's ']'", text, at))
            at = at if closed else _skip(text, at + 1)
        if (rest := _skip(text, at + 1)) < len(text):
            _raise_malformed(path, json.JSONDecodeError("more text after the array", text, rest))

    def json_objects(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """The items of :meth:`json_items` that are objects; any other is a fault."""
        for where, item in self.json_items(path):
            if isinstance(item, dict):
                yield where, item
            else:
                self.findings.fault("malformed record", where, f"expected an object, got {type(item).__name__}")

    def yaml(self, path: Path) -> Any:
        """A YAML document, loaded safely; JSON is YAML too, but read much faster by :meth:`json`.

        Plain scalars are what YAML 1.2 takes them for: ``no``, ``12:30`` and ``2026-01-31`` are texts.

        Raises:
            UserError: it is empty, no UTF-8 or no YAML; names line and column.
        """
        import yaml

        text = self.text(path)
        self.progress.update(0, len(text), f"characters of {path.name}")
        try:
            with _growing():
                return yaml.load(text, Loader=_yaml_loader())
        except yaml.YAMLError as error:
            raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        except (AttributeError, LookupError):  # how the library says that a word is no !!bool or no !!timestamp
            raise UserError(
                f"{path}: not YAML that can be read: a text does not fit its tag", "leave out the tag"
            ) from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested as deep
            raise UserError(f"{path}: not YAML that can be read: {error}") from None

    def table(
        self, path: Path, columns: Sequence[str], *, delimiter: str, header: bool = True
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """``(path:line, {column: text})`` of a CSV or TSV file, by the last line of each row.

        A field may stand in double quotes, to hold a delimiter, a line end or doubled quotes.

        Args:
            path: the file.
            columns: what each row must have; with ``header`` they may stand in any order, among others.
            delimiter: ``","`` or a tab.
            header: whether the first line names the columns; otherwise they are ``columns``, in order.

        Raises:
            UserError: the file is empty, or a column is missing from its header.
        """
        self._opened(path)
        csv.field_size_limit(1 << 30)
        reader = csv.reader(self._lines(path), delimiter=delimiter, strict=True)
        names = _header(reader, path, columns) if header else list(columns)
        rows = 0
        for where, fields in self._records(reader, path):
            if len(fields) != len(names):
                if fields:
                    what = f"{len(fields)} fields where there are {len(names)} columns: {', '.join(names)}"
                    self.findings.fault("malformed row", where, what)
                continue
            rows += 1
            yield where, dict(zip(names, fields, strict=True))
        if not rows and not header and not self.findings.counts:
            raise UserError(f"{path}: the file is empty", f"the columns have to be: {', '.join(columns)}")

    def _records(self, reader: Any, path: Path) -> Iterator[tuple[str, list[str]]]:
        """The records that are left to read, with their places; one that breaks the rules of quoting is a fault."""
        while True:
            begin = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                self.findings.fault("malformed row", f"{path}:{begin}", _said_by(error))
                continue
            yield f"{path}:{reader.line_num}", fields

    def _lines(self, path: Path) -> Iterator[str]:
        """Decoded lines with their ends; one that is no UTF-8 is a fault, and stands as an empty line."""
        with path.open("rb") as handle:
            for number, raw in enumerate(handle, start=1):
                if number % REPORT_EVERY == 0:
                    self.progress.update(number, 0, f"lines of {path.name}")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    what = f"not UTF-8 (byte {error.start + 1} of the line is 0x{raw[error.start]:02x})"
                    self.findings.fault("not UTF-8", f"{path}:{number}", what)
                    line = "\n"
                yield line.removeprefix(MARK) if number == 1 else line

    def parquet(
        self, path: Path, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """``(path:row, {column: value})`` of a Parquet file; rows are counted from 1.

        Args:
            path: the file.
            columns: what it must have.
            optional: what is read besides where it is there; other columns are not read at all.

        Raises:
            UserError: it is no Parquet file, or a column is missing.
        """
        import pyarrow
        import pyarrow.parquet

        self._opened(path)
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                missing = [column for column in columns if column not in names]
                if missing:
                    raise UserError(
                        f"{path}: no column {missing[0]!r} among {', '.join(names)}",
                        f"the columns have to be: {', '.join(columns)}",
                    )
                number, total = 0, file.metadata.num_rows
                wanted = [*columns, *(column for column in optional if column in names)]
                for batch in file.iter_batches(PARQUET_ROWS, columns=wanted):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{path}:{number}", row
                    self.progress.update(number, total, f"rows of {path.name}")
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            raise UserError(f"{path}: not a Parquet file that can be read: {str(error).splitlines()[0]}") from None

    def text(self, path: Path) -> str:
        """The text of a file, without its byte order mark.

        Raises:
            UserError: it is empty, or no UTF-8; names the line.
        """
        self._opened(path)
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8").removeprefix(MARK)
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise UserError(
                f"{path}:{line}: not UTF-8 (byte {error.start + 1} of the file is 0x{raw[error.start]:02x})",
                "convert the file to UTF-8",
            ) from None
        if not text.strip():
            raise UserError(f"{path}: the file is empty")
        return text

    def _opened(self, path: Path) -> None:
        check_readable(path)
        self.files[path] = None


@contextmanager
def _growing() -> Iterator[None]:
    """No garbage is looked for: a document that grows has none, and looking takes two thirds of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def _yaml_loader() -> Any:
    """A safe loader, the quick one where it is there, that knows the scalars of YAML 1.2 alone."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}})
    for tag, (pattern, first) in YAML_SCALARS.items():
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first))
    return loader


def _header(reader: Any, path: Path, columns: Sequence[str]) -> list[str]:
    """The names in the first line of a table, the ``columns`` among them."""
    remedy = f"the columns have to be: {', '.join(columns)}"
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise UserError(f"{path}:1: {_said_by(error)}", remedy) from None
    missing = [column for column in columns if column not in names]
    if missing:
        found = ", ".join(names) or "the file is empty"
        raise UserError(f"{path}:1: no column {missing[0]!r} in the header: {found}", remedy)
    return names


def _said_by(error: csv.Error) -> str:
    """What is wrong with a row, in words of a file's and not of a program's."""
    known = {
        "new-line character seen in unquoted field": "a carriage return that ends no line",
        "unexpected end of data": "a quotation mark that is opened here is never closed",
    }
    said = str(error).partition(" - ")[0]
    return known.get(said, said)


def _decoded(path: Path, text: str, at: int, where: str) -> tuple[Any, int]:
    """The JSON value that begins at a position, and where it ends."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        _raise_malformed(path, error)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested as deep
        raise UserError(f"{where}: not JSON that can be read: {error}") from None


_DECODER = json.JSONDecoder()


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in WHITESPACE:
        at += 1
    return at


def _raise_malformed(path: Path, error: json.JSONDecodeError) -> NoReturn:
    truncated = error.pos >= len(error.doc.rstrip())
    remedy = "the file ends in the middle: fetch or write it again" if truncated else ""
    raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}", remedy) from None


def text_of(value: Any) -> str:
    """A text field as published: None is empty, a list is its parts joined by commas, all else is its own text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text_of, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)  # Parquet holds bytes and dates too


def json_of(text: str) -> Any:
    """The value of JSON that stands as a text inside a record.

    Raises:
        ValueError: it is no JSON; says what is wrong, and at which character.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested as deep
        raise ValueError(f"not JSON that can be read: {error}") from None


def literal_of(text: str) -> Any:
    """The value of a Python literal, as JSON has it; the text itself where it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd backslash in a text is not the reader's to mend
            return json.loads(json.dumps(ast.literal_eval(text)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def objects(values: Any, where: str, findings: Findings) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """``(where/position, object)`` of a list of objects; what is none is a fault."""
    if not isinstance(values, list):
        findings.fault("malformed record", where, f"expected a list, got {type(values).__name__}")
        return
    for position, value in enumerate(values):
        if isinstance(value, dict):
            yield f"{where}/{position}", value
        else:
            findings.fault("malformed record", f"{where}/{position}", f"expected an object, got {type(value).__name__}")
