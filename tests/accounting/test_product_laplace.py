"""Independent Laplace noise on a bounded length: the water-filled bound covers every direction and no more."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import integrate

from privet.accounting.accountants import PLD, RDP, tightest
from privet.accounting.product_laplace import SampledProductLaplace, one_coordinate, slope, worst_divergences
from privet.errors import ArgumentError
from privet.mechanism.events import ProductLaplaceDpEvent
from privet.vocabulary import Adjacency

ORDERS = np.array([1.5, 2.0, 8.0, 64.0])


def test_one_coordinate_is_the_integral() -> None:
    for order, x in ((1.5, 0.3), (2.0, 1.0), (8.0, 2.0)):

        def integrand(t: float, order: float = order, x: float = x) -> float:
            return 0.5 * math.exp(-order * abs(t - x) - (1 - order) * abs(t))

        value = sum(integrate.quad(integrand, a, b)[0] for a, b in ((-60, 0), (0, x), (x, 60)))
        found = one_coordinate(np.array(order), np.array(x))
        assert float(found) == pytest.approx(math.log(value) / (order - 1), rel=1e-8)


def test_divergences_are_concave_in_the_square_of_the_shift() -> None:
    squares = np.linspace(1e-3, 60.0, 4000)
    for order in (1.01, 1.5, 2.0, 16.0, 256.0):
        values = one_coordinate(np.array(order), np.sqrt(squares))
        assert (np.diff(values, 2) <= 1e-12).all()
        near = 1e-5 * squares
        rise = one_coordinate(np.array(order), np.sqrt(squares + near)) - values
        assert np.allclose(slope(np.array(order), np.sqrt(squares)) * near, rise, rtol=1e-3, atol=1e-13)


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_no_direction_exceeds_the_bound_and_the_best_one_reaches_it(spread: float) -> None:
    rng = np.random.default_rng(0)
    scales = 0.7 * np.exp(spread * np.abs(rng.normal(size=12)))
    bound = worst_divergences(ORDERS, scales, np.ones(12), reach=1.0)
    shares = rng.normal(size=(20_000, 12)) * np.exp(rng.normal(size=(20_000, 1)) * rng.normal(size=12))
    shares = np.concatenate([shares / np.linalg.norm(shares, axis=1, keepdims=True), np.eye(12)])
    for order, limit in zip(ORDERS, bound, strict=True):
        sums = one_coordinate(np.array(order), np.abs(shares) / scales).sum(1)
        assert sums.max() <= limit
        assert sums.max() >= 0.9 * limit


def test_the_bound_has_no_gap_to_a_direction_that_is_found_by_water_filling() -> None:
    scales, counts = np.array([0.5, 1.0, 3.0]), np.array([2.0, 5.0, 40.0])
    grid = np.linspace(0, 1, 201)
    first, second = (each.ravel() for each in np.meshgrid(grid, grid))
    inside = first + second <= 1 + 1e-12
    shares = np.maximum(np.stack([first, second, 1 - first - second])[:, inside], 0.0)
    for order in ORDERS:
        x = np.sqrt(shares / counts[:, None]) / scales[:, None]
        best = (counts[:, None] * one_coordinate(np.array(order), x)).sum(0).max()
        found = float(worst_divergences(np.array([order]), scales, counts, reach=1.0)[0])
        assert best <= found <= best * (1 + 1e-3)


def test_product_noise_is_never_worse_than_gaussian_noise_of_its_smallest_scale() -> None:
    for rate in (1.0, 0.1):
        product = SampledProductLaplace(rate=rate, scales=(2.0, 9.0), counts=(50, 600))
        assert (product.divergences(np.array([2.0, 8.0, 32.0]), Adjacency.ADD_REMOVE) <= [
            2.0 / 8 + 1e-12, 8.0 / 8 + 1e-12, 32.0 / 8 + 1e-12
        ]).all()  # fmt: skip


def test_equal_scales_cost_by_a_quarter_more_than_gaussian_noise_in_many_dimensions() -> None:
    def total(event: dp_event.DpEvent) -> dp_event.DpEvent:
        return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, event), 300)

    # Both charged by RDP: the Gaussian needs multiplier 6.208 for epsilon 1, a mean of 0.798 of it per coordinate.
    scale = 1.253 * 6.208 * math.sqrt(2 / math.pi)
    event = total(ProductLaplaceDpEvent(scales=(scale,), counts=(650,)))
    assert RDP().epsilon(event, delta=1e-4, adjacency=Adjacency.ADD_REMOVE) == pytest.approx(1.0, abs=0.01)
    assert PLD().supports(event, Adjacency.ADD_REMOVE) is not None
    assert tightest(event, Adjacency.ADD_REMOVE, 1e-4).name == "RDP"


def test_more_noise_in_one_coordinate_never_costs_more() -> None:
    costs = [
        SampledProductLaplace(rate=0.1, scales=(1.0, wide), counts=(3, 4)).divergences(ORDERS, Adjacency.ADD_REMOVE)
        for wide in (1.0, 1.5, 4.0, 100.0)
    ]
    assert all((left >= right - 1e-12).all() for left, right in pairwise(costs))


def test_the_pure_guarantee_bounds_every_order() -> None:
    noise = SampledProductLaplace(rate=1.0, scales=(3.0, 4.0), counts=(9, 16))
    assert noise.pure_epsilon == pytest.approx(math.sqrt(9 / 9 + 16 / 16))
    event = ProductLaplaceDpEvent(scales=(3.0, 4.0), counts=(9, 16))
    assert RDP().epsilon(event, delta=1e-12, adjacency=Adjacency.ADD_REMOVE) <= noise.pure_epsilon * 1.01
    once, twice = (
        noise.divergences(np.array([2.0, 1024.0]), adjacency)
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    )
    assert once.max() <= noise.pure_epsilon
    assert twice.max() <= 2 * noise.pure_epsilon
    assert (twice > once).all()


def test_unequal_lists_infinite_and_zero_scales() -> None:
    def spent(scales: tuple[float, ...], counts: tuple[int, ...]) -> float:
        event = ProductLaplaceDpEvent(scales=scales, counts=counts)
        return RDP().epsilon(event, delta=1e-5, adjacency=Adjacency.ADD_REMOVE)

    with pytest.raises(ArgumentError, match="counts"):
        spent((1.0, 2.0), (1,))
    assert spent((0.0, 1.0), (1, 1)) == math.inf
    assert spent((math.inf,), (5,)) == 0
    assert spent((2.0, math.inf), (1, 5)) == pytest.approx(spent((2.0,), (1,)))
