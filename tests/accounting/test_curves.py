"""What a curve says between the points it was looked at: the covering mu holds there too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.accounting.curves import checked, covering_mu
from privet.accounting.gaussian_dp import gdp_delta

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Stairs:
    """A curve that stays level and falls at some epsilons: between two points it is as high as a curve can be."""

    ends: tuple[float, ...]
    levels: tuple[float, ...]
    accountant: str = "stairs"

    def epsilon(self, delta: float) -> float:
        return next(end for end, level in zip((0.0, *self.ends), (*self.levels, 0.0), strict=True) if level <= delta)

    def deltas(self, epsilons: Array) -> Array:
        heights = np.array([*self.levels, 0.0])
        return np.asarray(heights[np.searchsorted(self.ends, checked(epsilons), side="right")])

    def mu(self, delta: float) -> float | None:
        return covering_mu(self, delta)


@pytest.mark.parametrize(
    "curve",
    [
        Stairs(ends=(1.0,), levels=(0.3,)),
        Stairs(ends=(0.7001, 2.0), levels=(0.3, 1e-3)),
        Stairs(ends=(0.5, 1.123, 2.77, 4.0), levels=(0.4, 0.3, 0.05, 1e-4)),
        Stairs(ends=(0.01, 5.0), levels=(0.9, 1e-4)),
    ],
    ids=["one step", "early", "four", "high"],
)
def test_a_covering_mu_lies_above_the_curve_everywhere(curve: Stairs) -> None:
    delta = 1e-6
    mu = curve.mu(delta)
    assert mu is not None
    # a curve is highest over a Gaussian one where a step ends
    last = [float(np.nextafter(end, 0.0)) for end in curve.ends]
    needed = 0.0
    for epsilon in [*last, *np.linspace(0, 6, 61).tolist()]:
        found = float(curve.deltas(np.array([epsilon]))[0])
        assert found <= max(gdp_delta(mu, epsilon), delta) * (1 + 1e-10)
        needed = max(needed, found / max(gdp_delta(mu, epsilon), delta))
    assert needed > 0.98, "and not far above it"


def test_a_curve_that_never_falls_has_no_finite_mu() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Level(Stairs):
        def epsilon(self, delta: float) -> float:
            return math.inf

    assert Level(ends=(1.0,), levels=(0.5,)).mu(1e-6) == math.inf
