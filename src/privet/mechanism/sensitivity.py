"""The sensitivity of a clipped sum to one unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from privet import checks
from privet.errors import ArgumentError


class Norm(Enum):
    """The norm of the bound on a contribution; the noise must match it."""

    L1 = "l1"
    L2 = "l2"


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The bound on one unit's contribution to a sum, one number per parameter group.

    Clipping creates it, noise is scaled to it and the event is built from it. The bound is stored only here, so the
    three cannot disagree.

    Guarantee:
        Removing one unit moves group ``g`` of the sum by at most ``bounds[g]`` in ``norm``, hence the whole sum by at
        most ``total``. Replacing one unit moves it by at most twice that; the accountant applies this factor.
    """

    bounds: tuple[float, ...]
    norm: Norm = Norm.L2

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ArgumentError("bounds must hold one number per parameter group, got none.")
        for index, bound in enumerate(self.bounds):
            checks.positive(f"bounds[{index}]", bound)

    @cached_property
    def total(self) -> float:
        """The bound on the whole contribution: root of the sum of squares for L2, plain sum for L1."""
        return math.fsum(self.bounds) if self.norm is Norm.L1 else math.hypot(*self.bounds)
