"""Engines that compute clipped sums of per-example gradients. The engine does not change the guarantee."""

from __future__ import annotations

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.functional import Functional
from privet.gradients.engines.support import replace_batchnorm
from privet.gradients.norms.budgets import Balanced, Fast, Lean

__all__ = [
    "Balanced",
    "BookKeeping",
    "Fast",
    "Functional",
    "Lean",
    "replace_batchnorm",
]
