"""Order and reachability in a pipeline."""

from collections.abc import Iterable, Mapping, Sequence

from cohyde.dag.spec import StageSpec
from cohyde.errors import UserError


def topological(specs: Sequence[StageSpec]) -> list[StageSpec]:
    """The specs with every stage after its inputs, otherwise in the order given.

    Raises:
        UserError: an input names no stage, or stages need each other in a circle; names the stages.
    """
    by_id = {spec.id: spec for spec in specs}
    return [by_id[id_] for id_ in sort_names({spec.id: spec.inputs.values() for spec in specs})]


def sort_names(parents: Mapping[str, Iterable[str]]) -> list[str]:
    """Names with every one after its parents. Iterative, so that a thousand rounds don't exhaust the stack."""
    done: set[str] = set()
    order: list[str] = []
    for start in parents:
        path: dict[str, Iterable[str]] = {}
        stack = [start]
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
            elif name in path:  # all its parents are done
                del path[name]
                done.add(name)
                order.append(name)
                stack.pop()
            else:
                path[name] = parents[name]
                stack.extend(_open_parents(name, parents, done, path))
    return order


def _open_parents(
    name: str, parents: Mapping[str, Iterable[str]], done: set[str], path: Mapping[str, Iterable[str]]
) -> list[str]:
    still_open = [parent for parent in parents[name] if parent not in done]
    for parent in still_open:
        if parent not in parents:
            raise UserError(f"stage {name}: its input {parent} is no stage of this pipeline")
        if parent in path:
            circle = [*list(path)[list(path).index(parent) :], parent]
            raise UserError(f"stage {parent}: it needs itself: {' needs '.join(circle)}")
    return still_open[::-1]


def children_of(parents: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The same edges the other way round."""
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, above in parents.items():
        for parent in dict.fromkeys(above):
            children[parent].append(name)
    return children


def reachable(start: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
    """``start`` and everything that the edges lead to from there."""
    seen = set(start)
    stack = list(seen)
    while stack:
        fresh = [name for name in edges[stack.pop()] if name not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return seen
