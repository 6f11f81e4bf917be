"""Which records form a batch, and how often."""

from __future__ import annotations

from privet.mechanism.cyclic import Cyclic
from privet.mechanism.fixed_size import FixedSize
from privet.mechanism.sampling import FullBatch, Poisson, Shuffle
from privet.mechanism.truncated import TruncatedPoisson, Truncation

__all__ = [
    "Cyclic",
    "FixedSize",
    "FullBatch",
    "Poisson",
    "Shuffle",
    "TruncatedPoisson",
    "Truncation",
]
