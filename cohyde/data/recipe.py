"""Recipes: a paper's data protocol as a file in ``configs/data``, from the published files to a dataset folder.

A recipe names the files and where they are published, their format, what they hold, and what is made of them: the
subset of the catalogue and the dev split. It downloads nothing: where a file is missing, it says how to get it.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cohyde.catalog import Dataset
from cohyde.config import build, plain, section, setting
from cohyde.data.dataset import counts_of
from cohyde.data.importers.format import Options
from cohyde.data.importing import FORMATS, import_dataset
from cohyde.data.reading import Reading
from cohyde.data.split import split_dataset, subset_tools
from cohyde.data.validation import SPLITS, Findings
from cohyde.errors import UserError
from cohyde.io import sha256_file
from cohyde.progress import Progress, Silent
from cohyde.resources import resource_folder

FOLDER = "{folder}"
"""What stands in a recipe's commands for the folder of the downloads."""
COUNTS = ("counts", "stated", "stated_of_subset")
"""The keys of a recipe that hold counts."""
COUNTED = ("tools", *SPLITS, "vague")
"""What they count."""


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """One published file."""

    name: str = setting("")
    """Its path below the folder of the downloads."""
    what: str = setting("")
    """What it holds, in a few words."""
    download: str = setting("")
    """The published file that it is packed in; its own name where there is none."""
    optional: bool = False
    """Whether a dataset can be made without it."""
    sha256: str = setting("")
    """Its checksum; empty where it is not known."""


@dataclass(frozen=True, kw_only=True)
class SubsetRecipe:
    """The part of the catalogue that is kept."""

    tools: int | None = setting(None, ge=1)
    """So many tools: all that evaluation needs, the rest stratified. None keeps all."""
    seed: int = setting(42, ge=0)
    """Of the draw (paper: 42)."""


@dataclass(frozen=True, kw_only=True)
class SplitRecipe:
    """The dev split."""

    dev: float = setting(0.1, ge=0, lt=1)
    """Its share of the training queries, stratified by tier (paper: 10%). 0 splits nothing off."""
    seed: int = setting(42, ge=0)
    """Of the draw (paper: 42)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A data protocol. Counts are by name: ``tools``, ``train``, ``eval``, or with a tier, ``eval G1``."""

    name: str = setting("")
    """The dataset's name; that of the file where it is empty."""
    source: str = setting("")
    """Where the data is from, for the dataset's card."""
    licence: str = setting("")
    """Its licence, for the card."""
    format: str = setting("")
    """The format of the files, as ``cohyde data import`` says it."""
    published: str = setting("")
    """Where the files are published."""
    fetch: tuple[str, ...] = setting(())
    """The commands that download the files and put them in place; ``{folder}`` is where to."""
    files: tuple[RecipeFile, ...] = ()
    """What is read."""
    catalog: str | None = setting(None)
    """Which of the files is a catalogue to join with."""
    vague: str | None = setting(None)
    """Which of the files holds paraphrases of evaluation queries."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What has to be there after the import, before the subset; any other count is an error."""
    stated: Mapping[str, int] = field(default_factory=dict)
    """What a paper states of that, without it being verified against these files; another count is told."""
    stated_of_subset: Mapping[str, int] = field(default_factory=dict)
    """The same, for what is left after the subset and before the dev split."""
    subset: SubsetRecipe = section(SubsetRecipe)
    split: SplitRecipe = section(SplitRecipe)


# ------------------------------------------------------------------------------------------------------- loading


def recipe_names() -> list[str]:
    """The recipes in ``configs/data``, sorted."""
    return sorted(path.stem for path in (resource_folder("configs") / "data").glob("*.yaml"))


def load_recipe(name_or_file: str) -> Recipe:
    """Load a recipe and check every key, type and range.

    Args:
        name_or_file: one of :func:`recipe_names`, or the path of a YAML file.

    Raises:
        UserError: there is no such recipe, or something in it is wrong; names the key and the file.
    """
    is_path = Path(name_or_file).suffix in (".yaml", ".yml")
    path = Path(name_or_file) if is_path else resource_folder("configs") / "data" / f"{name_or_file}.yaml"
    if not path.is_file():
        remedy = f"recipes are: {', '.join(recipe_names())}; or give the path of a .yaml file"
        raise UserError(f"there is no recipe {name_or_file!r}", remedy)
    data = Reading(Findings()).yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected keys and values, got {type(data).__name__}")
    given = {key: value for key, value in data.items() if key not in ("files", *COUNTS)}
    recipe = build(Recipe, [(str(path), given)])
    counts, stated, stated_of_subset = (_counts(data.get(key, {}), f"{path}: {key}") for key in COUNTS)
    recipe = replace(
        recipe,
        name=recipe.name or path.stem,
        files=_recipe_files(data.get("files"), path),
        counts=counts,
        stated=stated,
        stated_of_subset=stated_of_subset,
    )
    _check(recipe, path)
    return recipe


def _recipe_files(items: Any, path: Path) -> tuple[RecipeFile, ...]:
    if not isinstance(items, list) or not items:
        raise UserError(f"{path}: files has to be a list of one or more files, each with a 'name'")
    files = tuple(build(RecipeFile, [(f"{path}: files/{position}", item)]) for position, item in enumerate(items))
    for position, file in enumerate(files):
        if not file.name or Path(file.name).is_absolute() or ".." in Path(file.name).parts:
            raise UserError(f"{path}: files/{position}: name has to be a path below the folder, got {file.name!r}")
    return files


