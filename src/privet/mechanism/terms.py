"""Former place of the vocabulary of a guarantee, now at the top of ``privet``; goes in 0.3."""

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
