"""Recipes: what is missing is named with how to get it, counts are checked, the rest is cut and split as written."""

import hashlib
import json

import pytest
import yaml

from cohyde.data.dataset import CARD, dataset_folder, read_card, read_dataset
from cohyde.data.recipe import load_recipe, prepare, recipe_names
from cohyde.errors import UserError
from cohyde.progress import Silent

TOOLS, TRAIN = 12, 40
APIS = [
    {"category_name": "Sea", "tool_name": f"Harbour {n % 3}", "api_name": f"Call {n}", "api_description": f"Does {n}."}
    for n in range(TOOLS)
]


def record(number, text, *gold):
    pairs = [[APIS[n]["tool_name"], APIS[n]["api_name"]] for n in gold]
    return {"api_list": APIS, "query": text, "relevant APIs": pairs, "query_id": number}


@pytest.fixture
def source(tmp_path):
    """A folder of downloads: 40 training and 2 evaluation requests for 12 tools, of which evaluation needs two."""
    folder = tmp_path / "downloads"
    (folder / "data").mkdir(parents=True)
    train = [record(n, f"please do number {n}", n % TOOLS, (n + 1) % TOOLS) for n in range(TRAIN)]
    evaluation = [record(n, f"what about the letter {n}", n) for n in range(2)]
    (folder / "data/G1_query.json").write_text(json.dumps(train), encoding="utf-8")
    (folder / "data/G1_tool.json").write_text(json.dumps(evaluation), encoding="utf-8")
    return folder


