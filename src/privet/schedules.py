"""How much of a gradient a mask leaves out, as training goes on."""

from __future__ import annotations

from privet.mechanism.mask_rates import Constant, Cosine, GradualCooling, Linear

__all__ = [
    "Constant",
    "Cosine",
    "GradualCooling",
    "Linear",
]
