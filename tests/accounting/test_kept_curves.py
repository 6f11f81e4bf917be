"""Composed curves that are kept: never another event's, never changed, never more than fits."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.accounting.accountants import PLD
from privet.accounting.curves import LossCurves
from privet.accounting.kept_curves import KeptCurves
from privet.accounting.loss_distribution import LossCurve
from privet.errors import AccountingError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency


def sampled(*, rate: float = 0.02, noise: float = 1.0, steps: int = 100) -> DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)


def of_points(number: int) -> LossCurves:
    deltas = np.linspace(1.0, 0.0, number)
    one = LossCurve(spacing=0.1, first=0, deltas=deltas, above=deltas.copy(), weighted=deltas.copy())
    return LossCurves(directions=(one,))


def never() -> LossCurves:
    raise AssertionError("composed again")


def test_runs_that_differ_in_anything_have_figures_of_their_own() -> None:
    add, replace = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
    asked = [
        (sampled(), add, PLD()),
        (sampled(), replace, PLD()),
        (sampled(rate=0.021), add, PLD()),
        (sampled(noise=0.99), add, PLD()),
        (sampled(steps=101), add, PLD()),
        (sampled(), add, PLD(coarsest_spacing=1e-2)),
        (dp_event.ComposedDpEvent([sampled(), dp_event.GaussianDpEvent(9.0)]), add, PLD()),
    ]
    found = [pld.epsilon(event, delta=1e-6, adjacency=adjacency) for event, adjacency, pld in asked]
    assert len(set(found)) == len(found)
    assert [pld.epsilon(event, delta=1e-6, adjacency=adjacency) for event, adjacency, pld in asked] == found


def test_the_same_run_is_composed_once() -> None:
    first = PLD().curve(sampled(steps=77), Adjacency.ADD_REMOVE)
    assert PLD().curve(sampled(steps=77), Adjacency.ADD_REMOVE) is first


def test_nobody_can_change_a_curve_that_another_will_be_given() -> None:
    curve = PLD().curve(sampled(), Adjacency.ADD_REMOVE)
    assert isinstance(curve, LossCurves)
    for direction in curve.directions:
        for array in (direction.deltas, direction.above, direction.weighted):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0.0


def test_curves_used_last_are_kept_as_far_as_they_fit() -> None:
    kept = KeptCurves(most_points=10)
    first = kept.get("first", lambda: of_points(4))
    kept.get("second", lambda: of_points(4))
    assert kept.get("first", never) is first
    kept.get("third", lambda: of_points(4))
    assert kept.num_points == 8
    assert kept.get("first", never) is first
    with pytest.raises(AssertionError, match="composed again"):
        kept.get("second", never)


def test_a_curve_that_is_too_long_is_given_and_not_kept() -> None:
    kept = KeptCurves(most_points=10)
    assert kept.get("long", lambda: of_points(11)).directions[0].deltas.shape == (11,)
    assert kept.num_points == 0


def test_a_composition_that_fails_is_asked_again() -> None:
    kept = KeptCurves(most_points=10)

    def refused() -> LossCurves:
        raise AccountingError("no")

    with pytest.raises(AccountingError):
        kept.get("event", refused)
    made = of_points(3)
    assert kept.get("event", lambda: made) is made
