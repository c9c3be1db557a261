"""Trained retrieval for programs, as ``cohyde search`` is for people: ``from cohyde import Retriever``."""

from pathlib import Path
from typing import Any, Self

from cohyde.errors import UserError
from cohyde.retrieval.live import LiveRetriever


class Retriever(LiveRetriever):
    """What a run has learnt, loaded once, to be asked as often as one likes and from many threads at once.

    ::

        from cohyde import Retriever

        with Retriever.from_run("demo") as retriever:
            for answer in retriever.search(["will I get wet on my way home"], k=3):
                print(answer.description, [(tool.id, score) for tool, score in answer.tools])
    """

    @classmethod
    def from_run(
        cls, run: str | Path, *, store: str | Path = "store", state: str | None = None, **options: Any
    ) -> Self:
        """Load the models of a run.

        Args:
            run: its name; or the path of its record, ``STORE/runs/NAME``.
            store: the store that it lies in, a folder or ``s3://BUCKET/PREFIX``; without effect where ``run`` is a
                path.
            state: a state of the run, such as ``E.2``; None: the one selected by dev NDCG@5.
            options: see :meth:`~cohyde.retrieval.live.LiveRetriever.open`.

        Raises:
            UserError: there is no such run or state, it is not done yet, or something of it does not load.
        """
        from cohyde.dag.remote import open_store
        from stages.search import find_trained

        location, name = _located(run, store)
        return cls.open(find_trained(open_store(location), name, state), **options)

    @classmethod
    def from_export(cls, folder: str | Path, **options: Any) -> Self:
        """Load what ``cohyde export`` wrote.

        Args:
            folder: the exported folder.
            options: see :meth:`~cohyde.retrieval.live.LiveRetriever.open`.

        Raises:
            UserError: it is no such folder, or something of it does not load.
        """
        from cohyde.exported import read_trained

        return cls.open(read_trained(Path(folder)), **options)


def _located(run: str | Path, store: str | Path) -> tuple[str | Path, str]:
    """The store and the name that a run's name or path means."""
    if isinstance(run, str) and "/" not in run:
        return store, run
    path = Path(run)
    folder = path.parent if path.name == RECORD else path
    if folder.parent.name != "runs" or not (folder / RECORD).is_file():
        raise UserError(
            f"{path}: is no run", f"give a run's name and its store, or the path STORE/runs/NAME ({RECORD})"
        )
    return folder.parent.parent, folder.name


RECORD = "run.yaml"
"""The file in a run's folder."""
