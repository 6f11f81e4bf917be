"""Samplers, which draw the records of each batch."""

from __future__ import annotations

from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson
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
