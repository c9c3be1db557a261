"""Checks of a pipeline before anything starts. Each is small, and names the stage at fault."""

import dataclasses
import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from cohyde.dag.graph import topological
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
Specs = Sequence[StageSpec]


def check(specs: Specs) -> None:
    """Raise one :class:`UserError` that lists everything that is wrong with the pipeline."""
    found = problems(specs)
    if found:
        raise UserError("the pipeline cannot run:\n  " + "\n  ".join(found))


def problems(specs: Specs) -> list[str]:
    """One line for each thing that is wrong, with the stage's name."""
    return [line for one_check in CHECKS for line in one_check(specs)]


def some_stage(specs: Specs) -> Iterator[str]:
    """There is something to run."""
    if not specs:
        yield "it has no stages"


def ids_are_unique(specs: Specs) -> Iterator[str]:
    """No two stages share an id."""
    for id_, count in Counter(spec.id for spec in specs).items():
        if count > 1:
            yield f"stage {id_}: {count} stages have this id"


def ids_name_folders(specs: Specs) -> Iterator[str]:
    """An id can be part of a folder's name everywhere."""
    for spec in specs:
        if not ID.fullmatch(spec.id):
            yield f"stage {spec.id!r}: an id has letters, digits, '.', '_' and '-' only, starting with the first two"


def inputs_exist(specs: Specs) -> Iterator[str]:
    """Every input is a stage of the pipeline."""
    ids = {spec.id for spec in specs}
    for spec in specs:
        for name, stage in spec.inputs.items():
            if stage not in ids:
                yield f"stage {spec.id}: its input {name!r} is {stage!r}, which is no stage of this pipeline"


def no_circles(specs: Specs) -> Iterator[str]:
    """No stage needs itself. Said only where the inputs exist: the other check has told the rest."""
    if any(inputs_exist(specs)):
        return
    try:
        topological(specs)
    except UserError as error:
        yield error.message


def entries_are_found(specs: Specs) -> Iterator[str]:
    """An entry reads ``package.module:function``, and its package is there (it is not imported)."""
    for spec in specs:
        if not ENTRY.fullmatch(spec.entry):
            yield f"stage {spec.id}: entry {spec.entry!r} has to read 'package.module:function'"
        elif not package_is_found(package_of(spec.entry)):
            yield f"stage {spec.id}: entry {spec.entry!r}: there is no package {package_of(spec.entry)!r}"


def versions_are_given(specs: Specs) -> Iterator[str]:
    """A stage has a version."""
    for spec in specs:
        if not (isinstance(spec.version, str) and spec.version):
            yield f"stage {spec.id}: version {spec.version!r} has to be a text such as '1'"


def configs_are_frozen(specs: Specs) -> Iterator[str]:
    """A configuration slice is a frozen dataclass, so that it stays what was fingerprinted."""
    for spec in specs:
        kind = type(spec.config)
        if spec.config is not None and not (dataclasses.is_dataclass(kind) and kind.__hash__ is not None):
            yield f"stage {spec.id}: config has to be a frozen dataclass or None, got {kind.__name__}"


def hashes_are_texts(specs: Specs) -> Iterator[str]:
    """Prompts and external identities are hashes or names, never empty."""
    for spec in specs:
        for field in ("prompts", "external"):
            for name, value in getattr(spec, field).items():
                if not (isinstance(value, str) and value):
                    yield f"stage {spec.id}: {field}[{name!r}] has to be a text that is not empty, got {value!r}"


def resources_can_be_reserved(specs: Specs) -> Iterator[str]:
    """No share is negative, and none of a CPU would be no place to run."""
    for spec in specs:
        ask = spec.resources
        if not ask.cpus > 0:
            yield f"stage {spec.id}: resources.cpus has to be greater than 0, got {ask.cpus}"
        if ask.gpus < 0:
            yield f"stage {spec.id}: resources.gpus has to be at least 0, got {ask.gpus}"
        if ask.memory_gib < 0:
            yield f"stage {spec.id}: resources.memory_gib has to be at least 0, got {ask.memory_gib}"
        if ask.workers < 1:
            yield f"stage {spec.id}: resources.workers has to be at least 1, got {ask.workers}"


CHECKS: tuple[Callable[[Specs], Iterator[str]], ...] = (
    some_stage,
    ids_are_unique,
    ids_name_folders,
    inputs_exist,
    no_circles,
    entries_are_found,
    versions_are_given,
    configs_are_frozen,
    hashes_are_texts,
    resources_can_be_reserved,
)


def package_of(entry: str) -> str:
    """The top-level package of an entry."""
    return entry.partition(":")[0].partition(".")[0]


@cache
def package_is_found(package: str) -> bool:
    """Whether a top-level package can be imported; looks for it without importing it."""
    return importlib.util.find_spec(package) is not None
