"""Former module of ``Adjacency``, ``Release`` and ``Unit``, now names of ``privet``; will be removed in 0.3."""

from __future__ import annotations

from privet._lazy import moved

__getattr__ = moved(
    __name__,
    {
        "Adjacency": "privet.Adjacency",
        "Release": "privet.Release",
        "Unit": "privet.Unit",
    },
)
