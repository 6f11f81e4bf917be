"""Engines that compute clipped sums of per-example gradients. The engine does not change the guarantee."""

from __future__ import annotations

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.functional import Functional
from privet.gradients.engines.support import replace_batchnorm
from privet.gradients.norms.budgets import Balanced, Fast, Lean
from privet.training.alone import one_at_a_time

__all__ = [
    "Balanced",
    "BookKeeping",
    "Fast",
    "Functional",
    "Lean",
    "one_at_a_time",
    "replace_batchnorm",
]
