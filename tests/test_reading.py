"""Public files of every kind: each record with its place, faults told, files that are wrong as a whole refused."""

import json

import pytest

from cohyde.data.reading import Reading
from cohyde.data.sources import Sources
from cohyde.data.validation import Findings
from cohyde.errors import UserError


@pytest.fixture
def reading():
    return Reading(Findings(drop_invalid=True))


@pytest.fixture
def file(tmp_path):
    """Write bytes or text to a file of this name."""

    def writer(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return writer


def places(records, path):
    return [(where.replace(str(path), "@"), value) for where, value in records]


# --------------------------------------------------------------------------------------------------- JSON arrays


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[]", []),
        (" [ ] \n", []),
        ("[1]", [1]),
        ('\ufeff[{"a": "]"}, [2],\r\n "x" ]\r\n', [{"a": "]"}, [2], "x"]),
    ],
)
def test_the_items_of_an_array_come_one_by_one_with_their_positions(reading, file, text, values):
    path = file("items.json", text)
    assert places(reading.json_items(path), path) == [(f"@#/{i}", value) for i, value in enumerate(values)]
    assert values == json.loads(text.removeprefix("\ufeff"))


def test_json_lines_are_items_too(reading, file):
    path = file("items.jsonl", '{"a": 1}\n\n{"a": 2}\n')
    assert places(reading.json_items(path), path) == [("@:1", {"a": 1}), ("@:3", {"a": 2})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "items.json:1: not JSON: expected ',' or the array's ']' at column 6"),
        ("[1,\n2,", "items.json:2: not JSON: Expecting value at column 3"),
        ("[1,\n{2}]", "items.json:2: not JSON: Expecting property name"),
        ("[1 2]", "items.json:1: not JSON: expected ',' or the array's ']' at column 4"),
        ("[1]\n[2]", "items.json:2: not JSON: more text after the array at column 1"),
        ("[1,]", "items.json:1: not JSON: Expecting value at column 4"),
        ('"x"', "expected a JSON array, found '\"x\"'"),
        (" \n", "items.json: the file is empty"),
        (b"[1,\n2, \xe9]", "items.json:2: not UTF-8 (byte 8 of the file is 0xe9)"),
        ("[" * 100_000, "not JSON that can be read"),
    ],
)
def test_an_array_that_is_wrong_is_refused_by_line_and_column(reading, file, text, message):
    with pytest.raises(UserError) as error:
        list(reading.json_items(file("items.json", text)))
    assert message in str(error.value)


def test_an_object_in_place_of_an_array_is_not_taken_for_lines(reading, file):
    path = file("a.json", json.dumps({"data": [{"a": 1}]}, indent=1))
    with pytest.raises(UserError, match=r"a\.json: expected a JSON array, or one object a line; found one object over"):
        list(reading.json_items(path))


def test_an_array_that_is_not_closed_is_called_cut_off(reading, file):
    for text in ("[1, 2", "[1, 2,", '[{"a": 1'):
        with pytest.raises(UserError, match="ends in the middle"):
            list(reading.json_items(file("items.json", text)))


def test_a_document_is_read_whole_or_refused(reading, file):
    assert reading.json(file("a.json", '\ufeff{"a": [1]}\r\n')) == {"a": [1]}
    with pytest.raises(UserError, match="more text after the document"):
        reading.json(file("b.json", "{} {}"))
    with pytest.raises(UserError, match="ends in the middle"):
        reading.json(file("c.json", '{"a": '))


# -------------------------------------------------------------------------------------------------------- tables


def test_columns_are_found_by_their_names_in_any_order(reading, file):
    path = file("t.csv", "\ufeffb, a,c\r\n1,2,3\r\n")
    assert places(reading.table(path, ["a", "b"], delimiter=","), path) == [("@:2", {"b": "1", "a": "2", "c": "3"})]


def test_a_quoted_field_may_hold_tabs_quotes_and_line_ends(reading, file):
    path = file("t.tsv", 'id\ttext\n1\t"a\tb ""c""\nd"\n2\tit is 5" wide\n')
    assert places(reading.table(path, ["id", "text"], delimiter="\t"), path) == [
        ("@:3", {"id": "1", "text": 'a\tb "c"\nd'}),
        ("@:4", {"id": "2", "text": 'it is 5" wide'}),
    ]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('2\t"never closed\n3\tx\n', "a quotation mark that is opened here is never closed"),
        ("2\ta\rb\n", "a carriage return that ends no line"),
        ('2\t"a" b\n', "'\t' expected after '\"'"),
    ],
)
def test_a_row_whose_quoting_is_broken_is_a_fault_and_swallows_no_other_unseen(reading, file, broken, message):
    path = file("t.tsv", f"id\ttext\n1\tx\n{broken}")
    assert [row["id"] for _, row in reading.table(path, ["id", "text"], delimiter="\t")] == ["1"]
    assert reading.findings.lines() == [f"{path}:3: {message} (malformed row; 1 in all)"]


