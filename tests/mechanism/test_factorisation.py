"""Coefficients of correlated noise: closed forms, the search for the best ones, errors and sensitivities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.errors import ArgumentError
from privet.mechanism import factorisation
from privet.mechanism.factorisation import (
    fixed_order_square,
    inverse,
    inverse_square_root,
    optimised,
    prefix_error,
    square_root,
    workload,
)

Array = NDArray[np.float64]


def toeplitz(column: Array, size: int) -> Array:
    found = np.zeros((size, size))
    for age, value in enumerate(column[:size]):
        found += value * np.eye(size, k=-age)
    return found


@pytest.mark.parametrize(("momentum", "kept"), [(0.0, 1.0), (0.9, 1.0), (0.5, 0.99)])
def test_the_square_root_times_itself_is_the_workload(momentum: float, kept: float) -> None:
    column = np.array(square_root(40, momentum=momentum, kept_weight=kept))
    both = np.convolve(column, column)[:40]
    weights = [sum(kept**i * momentum ** (t - i) for i in range(t + 1)) for t in range(40)]
    assert np.allclose(both, weights)
    assert np.allclose(workload(40, momentum=momentum, kept_weight=kept), weights)
    assert (column >= 0).all()


def test_the_closed_form_of_prefix_sums_is_that_of_the_paper() -> None:
    expected = [1.0]
    for place in range(1, 9):
        expected.append(expected[-1] * (2 * place - 1) / (2 * place))
    assert np.allclose(square_root(9), expected)
    assert np.allclose(inverse_square_root(4), [1.0, -1 / 2, -1 / 8, -1 / 16])


@pytest.mark.parametrize("bands", [1, 2, 7, 64])
def test_an_inverse_series_is_the_column_of_the_inverse_matrix(bands: int) -> None:
    column = np.array(square_root(bands))
    expected = np.linalg.inv(toeplitz(column, 50))[:, 0]
    assert np.allclose(inverse(column, 50), expected, atol=1e-13)
    assert prefix_error(column, 50) == pytest.approx(
        math.sqrt(np.square(np.tril(np.ones((50, 50))) @ np.linalg.inv(toeplitz(column, 50))).sum() / 50)
    )


def cost(column: tuple[float, ...], steps: int, momentum: float = 0.0) -> float:
    return math.hypot(*column) * prefix_error(column, steps, momentum=momentum)


@pytest.mark.parametrize(("bands", "steps", "momentum"), [(2, 30, 0.0), (8, 200, 0.0), (16, 400, 0.9)])
def test_optimised_coefficients_beat_the_closed_form_and_every_small_change(
    bands: int, steps: int, momentum: float
) -> None:
    found = optimised(bands, steps, momentum=momentum)
    best = cost(found, steps, momentum)
    assert best < cost(square_root(bands, momentum=momentum), steps, momentum)
    assert found[0] == 1
    assert min(found) >= 0
    rng = np.random.default_rng(0)
    for change in rng.normal(0, 0.01, size=(40, bands - 1)):
        moved = (1.0, *np.clip(np.array(found[1:]) + change, 0, 1).tolist())
        assert cost(moved, steps, momentum) > best * (1 - 1e-9)


def test_two_bands_are_optimised_as_a_search_over_a_grid_says() -> None:
    grid = np.linspace(0, 1, 2001)
    best = min(grid, key=lambda value: cost((1.0, float(value)), 60))
    assert optimised(2, 60)[1] == pytest.approx(best, abs=1e-3)


def worst_square(column: Array, *, batches: int, epochs: int, uses: int, rows: int) -> float:
    """Return the squared sensitivity of records used once an epoch, by trying all signs and places."""
    whole = toeplitz(column, batches * epochs)[:rows]
    best = 0.0
    for place in range(batches):
        columns = whole[:, [place + batches * use for use in range(uses)]]
        for signs in itertools.product((-1.0, 1.0), repeat=uses):
            best = max(best, float(np.square(columns @ np.array(signs)).sum()))
    return best


@pytest.mark.parametrize("coefficients", [(1.0, -0.5), (1.0, -0.9), inverse_square_root(3), inverse_square_root(12)])
@pytest.mark.parametrize(("batches", "epochs"), [(1, 4), (3, 4), (5, 2)])
def test_a_run_of_some_epochs_moves_by_at_most_its_share_of_the_bound(
    coefficients: tuple[float, ...], batches: int, epochs: int
) -> None:
    column = inverse(coefficients, batches * epochs)
    square = fixed_order_square(np.maximum(column, 0), batches=batches, epochs=epochs)
    for uses in range(1, epochs + 1):
        for rows in range((uses - 1) * batches + 1, uses * batches + 1):
            found = worst_square(column, batches=batches, epochs=epochs, uses=uses, rows=rows)
            assert found <= uses * square * (1 + 1e-12)
    everything = worst_square(column, batches=batches, epochs=epochs, uses=epochs, rows=batches * epochs)
    assert everything == pytest.approx(epochs * square), "the whole run is charged exactly"


@pytest.mark.parametrize("bands", [0, -1, 1.5, factorisation.MOST_BANDS + 1])
def test_numbers_of_bands_that_are_none_are_refused(bands: int) -> None:
    with pytest.raises(ArgumentError, match="bands"):
        square_root(bands)


@pytest.mark.parametrize("momentum", [-0.1, 1.1, math.nan])
def test_a_momentum_outside_the_unit_interval_is_refused(momentum: float) -> None:
    with pytest.raises(ArgumentError, match="momentum"):
        workload(3, momentum=momentum)
