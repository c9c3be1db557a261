"""Which pairs stand in a batch together, by seed and epoch alone: a training that goes on sees the same batches."""

from collections.abc import Sequence

import numpy as np


def batches_of(
    count: int, batch_size: int, seed: int, epoch: int, lengths: Sequence[int] = (), window: int = 1
) -> list[list[int]]:
    """Positions 0 … ``count`` - 1, shuffled by seed and epoch, in batches; a last one of at least 2 is used.

    With a ``window`` of w > 1 the shuffled order is cut into windows of w batches, the pairs of a window are sorted by
    length before they are cut into batches, and the batches of all windows are shuffled again. A single position left
    over has no negative and sits this epoch out; the shuffle makes it another one each time.

    Args:
        count: pairs.
        batch_size: pairs of a batch, at least 2.
        seed: with the epoch, of both shuffles.
        epoch: 0, 1, …
        lengths: of each pair in tokens, for a window of more than 1.
        window: batches that are sorted together; 1 sorts nothing.
    """
    draw = np.random.default_rng([seed, epoch])
    used = count - 1 if count % batch_size == 1 else count
    order = draw.permutation(count)[:used]
    if window > 1:
        cuts = range(window * batch_size, used, window * batch_size)
        by_length = np.asarray(lengths)
        windows = [part[np.argsort(by_length[part], kind="stable")] for part in np.split(order, list(cuts))]
        order = np.concatenate(windows)
    batches = [order[start : start + batch_size].tolist() for start in range(0, used, batch_size)]
    return [batches[place] for place in draw.permutation(len(batches))] if window > 1 else batches
