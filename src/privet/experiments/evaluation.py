"""Former place of ``privet.runs.measure_model``; will be removed in 0.3."""

from __future__ import annotations

from privet._lazy import moved

__getattr__ = moved(
    __name__,
    {
        "measure_model": "privet.runs.measure_model",
    },
)
