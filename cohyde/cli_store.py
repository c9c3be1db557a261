"""``cohyde verify`` and ``cohyde gc``: what lies in a store, whether it is whole, and what of it nobody needs."""

from typing import TYPE_CHECKING, Annotated

import typer

from cohyde.cli_options import DEFAULT_STORE, AsJson, StoreFolder, run_command, store_option
from cohyde.errors import UserError

if TYPE_CHECKING:
    from cohyde.dag.store import Store
    from cohyde.dag.verify import Verification


def verify(
    store: StoreFolder = DEFAULT_STORE,
    discard: Annotated[
        bool, typer.Option("--discard", help="Remove what is damaged; running again makes it anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every artifact against its checksums.

    Says which file is damaged, which runs and stages that touches, and how to make it anew. Leaves with 1 if anything
    is damaged, also where it was discarded.
    """
    from cohyde.dag.remote import open_store
    from cohyde.dag.verify import discard_damaged
    from cohyde.dag.verify import verify as verify_store
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_store import print_discarded, print_verification

    at = _there(open_store(store))
    with Work("verifying") as work:
        found = verify_store(at, work)
    gone = discard_damaged(at, found) if discard else []
    if as_json:
        print_json({"store": at.location, **found.to_json(), "discarded": gone})
    else:
        print_verification(found, store_option(at.location))
        if discard:
            print_discarded(gone, _commands(at, found))
    if not found.ok:
        raise typer.Exit(1)


def gc(
    store: StoreFolder = DEFAULT_STORE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; without this it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what nobody needs, and remove it when told to.

    That is: artifacts that no run names, what attempts left that have ended, checkpoints that nobody will go on from.
    What somebody works on is left alone, so it may be used beside a run.
    """
    from cohyde.dag.gc import find, remove
    from cohyde.dag.remote import open_store
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_store import print_garbage

    at = _there(open_store(store))
    with Work("looking") as work:
        found = find(at, work)
    with Work("removing") as work:
        gone = remove(at, found, work) if yes else []
    if as_json:
        garbage = [item.to_json() for item in found.garbage]
        kept = {node: str(holder) for node, holder in found.busy.items()}
        removed = [item.shown for item in gone]
        print_json({"store": at.location, "bytes": found.bytes, "garbage": garbage, "busy": kept, "removed": removed})
    else:
        print_garbage(found, gone if yes else None, store_option(at.location))


def _there(store: "Store") -> "Store":
    """The store, if there is one: of a misspelt one nothing is damaged, and nothing can be removed."""
    if not store.is_there():
        raise UserError(f"{store.location}: there is no store here", "name it with --store DIR")
    return store


def _commands(store: "Store", found: "Verification") -> dict[str, str]:
    """What runs each run again that something damaged was part of."""
    from cohyde.dag.runs import load_run

    runs = dict.fromkeys(run for damage in found.damaged for run in damage.runs)
    records = [load_run(store, run) for run in runs]
    return {one.name: run_command(one.name, one.preset, one.overrides, store.location) for one in records}