def _counts(value: Any, where: str) -> dict[str, int]:
    """Counts by name; those by tier, which stand one level deeper, as ``eval G1``."""
    if not isinstance(value, dict):
        raise UserError(f"{where} has to be a section with keys, got {value!r}")
    flat: dict[str, int] = {}
    for key, count in value.items():
        if key not in COUNTED:
            raise UserError(f"{where}: unknown key {key}", f"keys here are: {', '.join(COUNTED)}")
        flat |= {f"{key} {tier}": one for tier, one in count.items()} if isinstance(count, dict) else {key: count}
    for key, count in flat.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise UserError(f"{where}: {key} has to be a whole number of at least 0, got {count!r}")
    return flat


def _check(recipe: Recipe, path: Path) -> None:
    if recipe.format not in FORMATS:
        raise UserError(f"{path}: there is no format {recipe.format!r}", f"formats are: {', '.join(FORMATS)}")
    names = [file.name for file in recipe.files]
    for key, value in (("catalog", recipe.catalog), ("vague", recipe.vague)):
        if value is not None and value not in names:
            raise UserError(f"{path}: {key} {value!r} is none of the files", f"files are: {', '.join(names)}")


# ----------------------------------------------------------------------------------------------------- preparing


def prepare(
    name_or_file: str,
    source: Path,
    out: Path,
    *,
    drop_invalid: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[Dataset, Findings]:
    """Make a dataset folder as a recipe says: import, check the counts, take the subset, split off dev.

    Args:
        name_or_file: a recipe of :func:`recipe_names`, or the path of a YAML file.
        source: the folder that holds the downloads.
        out: the dataset folder to write; whole, or not at all.
        drop_invalid: leave out and count rows at fault instead of raising.
        overwrite: replace what is at ``out``.
        progress: is told how far it is, and what is other than a paper states.

    Raises:
        UserError: as :func:`load_recipe` and :func:`~cohyde.data.importing.import_dataset`; files are missing or are
            not the published ones; counts are not as they have to be.
    """
    recipe = load_recipe(name_or_file)
    listener = progress or Silent()
    source = source.expanduser()
    files = _files_there(recipe, source)
    _check_sums(files, listener)
    apart = {recipe.catalog, recipe.vague}
    return import_dataset(
        recipe.format,
        [path for path, file in files.items() if file.name not in apart],
        out,
        vague=_place(recipe.vague, source, files),
        card={"name": recipe.name, "source": recipe.source, "licence": recipe.licence},
        options=Options(catalog=_place(recipe.catalog, source, files)),
        drop_invalid=drop_invalid,
        overwrite=overwrite,
        progress=listener,
        then=lambda dataset: _finished(recipe, dataset, listener),
    )


def _place(name: str | None, source: Path, files: Mapping[Path, RecipeFile]) -> Path | None:
    return source / name if name is not None and source / name in files else None


def _files_there(recipe: Recipe, source: Path) -> dict[Path, RecipeFile]:
    """The files of the recipe that are there.

    Raises:
        UserError: some are not; says which, where they are published, and how to get them.
    """
    there = {source / file.name: file for file in recipe.files if (source / file.name).is_file()}
    missing = [file for file in recipe.files if not file.optional and source / file.name not in there]
    if not missing:
        return there
    lines = [f"{recipe.name}: {len(missing)} of {len(recipe.files)} files are not in {source}"]
    for file in missing:
        packed = f" (packed in {file.download})" if file.download else ""
        lines.append(f"  {source / file.name}: {file.what}{packed}")
    commands = [command.replace(FOLDER, shlex.quote(str(source))) for command in recipe.fetch]
    remedy = f"they are published in {recipe.published}; get them and put them there with:"
    raise UserError("\n".join(lines), "\n    ".join([remedy, *commands]))


def _check_sums(files: Mapping[Path, RecipeFile], progress: Progress) -> None:
    known = {path: file.sha256 for path, file in files.items() if file.sha256}
    for done, (path, expected) in enumerate(known.items()):
        progress.update(done, len(known), "checksums")
        found = sha256_file(path)
        if found != expected:
            raise UserError(
                f"{path} is not the published file: its SHA-256 is {found}, not {expected}",
                "download it again; or give a recipe of your own, without this checksum",
            )


def _finished(recipe: Recipe, dataset: Dataset, progress: Progress) -> tuple[Dataset, dict[str, Any]]:
    """The dataset that the recipe makes of what was imported, and what its card says of that."""
    wrong = _differences(recipe.counts, dataset)
    if wrong:
        raise UserError(
            "\n".join([f"{recipe.name}: counts differ from what the recipe has to find", *wrong]),
            "the files are others than the recipe was written for: get them again; or give a recipe of your own",
        )
    unlike = _differences(recipe.stated, dataset)
    dataset, dropped = subset_tools(dataset, recipe.subset.tools, recipe.subset.seed)
    unlike += [f"{line} (after the subset)" for line in _differences(recipe.stated_of_subset, dataset)]
    for line in unlike:
        progress.warn(f"{recipe.name}: other than stated: {line}")
    dataset = split_dataset(dataset, dev=recipe.split.dev, seed=recipe.split.seed)
    made = {"name": recipe.name, "subset": plain(recipe.subset), "split": plain(recipe.split), "dropped_gold": dropped}
    return dataset, {"recipe": made | ({"other_than_stated": unlike} if unlike else {})}


def _differences(expected: Mapping[str, int], dataset: Dataset) -> list[str]:
    """A line for each count that is not as expected."""
    found = Counter(counts_of(dataset))
    for name in COUNTED[1:]:
        found.update(f"{name} {query.tier}" for query in getattr(dataset, name))
    return [
        f"{name}: {count:,} expected, {found[name]:,} found" for name, count in expected.items() if found[name] != count
    ]
