"""How many logical steps make one pass over the data."""

from __future__ import annotations

from privet.mechanism.fixed_size import FixedSize
from privet.mechanism.sampling import Poisson, Sampling
from privet.mechanism.truncated import TruncatedPoisson


def steps_per_epoch(sampling: Sampling) -> int:
    """Return the steps after which every example was used once, or once on average; computed from public constants.

    Sampling that is not known here, and full batches, count every round as an epoch.
    """
    if isinstance(sampling, Poisson | TruncatedPoisson):
        return max(1, round(1 / sampling.rate))
    if isinstance(sampling, FixedSize):
        return max(1, round(sampling.dataset_size / sampling.batch_size))
    return sampling.steps_per_round
