"""Drawing a fixed part of a data set by a rule that anyone can repeat, on any machine and with any library version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def fixed_order(positions: Iterable[int], *, seed: str) -> list[int]:
    """Return the positions in an order that looks random and never changes.

    They are sorted by the SHA-256 of ``"<seed>/<position>"``. A random number generator would do as well today, but
    none promises the same stream forever.

    >>> fixed_order(range(5), seed="example") == fixed_order(reversed(range(5)), seed="example")
    True
    """
    return sorted(positions, key=lambda position: hashlib.sha256(f"{seed}/{position}".encode()).digest())


def fixed_sample(positions: Iterable[int], num_chosen: int, *, seed: str) -> list[int]:
    """Return ``num_chosen`` of the positions, chosen by ``fixed_order``, in ascending order."""
    return sorted(fixed_order(positions, seed=seed)[:num_chosen])