def test_after_a_row_whose_quoting_is_broken_the_next_is_read(reading, file):
    path = file("t.tsv", 'id\ttext\n1\t"a" b\n2\tx\n')
    assert places(reading.table(path, ["id", "text"], delimiter="\t"), path) == [("@:3", {"id": "2", "text": "x"})]


def test_a_table_whose_lines_end_in_carriage_returns_is_refused(reading, file):
    with pytest.raises(UserError, match=r"t\.tsv:1: a carriage return that ends no line"):
        list(reading.table(file("t.tsv", "a\tb\r1\t2\r"), ["a", "b"], delimiter="\t"))


def test_a_missing_column_is_named_with_those_there_are(reading, file):
    with pytest.raises(UserError) as error:
        list(reading.table(file("t.tsv", "query-id\tscore\n1\t1\n"), ["query-id", "corpus-id"], delimiter="\t"))
    assert "t.tsv:1: no column 'corpus-id' in the header: query-id, score" in str(error.value)


def test_a_row_with_too_few_or_too_many_fields_is_a_fault(reading, file):
    path = file("t.tsv", "a\tb\n1\n1\t2\t3\n1\t2\n")
    assert len(list(reading.table(path, ["a", "b"], delimiter="\t"))) == 1
    assert reading.findings.lines() == [f"{path}:2: 1 fields where there are 2 columns: a, b (malformed row; 2 in all)"]


def test_a_line_of_a_table_that_is_no_utf8_is_a_fault(reading, file):
    path = file("t.tsv", b"a\tb\ncaf\xe9\t2\n1\t2\n")
    assert len(list(reading.table(path, ["a", "b"], delimiter="\t"))) == 1
    assert reading.findings.lines() == [f"{path}:2: not UTF-8 (byte 4 of the line is 0xe9) (not UTF-8; 1 in all)"]


@pytest.mark.parametrize("header", [True, False])
def test_an_empty_table_is_refused(reading, file, header):
    with pytest.raises(UserError, match="the file is empty"):
        list(reading.table(file("t.tsv", ""), ["a"], delimiter="\t", header=header))


# ----------------------------------------------------------------------------------------- lines, Parquet, YAML


def test_a_line_of_fifty_megabytes_is_a_fault_and_the_next_is_read(reading, file):
    path = file("big.jsonl", b'{"a": "' + b"x" * 50_000_000 + b'"}\n{"a": 1}\n')
    assert [row for _, row in reading.jsonl(path)] == [{"a": 1}]
    assert f"{path}:1: a line of 50 MB; at most 16 MB are read (line too long; 1 in all)" in reading.findings.lines()


def test_parquet_rows_come_with_their_numbers(reading, tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a", "b"], "n": [1, 2], "other": [0, 0]}), path)
    assert places(reading.parquet(path, ["id", "n"]), path) == [
        ("@:1", {"id": "a", "n": 1}),
        ("@:2", {"id": "b", "n": 2}),
    ]
    with pytest.raises(UserError, match="no column 'x' among id, n, other"):
        list(reading.parquet(path, ["x"]))


def test_what_is_no_parquet_or_no_yaml_is_named(reading, file):
    with pytest.raises(UserError, match="not a Parquet file that can be read"):
        list(reading.parquet(file("t.parquet", "x"), ["a"]))
    with pytest.raises(UserError, match="not YAML"):
        reading.yaml(file("t.yaml", "a: [1"))
    with pytest.raises(UserError, match="could not determine a constructor"):
        reading.yaml(file("u.yaml", "!!python/object/apply:os.getcwd []"))


@pytest.mark.parametrize("text", ["!!bool maybe", "!!timestamp soon", "!!int ''"])
def test_yaml_whose_text_does_not_fit_its_tag_is_refused(reading, file, text):
    with pytest.raises(UserError, match=r"t\.yaml: not YAML that can be read: a text does not fit its tag"):
        reading.yaml(file("t.yaml", f"a: {text}\n"))


def test_a_parquet_file_that_is_damaged_inside_is_named(reading, tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [f"text {number}" for number in range(2000)]}), path)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(byte ^ 0x55 for byte in content[4:200])
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"t\.parquet: not a Parquet file that can be read"):
        list(reading.parquet(path, ["a"]))


