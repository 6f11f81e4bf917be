"""Groups of parameters that share a norm and a clipping bound."""

from __future__ import annotations

from privet.mechanism.grouping import ByName, OneGroup, PerLayer, PerParameter

__all__ = [
    "ByName",
    "OneGroup",
    "PerLayer",
    "PerParameter",
]
