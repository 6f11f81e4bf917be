"""Samplers, which draw the records of each batch."""

from __future__ import annotations

from privet.mechanism.balls_in_bins import BallsInBins
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson
from privet.mechanism.truncated import TruncatedPoisson, Truncation

__all__ = [
    "BallsInBins",
    "BoundedPersons",
    "Cyclic",
    "CyclicPoisson",
    "FixedSize",
    "FullBatch",
    "Poisson",
    "SampledPersons",
    "Shuffle",
    "TruncatedPoisson",
    "Truncation",
]
