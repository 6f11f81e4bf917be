"""Units from second moments: the optimal rules, floors, and what noise alone may not do to them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privet.errors import ArgumentError
from privet.mechanism.geometry import Factored
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.second_moments import (
    AxisMoments,
    History,
    axis_moments,
    factored_geometry,
    floored,
)

LAYOUT = Layout.of([("w", (6, 5)), ("b", (6,))], OneGroup())


@pytest.mark.parametrize("bad", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [-1.0, -2.0], []], ids=str)
def test_moments_that_say_nothing_are_refused(bad: list[float]) -> None:
    with pytest.raises(ArgumentError, match="Second moments"):
        floored(np.array(bad))


def units_of(geometry: Factored) -> np.ndarray:
    parts = [
        np.multiply.outer(rows, columns) * np.ones((6, 5)) if index == 0 else np.array(rows) * np.ones(6)
        for index, (rows, columns) in enumerate(zip(geometry.rows, geometry.columns, strict=True))
    ]
    return np.concatenate([part.ravel() for part in parts])


def test_units_follow_rows_and_columns_and_have_a_mean_square_of_one() -> None:
    rows, columns = np.arange(1.0, 7.0), np.array([1.0, 4.0, 9.0, 16.0, 25.0])
    squares = np.concatenate([np.multiply.outer(rows, columns).ravel(), np.full(6, 10.0)])
    for power in (0.25, 0.5):
        units = units_of(factored_geometry(LAYOUT, axis_moments(LAYOUT, squares), power=power, floor=1e-6))
        assert float((units**2).mean()) == pytest.approx(1.0)
        ratio = units / squares**power
        assert np.ptp(ratio) < 1e-9 * ratio.mean(), "a matrix of rank one is recovered"


def test_parameters_about_which_nothing_is_known_get_equal_units() -> None:
    moments = [AxisMoments(rows=np.zeros(6), columns=np.zeros(5)), AxisMoments(rows=np.ones(6), columns=np.zeros(0))]
    geometry = factored_geometry(LAYOUT, moments, power=0.5, floor=0.02)
    assert len(set(geometry.rows[0])) == 1


def test_noise_alone_leaves_units_nearly_equal_and_a_signal_shows() -> None:
    layout = Layout.of([("w", (40, 100))], OneGroup())
    rng, history, raw = np.random.default_rng(0), History(layout=layout), History(layout=layout, floor_errors=0.0)
    signal = np.zeros((40, 100))
    signal[:4] = 5.0
    with_signal = History(layout=layout)
    for _ in range(200):
        noise = 3.0 * rng.normal(size=4000)
        history.note(noise, 3.0)
        raw.note(noise, 3.0)
        with_signal.note(noise + signal.ravel(), 3.0)
    spread, unfloored = (np.ptp(np.log(h.geometry(power=0.5).rows[0])) for h in (history, raw))
    assert spread < 0.3
    assert unfloored > 2 * spread
    rows = np.array(with_signal.geometry(power=0.5).rows[0])
    assert rows[:4].min() > 2 * rows[4:].max()


def test_history_without_releases_is_refused() -> None:
    with pytest.raises(ArgumentError, match="released"):
        History(layout=LAYOUT).geometry(power=0.5)
    with pytest.raises(ArgumentError, match="coordinates"):
        History(layout=LAYOUT).note(np.zeros(3), 1.0)
