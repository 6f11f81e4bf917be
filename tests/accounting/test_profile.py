"""Profiles and trade-off curves: many points from one composition, all on the safe side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.special import ndtr, ndtri

from privet.accounting.accountants import PLD
from privet.accounting.gaussian_dp import gdp_delta
from privet.accounting.profile import delta_at, privacy_profile, trade_off, true_positive_bound
from privet.errors import ArgumentError
from privet.vocabulary import Adjacency

ADD_REMOVE = Adjacency.ADD_REMOVE
EVENT = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.0)), 500)
RATES = [0.0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0]


def test_a_profile_reads_the_same_curve_both_ways() -> None:
    down = privacy_profile(EVENT, adjacency=ADD_REMOVE, deltas=[1e-2, 1e-5, 1e-9])
    back = privacy_profile(EVENT, adjacency=ADD_REMOVE, epsilons=down.epsilons)
    assert back.deltas == pytest.approx([1e-2, 1e-5, 1e-9], rel=1e-6)
    assert down.accountant == "PLD"
    assert delta_at(EVENT, epsilon=float(down.epsilons[1]), adjacency=ADD_REMOVE) == pytest.approx(1e-5, rel=1e-6)


def test_a_profile_of_a_gaussian_is_exact() -> None:
    profile = privacy_profile(dp_event.GaussianDpEvent(2.0), adjacency=ADD_REMOVE, epsilons=[0.0, 1.0, math.inf])
    assert profile.deltas == pytest.approx([gdp_delta(0.5, 0.0), gdp_delta(0.5, 1.0), 0.0])


def test_one_composition_serves_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = PLD.curve

    def counted(self: PLD, event: Any, adjacency: Adjacency) -> Any:
        calls.append(event)
        return original(self, event, adjacency)

    monkeypatch.setattr(PLD, "curve", counted)
    privacy_profile(EVENT, adjacency=ADD_REMOVE, epsilons=np.linspace(0, 5, 300))
    trade_off(EVENT, adjacency=ADD_REMOVE, false_positive_rates=np.linspace(0, 1, 300))
    assert len(calls) == 2


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_trade_off_of_a_gaussian_is_its_closed_form_from_below(mu: float) -> None:
    bound = trade_off(dp_event.GaussianDpEvent(1 / mu), adjacency=ADD_REMOVE, false_positive_rates=RATES)
    exact = ndtr(ndtri(1 - np.array(RATES)) - mu)
    assert np.all(bound <= exact + 1e-12)
    assert bound == pytest.approx(exact, abs=2e-4)


def test_a_trade_off_is_convex_decreasing_and_below_guessing() -> None:
    rates = np.linspace(0, 1, 101)
    bound = trade_off(EVENT, adjacency=ADD_REMOVE, false_positive_rates=rates)
    assert np.all(np.diff(bound) <= 1e-12)
    assert np.all(np.diff(bound, 2) >= -1e-9)
    assert np.all(bound <= 1 - rates + 1e-12)
    assert bound[-1] == 0


def test_the_trade_off_at_the_ends() -> None:
    nothing_hidden = trade_off(dp_event.GaussianDpEvent(0.0), adjacency=ADD_REMOVE, false_positive_rates=RATES)
    assert np.all(nothing_hidden == 0)
    nothing_shown = trade_off(dp_event.NoOpDpEvent(), adjacency=ADD_REMOVE, false_positive_rates=RATES)
    assert nothing_shown == pytest.approx(1 - np.array(RATES))


def test_the_true_positive_bound_is_the_trade_off_of_one_point() -> None:
    assert true_positive_bound(0.0, 0.0, 0.3) == pytest.approx(0.3)
    assert true_positive_bound(1.0, 0.01, 0.1) == pytest.approx(math.e * 0.1 + 0.01)
    assert true_positive_bound(1.0, 0.0, 0.9) == pytest.approx(1 - math.exp(-1) * 0.1)
    assert true_positive_bound(math.inf, 0.0, 0.1) == 1.0


@pytest.mark.parametrize(
    "points",
    [
        {},
        {"epsilons": [1.0], "deltas": [1e-5]},
        {"epsilons": [-1.0]},
        {"epsilons": [math.nan]},
        {"epsilons": ["1"]},
        {"deltas": [0.0]},
        {"deltas": [math.nan]},
        {"deltas": [True]},
    ],
)
def test_wrong_points_are_refused(points: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        privacy_profile(dp_event.GaussianDpEvent(1.0), adjacency=ADD_REMOVE, **points)


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, "0.1", True])
def test_wrong_rates_are_refused(rate: Any) -> None:
    with pytest.raises(ArgumentError):
        trade_off(dp_event.GaussianDpEvent(1.0), adjacency=ADD_REMOVE, false_positive_rates=[rate])