RECIPE = {
    "source": "nowhere",
    "licence": "none",
    "format": "toolbench",
    "published": "the hub's dataset repository someone/something",
    "fetch": [
        "hf download someone/something --local-dir {folder}",
        "tar -xf {folder}/all.tar -C {folder}",
    ],
    "files": [
        {"name": "data/G1_query.json", "what": "training requests", "download": "all.tar"},
        {"name": "data/G1_tool.json", "what": "evaluation requests", "download": "all.tar"},
        {"name": "vague.jsonl", "what": "paraphrases", "optional": True},
    ],
    "vague": "vague.jsonl",
    "counts": {"tools": TOOLS, "train": {"G1": TRAIN}, "eval": 2},
    "split": {"dev": 0.25, "seed": 1},
}


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe, with departures, and give its path."""

    def writer(**departures):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(RECIPE | departures, sort_keys=False), encoding="utf-8")
        return str(path)

    return writer


class Listener(Silent):
    def __init__(self):
        self.warned = []

    def warn(self, message):
        self.warned.append(message)


def gold_of(dataset):
    return [tool for query in (*dataset.train, *dataset.dev) for tool in query.tools]


# ----------------------------------------------------------------------------------------------------- preparing


def test_a_recipe_imports_checks_and_splits(recipe, source, tmp_path):
    dataset, findings = prepare(recipe(), source, tmp_path / "out")
    assert (len(dataset.tools), len(dataset.train), len(dataset.dev), len(dataset.eval)) == (12, 30, 10, 2)
    assert read_dataset(tmp_path / "out")[0] == dataset
    assert not findings.counts
    card = read_card(tmp_path / "out")
    assert (card["name"], card["source"], card["licence"]) == ("mine", "nowhere", "none")
    assert card["recipe"] == {
        "name": "mine",
        "subset": {"tools": None, "seed": 42},
        "split": {"dev": 0.25, "seed": 1},
        "dropped_gold": 0,
    }
    assert [file["name"] for file in card["imported"]["files"]] == ["G1_query.json", "G1_tool.json"]


def test_a_subset_keeps_evaluation_s_gold_and_drops_what_fell_out_and_counts_are_checked_before(
    recipe, source, tmp_path
):
    dataset, _ = prepare(recipe(subset={"tools": 5, "seed": 3}), source, tmp_path / "out")
    kept = {tool.id for tool in dataset.tools}
    assert len(kept) == 5 and {tool for query in dataset.eval for tool in query.tools} <= kept
    assert set(gold_of(dataset)) <= kept
    assert read_card(tmp_path / "out")["recipe"]["dropped_gold"] == 2 * TRAIN - len(gold_of(dataset))


def test_a_recipe_gives_the_same_bytes_each_time_wherever_it_lies(recipe, source, tmp_path):
    prepare(recipe(subset={"tools": 5}), source, tmp_path / "one")
    source.rename(tmp_path / "elsewhere")
    prepare(recipe(subset={"tools": 5}), tmp_path / "elsewhere", tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["catalog.jsonl", CARD, "queries.jsonl", "vague.jsonl"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_optional_file_is_taken_along_where_it_is(recipe, source, tmp_path):
    (source / "vague.jsonl").write_text('{"id": "G1_tool/1", "text": "that thing"}\n', encoding="utf-8")
    dataset, _ = prepare(recipe(), source, tmp_path / "out")
    assert [(query.id, query.text) for query in dataset.vague] == [("G1_tool/1", "that thing")]


def test_a_catalogue_to_join_with_is_one_of_the_files(recipe, source, tmp_path):
    rows = [json.dumps({**api, "api_name": api["api_name"].upper()}).replace('"', '""') for api in APIS]
    lines = ["docid\tdocument_content", *(f'{n}\t"{row}"' for n, row in enumerate(rows))]
    (source / "all.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [*RECIPE["files"], {"name": "all.tsv", "what": "the catalogue"}]
    dataset, findings = prepare(recipe(catalog="all.tsv", files=files), source, tmp_path / "out")
    assert {tool.api_name for tool in dataset.tools} == {api["api_name"].upper() for api in APIS}
    assert findings.remarks.counts["matched by normalised name"] == TOOLS


def test_files_that_the_recipe_does_not_name_are_not_read(recipe, source, tmp_path):
    (source / "data/G2_query.json").write_text("no JSON", encoding="utf-8")
    assert len(prepare(recipe(), source, tmp_path / "out")[0].train) == 30


# --------------------------------------------------------------------------------------------------- what is wrong


def test_missing_files_are_named_with_where_they_are_and_how_to_get_them(recipe, source, tmp_path):
    (source / "data/G1_tool.json").unlink()
    with pytest.raises(UserError) as error:
        prepare(recipe(), source, tmp_path / "out")
    assert str(error.value).splitlines() == [
        f"mine: 1 of 3 files are not in {source}",
        f"  {source}/data/G1_tool.json: evaluation requests (packed in all.tar)",
        "  they are published in the hub's dataset repository someone/something; get them and put them there with:",
        f"    hf download someone/something --local-dir {source}",
        f"    tar -xf {source}/all.tar -C {source}",
    ]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_has_no_file_and_its_name_is_quoted(recipe, tmp_path):
    with pytest.raises(UserError) as error:
        prepare(recipe(), tmp_path / "my downloads", tmp_path / "out")
    assert "mine: 2 of 3 files are not in" in str(error.value)
    assert f"--local-dir '{tmp_path}/my downloads'" in str(error.value)


def test_counts_that_differ_are_named_with_what_was_expected_and_found(recipe, source, tmp_path):
    counts = {"tools": 13, "train": {"G1": 40, "G2": 1}, "eval": 3}
    with pytest.raises(UserError) as error:
        prepare(recipe(counts=counts), source, tmp_path / "out")
    assert str(error.value).splitlines()[:4] == [
        "mine: counts differ from what the recipe has to find",
        "tools: 13 expected, 12 found",
        "train G2: 1 expected, 0 found",
        "eval: 3 expected, 2 found",
    ]
    assert not (tmp_path / "out").exists()


def test_other_counts_than_a_paper_states_are_told_and_stand_in_the_card(recipe, source, tmp_path):
    listener = Listener()
    stated = {"stated": {"tools": 46980, "eval": 2}, "stated_of_subset": {"tools": 5, "train": 1000}}
    path = recipe(subset={"tools": 5}, **stated)
    dataset, _ = prepare(path, source, tmp_path / "out", progress=listener)
    left = len(dataset.train) + len(dataset.dev)
    lines = ["tools: 46,980 expected, 12 found", f"train: 1,000 expected, {left} found (after the subset)"]
    assert listener.warned == [f"mine: other than stated: {line}" for line in lines]
    assert read_card(tmp_path / "out")["recipe"]["other_than_stated"] == lines


def test_a_file_that_is_not_the_published_one_is_named(recipe, source, tmp_path):
    files = [RECIPE["files"][0] | {"sha256": "0" * 64}, *RECIPE["files"][1:]]
    found = hashlib.sha256((source / "data/G1_query.json").read_bytes()).hexdigest()
    with pytest.raises(UserError, match=rf"G1_query\.json is not the published file: its SHA-256 is {found}, not 0000"):
        prepare(recipe(files=files), source, tmp_path / "out")
    files[0]["sha256"] = found
    assert prepare(recipe(files=files), source, tmp_path / "out")


def test_rows_at_fault_stop_it_unless_they_may_be_dropped(recipe, source, tmp_path):
    path = source / "data/G1_query.json"
    records = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([record(99, "What about the letter 1?", 3), *records]), encoding="utf-8")
    with pytest.raises(UserError, match="leakage between splits"):
        prepare(recipe(), source, tmp_path / "out")
    _, findings = prepare(recipe(), source, tmp_path / "out", drop_invalid=True)
    assert findings.counts == {"leakage between splits": 1}


def test_nothing_is_replaced_unasked(recipe, source, tmp_path):
    prepare(recipe(), source, tmp_path / "out")
    with pytest.raises(UserError, match="exists already"):
        prepare(recipe(), source, tmp_path / "out")
    assert prepare(recipe(), source, tmp_path / "out", overwrite=True)


@pytest.mark.parametrize(
    ("departure", "message"),
    [
        ({"sorce": "x"}, "unknown key sorce; did you mean source?"),
        ({"subset": {"tools": 0}}, "subset.tools has to be at least 1, got 0"),
        ({"split": {"dev": 1.0}}, "split.dev has to be less than 1"),
        ({"format": "toolbank"}, "there is no format 'toolbank'"),
        ({"files": []}, "files has to be a list of one or more files"),
        ({"files": [{"nam": "x"}]}, "files/0: unknown key nam; did you mean name?"),
        ({"files": [{"name": "../x"}]}, "files/0: name has to be a path below the folder, got '../x'"),
        ({"catalog": "other.tsv"}, "catalog 'other.tsv' is none of the files"),
        ({"counts": {"tool": 3}}, "counts: unknown key tool"),
        ({"counts": {"eval": {"G1": "3"}}}, "counts: eval G1 has to be a whole number of at least 0, got '3'"),
        ({"stated": 3}, "stated has to be a section with keys, got 3"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_named_by_key_and_file(recipe, tmp_path, departure, message):
    with pytest.raises(UserError) as error:
        load_recipe(recipe(**departure))
    assert message in str(error.value) and "mine.yaml" in str(error.value)


def test_an_unknown_recipe_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match=r"no recipe 'toolbank'\n  recipes are: toolbench, toollens"):
        load_recipe("toolbank")
    (tmp_path / "list.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"list\.yaml: expected keys and values, got list"):
        load_recipe(str(tmp_path / "list.yaml"))


# --------------------------------------------------------------------------------------------- the published ones


def test_recipes_are_found_by_their_names():
    assert {"toolbench", "toollens"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_what_a_person_needs(name):
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.source and recipe.licence and recipe.published
    assert recipe.fetch and all("{folder}" in command for command in recipe.fetch)
    assert all(file.what for file in recipe.files) and recipe.counts


def test_the_paper_s_protocol_has_the_paper_s_figures():
    recipe = load_recipe("toolbench")
    evaluation, train = (
        {name: count for name, count in counts.items() if name.startswith(split)}
        for counts, split in ((recipe.stated, "eval"), (recipe.stated_of_subset, "train"))
    )
    assert recipe.stated["tools"] == 46_980
    assert evaluation == {"eval G1": 593, "eval G2": 399, "eval G3": 100} and sum(evaluation.values()) == 1_092
    assert train == {"train G1": 44_873, "train G2": 35_402, "train G3": 23_949} and sum(train.values()) == 104_224
    assert (recipe.subset.tools, recipe.subset.seed, recipe.split.dev, recipe.split.seed) == (10_000, 42, 0.1, 42)


def test_the_paper_s_files_are_asked_for_where_they_are_missing(tmp_path):
    with pytest.raises(UserError) as error:
        prepare("toolbench", tmp_path / "downloads", tmp_path / "out")
    for name in ("data/retrieval/G3/train.json", "data/retrieval/corpus_G123.tsv", "toolgen_atomic_memorization.json"):
        assert f"{tmp_path}/downloads/{name}: " in str(error.value)
    assert "hf download reasonwang/ToolGen-Datasets data.tar.gz" in str(error.value)
    assert "vague.jsonl" not in str(error.value)


def test_a_missing_dataset_that_has_a_recipe_says_how_to_make_it(tmp_path):
    with pytest.raises(UserError, match=r"or make it: cohyde data prepare toollens --source FOLDER --out \S+/toollens"):
        dataset_folder(str(tmp_path / "toollens"))
    with pytest.raises(UserError) as error:
        dataset_folder(str(tmp_path / "other"))
    assert "prepare" not in str(error.value)


def test_toollens_is_prepared_from_the_published_files(shared_data, tmp_path):
    dataset, findings = prepare("toollens", shared_data / "toollens", tmp_path / "out")
    dev = 1689  # a tenth of 16,893 queries
    assert (len(dataset.tools), len(dataset.eval), len(dataset.dev), len(dataset.train)) == (
        464,
        1877,
        dev,
        16893 - dev,
    )
    assert not findings.counts and not dataset.vague
    assert sum(len(query.tools) for query in (*dataset.train, *dataset.dev)) == 44_865
    assert "other_than_stated" not in read_card(tmp_path / "out")["recipe"]
