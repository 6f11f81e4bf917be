"""Convex learning with differential privacy: noisy cyclic descent and noisy sufficient statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.convex.descent import NoisyCGD as NoisyCGD
    from privet.convex.estimator import ConvexReluClassifier as ConvexReluClassifier
    from privet.convex.statistics import SufficientStatistics as SufficientStatistics
    from privet.mechanism.strong_convexity import StronglyConvexDescent as StronglyConvexDescent
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.convex.descent": ("NoisyCGD",),
            "privet.convex.estimator": ("ConvexReluClassifier",),
            "privet.convex.statistics": ("SufficientStatistics",),
            "privet.mechanism.strong_convexity": ("StronglyConvexDescent",),
        },
    )
