"""Schedules of the share of coordinates that a mask drops during training."""

from __future__ import annotations

from privet.mechanism.mask_rates import Constant, Cosine, GradualCooling, Linear

__all__ = [
    "Constant",
    "Cosine",
    "GradualCooling",
    "Linear",
]