def test_parquet_texts_that_are_no_utf8_and_dates_that_are_none_are_refused(reading, tmp_path):
    import pyarrow
    import pyarrow.parquet

    ends = pyarrow.array([0, 4], pyarrow.int32()).buffers()[1]
    latin = pyarrow.StringArray.from_buffers(1, ends, pyarrow.py_buffer(b"caf\xe9"))
    path = tmp_path / "t.parquet"
    for column in (latin, pyarrow.array([1 << 62], pyarrow.timestamp("us"))):
        pyarrow.parquet.write_table(pyarrow.table({"a": column}), path)
        with pytest.raises(UserError, match=r"t\.parquet: not a Parquet file that can be read"):
            list(reading.parquet(path, ["a"]))


def test_yaml_scalars_are_those_of_version_1_2(reading, file):
    path = file(
        "t.yaml",
        "on: no\n1: 2026-01-31\na: [12:30, 010, 3.0.1, 3.1, -7, 1e3, ~, true, '1']\nb: &b {x: 1}\nc: {<<: *b}\n",
    )
    assert reading.yaml(path) == {
        "on": "no",
        1: "2026-01-31",
        "a": ["12:30", "010", "3.0.1", 3.1, -7, 1000.0, None, True, "1"],
        "b": {"x": 1},
        "c": {"x": 1},
    }


def test_yaml_that_grows_without_bounds_is_refused_or_stays_small(reading, file):
    with pytest.raises(UserError, match="not YAML that can be read"):
        reading.yaml(file("digits.yaml", "a: " + "9" * 5000))
    for deep in ("[" * 5000, "a: " + "{a: " * 5000):
        with pytest.raises(UserError, match="exceeded maximum nesting depth"):
            reading.yaml(file("deep.yaml", deep))
    laughs = "\n".join(f"l{i + 1}: &l{i + 1} {{<<: [{', '.join([f'*l{i}'] * 9)}]}}" for i in range(6))
    assert reading.yaml(file("laughs.yaml", f"l0: &l0 {{x: 1}}\n{laughs}\n"))["l6"] == {"x": 1}


def test_what_was_read_is_remembered_in_order(reading, file):
    one, two = file("1.json", "[]"), file("2.json", "{}")
    list(reading.json_items(one))
    reading.json(two)
    assert list(reading.files) == [one, two]


# ------------------------------------------------------------------------------------------------------- sources


def test_files_are_found_under_their_published_names(file, tmp_path):
    file("d/corpus.jsonl", "")
    for name in ("b.tsv", "a.tsv"):
        file(f"d/qrels/{name}", "")
    folder = Sources.of([tmp_path / "d"])
    assert folder.one("corpus.jsonl").name == "corpus.jsonl"
    assert [path.name for path in folder.named("qrels/*.tsv")] == ["a.tsv", "b.tsv"]
    assert folder.optional("queries.jsonl") is None


def test_a_file_that_is_named_itself_matches_by_its_own_name(file):
    files = Sources.of([file("x/test.tsv", ""), file("x/corpus.jsonl", "")])
    assert [path.name for path in files.named("qrels/*.tsv")] == ["test.tsv"]
    assert files.one("corpus.jsonl").name == "corpus.jsonl"


def test_what_is_missing_is_named_with_what_is_there(file, tmp_path):
    file("d/other.txt", "")
    with pytest.raises(UserError, match=r"no corpus\.jsonl there\n  there is: other\.txt"):
        Sources.of([tmp_path / "d"]).one("corpus.jsonl")
    file("d/1.json", ""), file("d/2.json", "")
    with pytest.raises(UserError, match="2 files match"):
        Sources.of([tmp_path / "d"]).one("*.json")


def test_every_named_file_is_meant_and_of_a_folder_those_with_the_suffix(file, tmp_path):
    named = file("tools.txt", "")
    file("d/b.json", ""), file("d/a.yaml", ""), file("d/c.md", ""), file("d/.work/d.json", "")
    found = Sources.of([named, tmp_path / "d"]).files(".json", ".yaml")
    assert [path.name for path in found] == ["tools.txt", "a.yaml", "b.json"]


def test_a_folder_in_place_of_a_file_shows_as_one(file, tmp_path):
    file("d/corpus.jsonl/part.jsonl", "")
    with pytest.raises(UserError, match=r"no corpus\.jsonl there\n  there is: corpus\.jsonl/$"):
        Sources.of([tmp_path / "d"]).one("corpus.jsonl")


def test_a_folder_that_links_to_itself_is_searched_once(file, tmp_path):
    named = file("d/tools.json", "")
    (tmp_path / "d" / "again").symlink_to(tmp_path / "d")
    assert Sources.of([tmp_path / "d"]).files(".json") == [named]
    assert Sources.of([tmp_path / "d"]).named("**/*.json") == [named]


def test_paths_that_lead_nowhere_are_told_apart(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path, message in ((tmp_path / "a", "leads nowhere"), (tmp_path / "none", "does not exist")):
        with pytest.raises(UserError, match=message):
            Sources.of([path])
    with pytest.raises(UserError, match="nothing to import"):
        Sources.of([])
