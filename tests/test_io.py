"""Reading and writing files: whole or absent, and every wrong line named."""

import json

import pytest

from cohyde.errors import UserError
from cohyde.io import (
    canonical_json,
    read_jsonl,
    read_rows,
    sha256_file,
    sha256_text,
    write_json,
    write_jsonl,
    write_text,
)


def lines_of(tmp_path, content: bytes):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    return path


def test_rows_come_with_their_line_numbers_and_blank_lines_are_skipped(tmp_path):
    path = lines_of(tmp_path, b'{"a": 1}\n\n   \n{"a": 2}')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (4, {"a": 2})]


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = lines_of(tmp_path, b'\xef\xbb\xbf{"a": "x"}\r\n{"a": "y"}\r\n')
    assert read_rows(path) == [{"a": "x"}, {"a": "y"}]


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path):
    text = "a\u2028b\u0085c\x0cd"
    path = lines_of(tmp_path, json.dumps({"a": text}, ensure_ascii=False).encode() + b"\n")
    assert read_rows(path) == [{"a": text}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at column 8"),
        (b"[1]", "expected a JSON object, got list"),
        (b"null", "expected a JSON object, got NoneType"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 8 of the line is 0xff)"),
        (b"[" * 200_000, "not JSON that can be read"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not JSON that can be read"),
    ],
)
def test_a_wrong_line_is_named_by_file_and_line(tmp_path, line, message):
    path = lines_of(tmp_path, b'{"fine": true}\n' + line + b"\n")
    with pytest.raises(UserError) as error:
        read_rows(path)
    assert error.value.message.startswith(f"{path}:2: ") and message in error.value.message
    assert error.value.remedy


def test_wrong_lines_are_told_and_left_out_where_somebody_listens(tmp_path):
    path = lines_of(tmp_path, b'{"a": 1}\n{\n{"a": "\xe9"}\n{"a": 2}\n')
    told = []
    rows = list(read_jsonl(path, lambda *fault: told.append(fault)))
    assert rows == [(1, {"a": 1}), (4, {"a": 2})]
    assert [(kind, where) for kind, where, _ in told] == [
        ("malformed JSON", f"{path}:2"),
        ("not UTF-8", f"{path}:3"),
    ]


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_rows(tmp_path / "nothing.jsonl")
    with pytest.raises(UserError, match="is a directory, not a file"):
        read_rows(tmp_path)


def test_a_file_that_may_not_be_read_is_told(tmp_path):
    path = tmp_path / "closed.jsonl"
    path.symlink_to("/proc/sys/vm/compact_memory")  # may be written alone, whoever one is
    if not path.exists():
        pytest.skip("there is no such file on this system")
    with pytest.raises(UserError, match=r"closed\.jsonl: permission denied\n  make the file readable"):
        read_rows(path)


def test_rows_survive_writing_and_reading(tmp_path):
    rows = [{"text": "zero\u200bwidth, שלום, 🎈, \u2028"}, {"text": "tab\tand\nline"}, {}]
    path = tmp_path / "deep" / "rows.jsonl"
    assert write_jsonl(path, iter(rows)) == 3
    assert read_rows(path) == rows
    assert path.read_bytes().count(b"\n") == 3


def test_writing_the_same_again_gives_the_same_bytes(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"b": 1, "a": "é"}])
    first = path.read_bytes()
    write_jsonl(path, read_rows(path))
    assert path.read_bytes() == first == '{"b": 1, "a": "é"}\n'.encode()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half a pair: \ud800")
    with pytest.raises(TypeError):
        write_jsonl(path, [{"a": 1}, {"a": object()}])
    assert read_rows(path) == [{"a": 1}]
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


def test_json_is_written_for_people(tmp_path):
    write_json(tmp_path / "value.json", {"b": "é", "a": [1]})
    assert (tmp_path / "value.json").read_text(encoding="utf-8") == '{\n  "b": "é",\n  "a": [\n    1\n  ]\n}\n'


def test_canonical_json_is_sorted_and_without_spaces():
    assert canonical_json({"b": [1, 2.5, None], "a": {"d": True, "c": "é"}}) == (
        '{"a":{"c":"é","d":true},"b":[1,2.5,null]}'
    )


def test_canonical_json_does_not_depend_on_the_order_of_keys():
    assert canonical_json({"x": 1, "y": 2}) == canonical_json({"y": 2, "x": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_canonical_json_refuses_what_has_no_stable_text(value):
    with pytest.raises((ValueError, TypeError)):
        canonical_json({"a": value})


def test_checksums_of_text_and_file_agree_with_the_published_ones(tmp_path):
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_text("abc") == sha256_file(tmp_path / "abc") == of_abc


def test_a_file_longer_than_one_chunk_has_the_checksum_of_its_whole(tmp_path):
    text = "x" * ((1 << 20) + 1)
    (tmp_path / "long").write_text(text, encoding="utf-8")
    assert sha256_file(tmp_path / "long") == sha256_text(text)
