"""The library as a witness: it agrees with our accountants, and a wrong figure does not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from privet.accounting.guarantee import guarantee
from privet.accounting.library_check import confirmed, library_epsilon
from privet.errors import AccountingError
from privet.vocabulary import Adjacency, Unit


def sampled(rate: float, multiplier: float, steps: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("event", [sampled(0.01, 1.0, 200), sampled(0.05, 2.0, 100), GaussianDpEvent(2.0)])
def test_the_library_confirms_our_epsilon(event: DpEvent, adjacency: Adjacency) -> None:
    promise = guarantee(event, delta=1e-5, adjacency=adjacency, unit=Unit.RECORD)
    found = confirmed(promise, event)
    assert found.witness == pytest.approx(promise.epsilon, rel=3e-3)
    assert "confirmed by the dp-accounting library" in found.statement()


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_an_epsilon_off_by_two_percent_is_not_confirmed(factor: float) -> None:
    event = sampled(0.01, 1.0, 200)
    promise = guarantee(event, delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    with pytest.raises(AccountingError, match="disagree"):
        confirmed(replace(promise, epsilon=factor * promise.epsilon), event)


def test_out_of_range_the_library_is_not_asked() -> None:
    event = sampled(0.01, 1.0, 200)
    assert library_epsilon(event, delta=1e-14, adjacency=Adjacency.ADD_REMOVE) is None
    assert library_epsilon(sampled(0.01, 1e-4, 5), delta=1e-5, adjacency=Adjacency.ADD_REMOVE) is None
