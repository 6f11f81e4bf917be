"""A fixed random part of a data set, identical on every machine and with every library version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def fixed_order(positions: Iterable[int], *, seed: str) -> list[int]:
    """Return the positions in a pseudo-random order that never changes.

    They are sorted by the SHA-256 of ``"<seed>/<position>"``: random number generators do not guarantee the same stream
    in all versions.

    >>> fixed_order(range(5), seed="example") == fixed_order(reversed(range(5)), seed="example")
    True
    """
    return sorted(positions, key=lambda position: hashlib.sha256(f"{seed}/{position}".encode()).digest())


def fixed_sample(positions: Iterable[int], num_chosen: int, *, seed: str) -> list[int]:
    """Return ``num_chosen`` of the positions, chosen by ``fixed_order``, in ascending order."""
    return sorted(fixed_order(positions, seed=seed)[:num_chosen])
