"""Who does long work that is cut into parts: this process, or others beside it. The work itself does not know."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from cohyde.progress import Progress

Item = TypeVar("Item")
ItemOf = TypeVar("ItemOf", contravariant=True)
Row = dict[str, Any]
Do = Callable[[Sequence[Item], "Progress"], Sequence[Row]]
"""Does some items' work; one row of JSON data for each, in their order, whatever other items there are."""
Keep = Callable[[int, Sequence[Row]], None]
"""Told of each part that is done, by its number; what it raises ends the work."""


class Work(Protocol[ItemOf]):
    """What can be done elsewhere as well: it travels pickled, so it is paths and settings, and loads models there."""

    def open(self) -> AbstractContextManager[Do[ItemOf]]:
        """Load what the work needs, in the process that does it; freed in the end."""


@dataclass(frozen=True)
class AtHand(Generic[Item]):
    """Work that needs what this process holds in memory, and stays in it."""

    do: Do[Item]

    @contextmanager
    def open(self) -> Iterator[Do[Item]]:
        """There is nothing to load."""
        yield self.do


class Executor(Protocol):
    """Does all parts of some work."""

    def run(
        self,
        work: Work[Item],
        parts: Mapping[int, Sequence[Item]],
        keep: Keep,
        progress_of: Callable[[int], "Progress"],
    ) -> None:
        """Do the parts, in any order, and return when the last is kept.

        Args:
            work: opened once by each process that takes part.
            parts: by number; those of the lowest numbers are begun first.
            keep: called as soon as a part is done, in any thread of this process.
            progress_of: who listens to the work on a part, where that is done in this process.

        Raises:
            Exception: what ``work`` or ``keep`` has raised, as it was.
        """


class Here:
    """One part after the other, in this process."""

    def run(
        self,
        work: Work[Item],
        parts: Mapping[int, Sequence[Item]],
        keep: Keep,
        progress_of: Callable[[int], "Progress"],
    ) -> None:
        """See :meth:`Executor.run`. Without any part nothing is opened."""
        if not parts:
            return
        with work.open() as do:
            for number, part in parts.items():
                keep(number, do(part, progress_of(number)))


HERE = Here()
