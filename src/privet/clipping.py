"""The bound on what one example may add to a sum."""

from __future__ import annotations

from privet.mechanism.ablations import Unclipped
from privet.mechanism.adaptive_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Threshold
from privet.mechanism.clipping_rules import Automatic, KeepOrDrop, PerSampleAdaptive
from privet.mechanism.scheduled_clipping import Scheduled

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "KeepOrDrop",
    "PerSampleAdaptive",
    "Scheduled",
    "Threshold",
    "Unclipped",
]
