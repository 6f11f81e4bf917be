"""Masks, which select the coordinates of a gradient that take part in a step, and their granularity."""

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
