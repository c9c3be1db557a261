"""Findings of a validation: counts by kind, each with its first example."""

from collections import Counter
from dataclasses import dataclass, field

from cohyde.errors import UserError


@dataclass
class Findings:
    """Faults met while reading; they raise at the end, unless ``drop_invalid`` says to leave the rows out."""

    drop_invalid: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def fault(self, kind: str, where: str, what: str) -> None:
        """Count one fault of a kind; the first of each kind is kept as its example."""
        self.counts[kind] += 1
        self.first.setdefault(kind, f"{where}: {what}")

    def lines(self) -> list[str]:
        """One line a kind: its first example and its count."""
        return [f"{self.first[kind]} ({kind}; {count} in all)" for kind, count in sorted(self.counts.items())]

    def raise_if_any(self) -> None:
        """Stop with every kind's first example, unless the faults were dropped.

        Raises:
            UserError: there are faults and ``drop_invalid`` is off.
        """
        if self.counts and not self.drop_invalid:
            raise UserError("\n".join(self.lines()), "mend the file, or drop such rows with data.drop_invalid=true")
