"""What a person sees of a store: what is damaged and how to mend it, what could be tidied away."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from cohyde.terminal import compact, duration, err, out, plain_table

if TYPE_CHECKING:
    from cohyde.dag.gc import Finding, Garbage
    from cohyde.dag.verify import Damage, Verification

SHOWN_FAULTS = 5
SHOWN_LARGEST = 5
UNITS = ("bytes", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Bytes as ``512 bytes``, ``1.2 kB``, ``3.4 GB``."""
    power = 0
    while count >= 999.5 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {UNITS[power]}" if power and count < 99.95 else f"{count:.0f} {UNITS[power]}"


def print_verification(found: "Verification", where: Sequence[str]) -> None:
    """Every damaged artifact with what it touches and its remedy; then what was read.

    ``where`` is the option that names the store, if it needs one.
    """
    console = out()
    for damage in found.damaged:
        _print_damage(damage, where)
    for record in found.records:
        console.print(Text("✗ ", style="bold red") + Text(record), soft_wrap=True)
    for path in found.newer:
        console.print(Text("· ", style="dim") + Text(f"{path.name}: written by a later version of cohyde, not judged"))
    rate = f", {size(found.bytes / found.seconds)}/s" if found.bytes and found.seconds > 1 else ""
    read = f"{found.artifacts} artifacts, {found.files} files, {size(found.bytes)} in {duration(found.seconds)}{rate}"
    verdict = "all as they were written" if found.ok else f"{len(found.damaged)} damaged"
    console.print(Text(f"{read}: ") + Text(verdict, style="green" if found.ok else "bold red"), soft_wrap=True)


def _print_damage(damage: "Damage", where: Sequence[str]) -> None:
    console = out()
    console.print(Text("✗ ", style="bold red") + Text(damage.path.name, style="bold"))
    for fault in damage.faults[:SHOWN_FAULTS]:
        console.print(Text(f"    {fault.file}: {fault.what}"), soft_wrap=True)
    if len(damage.faults) > SHOWN_FAULTS:
        console.print(f"    and {len(damage.faults) - SHOWN_FAULTS} more files")
    if not damage.runs:
        console.print("    no run names it: `cohyde gc` would remove it")
        return
    console.print(Text(f"    in runs {', '.join(damage.runs)}"), soft_wrap=True)
    if damage.below:
        console.print(Text(f"    made from it: {compact(damage.below)}"), soft_wrap=True)
    command = shlex.join(["cohyde", "rerun", damage.runs[0], damage.id, *where])
    advice = "make it and those anew" if damage.below else "make it anew"
    console.print(Text(f"    {advice}: ") + Text(command, style="bold"), soft_wrap=True)


def print_discarded(gone: Sequence[str], commands: Mapping[str, str]) -> None:
    """What was removed, and the commands that make it anew, by run."""
    console = err()
    console.print(Text(f"discarded {', '.join(gone) or 'nothing'}"), soft_wrap=True)
    for command in commands.values():
        console.print(Text("  make it anew: ") + Text(command, style="bold"), soft_wrap=True)


def print_garbage(found: "Finding", gone: "Sequence[Garbage] | None", where: Sequence[str]) -> None:
    """What nobody needs, by kind and with the largest artifacts; then what was removed (None: nothing was to be)."""
    from cohyde.dag.gc import KINDS

    console, notes = out(), err()
    table = plain_table(("", "left"), ("count", "right"), ("size", "right"))
    for kind, title in KINDS.items():
        items = sorted((item for item in found.garbage if item.kind == kind), key=lambda item: -item.bytes)
        if items:
            table.add_row(title, f"{len(items)}", size(sum(item.bytes for item in items)))
        if kind == "artifact":
            for item in items[:SHOWN_LARGEST]:
                table.add_row(Text(f"  {item.path.name}", style="dim"), "", Text(size(item.bytes), style="dim"))
            if len(items) > SHOWN_LARGEST:
                table.add_row(Text(f"  and {len(items) - SHOWN_LARGEST} more", style="dim"))
    if found.garbage:
        table.add_row(Text("in all", style="bold"), f"{len(found.garbage)}", Text(size(found.bytes), style="bold"))
        console.print(table)
    for node, holder in found.busy.items():
        notes.print(Text(f"{node}: {holder} is at it, so all of it stays", style="dim"), soft_wrap=True)
    if found.strangers:
        notes.print(Text("of that no run is known, so what no run names stays as well", style="dim"), soft_wrap=True)
    notes.print(_outcome(found, gone, where), soft_wrap=True)


def _outcome(found: "Finding", gone: "Sequence[Garbage] | None", where: Sequence[str]) -> Text:
    if not found.garbage:
        return Text("there is nothing to remove", style="dim")
    if gone is None:
        return Text("nothing was removed; to remove it: ") + Text(shlex.join(["cohyde", "gc", "--yes", *where]), "bold")
    left = len(found.garbage) - len(gone)
    more = f"; {left} of {len(found.garbage)} were left, since somebody needs them now" if left else ""
    return Text(f"removed {size(sum(item.bytes for item in gone))}{more}")
