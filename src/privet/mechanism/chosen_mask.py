"""Former module of ``privet.masks.ChosenMask``; will be removed in 0.3."""

from __future__ import annotations

from privet._lazy import moved

__getattr__ = moved(
    __name__,
    {
        "ChosenMask": "privet.masks.ChosenMask",
    },
)
