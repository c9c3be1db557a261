"""Fingerprints: a hash over canonical JSON of exactly what can change a stage's result."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohyde.config import identity_of, plain
from cohyde.dag.graph import topological
from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError
from cohyde.io import canonical_json, sha256_text


def fingerprints(specs: Sequence[StageSpec]) -> dict[str, str]:
    """Fingerprint by stage id, in topological order.

    Raises:
        UserError: an unknown input, a circle, or a value without stable bytes; names the stage and the field.
    """
    return {identified.spec.id: identified.fingerprint for identified in identify(specs)}


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """SHA-256 of an identity's canonical JSON."""
    return sha256_text(canonical_json(identity))


@dataclass(frozen=True, kw_only=True)
class Identified:
    """A stage with its fingerprint and what that is a hash of."""

    spec: StageSpec
    identity: dict[str, Any]
    fingerprint: str


def identify(specs: Sequence[StageSpec]) -> list[Identified]:
    """Identities and fingerprints, in topological order; raises as :func:`fingerprints`.

    The stage's id is a part: each id has a folder of its own, even where two would hold the same.
    """
    results: list[Identified] = []
    known: dict[str, str] = {}
    configs: dict[int, dict[str, Any]] = {}  # pipelines share slices; those objects live as long as the specs
    for spec in topological(specs):
        if id(spec.config) not in configs:
            configs[id(spec.config)] = _config_identity(spec)
        identity = {
            "id": spec.id,
            "entry": spec.entry,
            "version": spec.version,
            "config": configs[id(spec.config)],
            "prompts": spec.prompts,
            "inputs": {name: known[stage] for name, stage in spec.inputs.items()},
            "external": spec.external,
        }
        try:
            known[spec.id] = fingerprint_of(identity)
        except (TypeError, ValueError) as error:
            raise UserError(f"stage {spec.id}: no stable identity: {error}") from None
        results.append(Identified(spec=spec, identity=identity, fingerprint=known[spec.id]))
    return results


def _config_identity(spec: StageSpec) -> dict[str, Any]:
    if spec.config is None:
        return {}
    try:
        return identity_of(spec.config)
    except TypeError as error:
        field = next(_unstable(spec.config, "config"), "config")
        raise UserError(
            f"stage {spec.id}: {field}: {error}",
            "only numbers, texts, true/false, null and lists or dataclasses of them can be fingerprinted",
        ) from None


def _unstable(value: Any, path: str) -> Iterator[str]:
    """Paths of the innermost values that have no stable JSON form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            if item.metadata.get("identity", True) is not False:
                yield from _unstable(getattr(value, item.name), f"{path}.{item.name}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _unstable(item, f"{path}[{position}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _unstable(item, f"{path}[{key!r}]")
    else:
        try:
            plain(value)
        except TypeError:
            yield path


_ABSENT = object()


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """How two identities differ, one line a field: why a stage is not the one that was run before."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines: list[str] = []
        for key in dict.fromkeys([*old, *new]):
            inner = f"{path}.{key}" if path else str(key)
            lines += differences(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
        return lines
    if old is _ABSENT:
        return [f"{path}: new, {new!r}"]
    if new is _ABSENT:
        return [f"{path}: gone, was {old!r}"]
    same = type(old) is type(new) and old == new
    return [] if same else [f"{path}: {old!r} → {new!r}"]
