"""Equal numbers of examples on all ranks: a sharded model gathers its parameters on all of them at once."""

from __future__ import annotations

import numpy as np

from privet.training.reading import Indices


def padded(indices: Indices, rank: int, size: int) -> tuple[Indices, int]:
    """Return a rank's examples of a batch, filled up to as many as any rank has, and how many of them count.

    Guarantee:
        The examples that count are the batch, each of them on one rank. The others repeat one that was drawn; they are
        at most one on each rank, come last, and add exactly zero. If the batch is empty, no rank has any.

    Example:
        >>> import numpy as np
        >>> [(list(map(int, found)), count) for found, count in (padded(np.arange(5), rank, 3) for rank in range(3))]
        [([0, 3], 2), ([1, 4], 2), ([2, 0], 1)]
    """
    own = indices[rank::size]
    missing = -(-len(indices) // size) - len(own)
    return np.concatenate([own, indices[:missing]]), len(own)
