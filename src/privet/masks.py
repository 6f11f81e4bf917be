"""Which coordinates of a gradient take part in a step, and in which grain."""

from __future__ import annotations

from privet.mechanism.granularity import Blocks, Coordinates, Rows
from privet.mechanism.masking import FrozenMask, NoMask, RandomMask, SharedRandomMask
from privet.mechanism.release_masks import ChosenMask, RankedMask

__all__ = [
    "Blocks",
    "ChosenMask",
    "Coordinates",
    "FrozenMask",
    "NoMask",
    "RandomMask",
    "RankedMask",
    "Rows",
    "SharedRandomMask",
]
