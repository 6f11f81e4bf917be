"""Which coordinates of a gradient take part in a step, and in which grain."""

from __future__ import annotations

from privet.mechanism.chosen_mask import ChosenMask
from privet.mechanism.granularity import Blocks, Coordinates, Rows
from privet.mechanism.masking import FrozenMask, NoMask, RandomMask, RankedMask
from privet.mechanism.shared_mask import SharedRandomMask

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
