"""Bounds on the contribution of one example to a sum."""

from __future__ import annotations

from privet.mechanism.ablations import Unclipped
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, KeepOrDrop, PerSampleAdaptive, Threshold

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "KeepOrDrop",
    "PerSampleAdaptive",
    "Scheduled",
    "Threshold",
    "Unclipped",
]
