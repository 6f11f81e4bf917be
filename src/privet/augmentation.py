"""Several augmented views of a record, which count as one record."""

from __future__ import annotations

from privet.training.augmentation import ShiftAndFlip, Views, mean_over_views

__all__ = [
    "ShiftAndFlip",
    "Views",
    "mean_over_views",
]
