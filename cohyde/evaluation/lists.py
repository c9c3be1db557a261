"""Many short lists of names, such as one ranking a query, as three arrays: a fraction of what lists of texts take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Lists:
    """List ``i`` is ``names[codes[offsets[i]:offsets[i + 1]]]``: n lists over v distinct names, m entries in all."""

    names: npt.NDArray[np.object_]
    """(v,) texts, each once."""
    codes: npt.NDArray[np.int64]
    """(m,) positions in ``names``."""
    offsets: npt.NDArray[np.int64]
    """(n + 1,) ascending from 0 to m."""

    @classmethod
    def of(cls, lists: Iterable[Iterable[str]], names: Sequence[str] = ()) -> "Lists":
        """From lists of texts. The vocabulary starts with ``names``, which are distinct; others follow as they come."""
        code_of = {name: code for code, name in enumerate(names)}
        codes: list[int] = []
        offsets = [0]
        for one in lists:
            codes += [code_of.setdefault(name, len(code_of)) for name in one]
            offsets.append(len(codes))
        vocabulary = np.empty(len(code_of), dtype=object)
        vocabulary[:] = list(code_of)
        return cls(names=vocabulary, codes=np.array(codes, dtype=np.int64), offsets=np.array(offsets, dtype=np.int64))

    def __len__(self) -> int:
        """How many lists there are."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> list[str]:
        """One list, as texts."""
        found: list[str] = self.names[self.codes[self.offsets[row] : self.offsets[row + 1]]].tolist()
        return found

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(n,) entries of each list."""
        return np.diff(self.offsets)

    def entries(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions in ``codes`` of all that these lists hold, list by list."""
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        entries: npt.NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(
            self.offsets[rows] - ends + lengths, lengths
        )
        return entries

    def take(self, rows: npt.NDArray[np.int64]) -> "Lists":
        """These lists alone, in this order, over the same names."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        return Lists(names=self.names, codes=self.codes[self.entries(rows)], offsets=offsets)
