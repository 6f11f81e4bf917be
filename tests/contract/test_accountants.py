"""Laws of every accountant over every kind of event: never below what an attacker finds, and never better off by more.

An attacker who sees one release gains at least what integration over its two densities says; no composition that holds
this release can reveal less.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting import DpEvent, dp_event
from numpy.typing import NDArray

from privet.accounting.accountants import ACCOUNTANTS, PLD, RDP, Accountant, ExactGaussian, ExactPure, tightest
from privet.accounting.curves import PrivacyCurve
from privet.accounting.event_reader import read_releases
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import (
    L2LaplaceDpEvent,
    ProductLaplaceDpEvent,
    PureDpEvent,
    RandomAllocationDpEvent,
    SampledRecordsDpEvent,
    TotalVariationDpEvent,
)
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]
ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
MEMBERS: Mapping[type, Sequence[Accountant]] = {
    ExactGaussian: [ExactGaussian()],
    ExactPure: [ExactPure()],
    PLD: [PLD()],
    RDP: [RDP()],
}
ALL = [accountant for accountants in MEMBERS.values() for accountant in accountants]
each_accountant = pytest.mark.parametrize("accountant", ALL, ids=repr)
EPSILONS, DELTA = np.array([0.0, 0.3, 1.0, 2.5]), 1e-5

# ------------------------------------------------------------------------------- what one release tells, by integration

GRID = np.linspace(-40.0, 40.0, 40_001)


def normal(mean: float, std: float) -> Array:
    return np.exp(-(((GRID - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))


def laplace(mean: float, scale: float) -> Array:
    return np.exp(-np.abs(GRID - mean) / scale) / (2 * scale)


def told(present: Array, absent: Array) -> Array:
    """Return the hockey-stick divergence at every epsilon, the larger of the two directions."""
    width = GRID[1] - GRID[0]
    both = [
        [np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * width for epsilon in EPSILONS]
        for one, other in ((present, absent), (absent, present))
    ]
    return np.maximum(*map(np.array, both))


def from_coin(epsilon: float) -> Array:
    likely = math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.maximum(likely - np.exp(EPSILONS) * (1 - likely), 0.0)


def sampled_normal(rate: float, std: float, away: float = 0.0) -> Array:
    """Two normal mixtures: the record is drawn at this rate and counts for 1, or for ``away`` in the other data set."""
    stays = (1 - rate) * normal(0.0, std)
    return told(stays + rate * normal(1.0, std), stays + rate * normal(away, std))


def sampled_normals(rate: float, std: float, num_records: int) -> Array:
    """A normal mixture against one normal: a person's records are drawn one by one at this rate."""
    chances = [math.comb(num_records, j) * rate**j * (1 - rate) ** (num_records - j) for j in range(num_records + 1)]
    return told(np.sum([p * normal(j, std) for j, p in enumerate(chances)], axis=0), normal(0.0, std))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Events of one kind.

    Attributes:
        event: From a size of noise to an event; more noise reveals less. None where noise has no part in it.
        least: What one release of the event at noise 1 tells at every epsilon, at least.
        adjacency: Under which it is accounted.
    """

    event: Callable[[float], DpEvent]
    least: Array
    adjacency: Adjacency = ADD_REMOVE
    has_noise: bool = True


def _gaussian(z: float) -> DpEvent:
    return dp_event.GaussianDpEvent(z)


def _truncated(limit: int) -> Callable[[float], DpEvent]:
    return lambda z: dp_event.TruncatedSubsampledGaussianDpEvent(300, 0.2, limit, z)


NOTHING = np.zeros(len(EPSILONS))
EVENTS: Mapping[type, Sequence[Case]] = {
    dp_event.NoOpDpEvent: [Case(event=lambda z: dp_event.NoOpDpEvent(), least=NOTHING, has_noise=False)],
    dp_event.NonPrivateDpEvent: [
        Case(event=lambda z: dp_event.NonPrivateDpEvent(), least=np.ones(len(EPSILONS)), has_noise=False)
    ],
    dp_event.GaussianDpEvent: [
        Case(event=_gaussian, least=sampled_normal(1.0, 1.0)),
        Case(event=_gaussian, least=sampled_normal(1.0, 1.0, -1.0), adjacency=REPLACE_ONE),
    ],
    dp_event.LaplaceDpEvent: [Case(event=dp_event.LaplaceDpEvent, least=told(laplace(1.0, 1.0), laplace(0.0, 1.0)))],
    dp_event.PoissonSampledDpEvent: [
        Case(event=lambda z: dp_event.PoissonSampledDpEvent(0.2, _gaussian(z)), least=sampled_normal(0.2, 1.0)),
        Case(
            event=lambda z: dp_event.PoissonSampledDpEvent(0.2, _gaussian(z)),
            least=sampled_normal(0.2, 1.0, -1.0),
            adjacency=REPLACE_ONE,
        ),
    ],
    dp_event.TruncatedSubsampledGaussianDpEvent: [
        # a limit that is never reached leaves the sample by coins, and one that is reached reveals more
        Case(event=_truncated(limit), least=sampled_normal(0.2, 1.0))
        for limit in (140, 60)
    ],
    dp_event.SampledWithoutReplacementDpEvent: [
        Case(
            event=lambda z: dp_event.SampledWithoutReplacementDpEvent(10, 2, _gaussian(z)),
            least=sampled_normal(0.2, 1.0, -1.0),
            adjacency=REPLACE_ONE,
        )
    ],
    RandomAllocationDpEvent: [
        # one of the two steps alone shows at least what a fair coin over it shows
        Case(
            event=lambda z: RandomAllocationDpEvent(steps=2, event=_gaussian(z)),
            least=sampled_normal(0.5, 1.0),
        ),
        Case(
            event=lambda z: RandomAllocationDpEvent(steps=40, event=_gaussian(z)),
            least=sampled_normal(1 / 40, 1.0),
        ),
    ],
    dp_event.RepeatAndSelectDpEvent: [
        Case(event=lambda z: dp_event.RepeatAndSelectDpEvent(_gaussian(z), 4, 1), least=sampled_normal(1.0, 1.0))
    ],
    PureDpEvent: [Case(event=lambda z: PureDpEvent(epsilon=1 / z), least=from_coin(1.0))],
    L2LaplaceDpEvent: [
        Case(
            event=lambda z: L2LaplaceDpEvent(noise_multiplier=math.sqrt(2) * z, num_coordinates=1),
            least=told(laplace(1.0, 1.0), laplace(0.0, 1.0)),
        ),
        Case(event=lambda z: L2LaplaceDpEvent(noise_multiplier=4 * z, num_coordinates=15), least=NOTHING),
    ],
    ProductLaplaceDpEvent: [
        Case(
            event=lambda z: ProductLaplaceDpEvent(scales=(z, 2 * z), counts=(3, 2)),
            least=told(laplace(1.0, 1.0), laplace(0.0, 1.0)),
        )
    ],
    SampledRecordsDpEvent: [
        Case(
            event=lambda z: SampledRecordsDpEvent(sampling_probability=0.2, num_records=3, noise_multiplier=z),
            least=sampled_normals(0.2, 1.0, 3),
        ),
        Case(
            event=lambda z: SampledRecordsDpEvent(sampling_probability=0.2, num_records=1, noise_multiplier=z),
            least=sampled_normal(0.2, 1.0),
        ),
        Case(
            event=lambda z: SampledRecordsDpEvent(sampling_probability=1.0, num_records=3, noise_multiplier=3 * z),
            least=sampled_normal(1.0, 1.0),
        ),
    ],
    TotalVariationDpEvent: [
        Case(
            event=lambda z: dp_event.ComposedDpEvent([_gaussian(z), TotalVariationDpEvent(distance=1e-9)]),
            least=sampled_normal(1.0, 1.0),
        )
    ],
    dp_event.SelfComposedDpEvent: [
        Case(event=lambda z: dp_event.SelfComposedDpEvent(_gaussian(z), 4), least=sampled_normal(1.0, 0.5)),
        Case(
            event=lambda z: dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.2, _gaussian(z)), 30),
            least=sampled_normal(0.2, 1.0),
        ),
        Case(event=lambda z: dp_event.SelfComposedDpEvent(PureDpEvent(epsilon=0.2 / z), 9), least=from_coin(0.2)),
    ],
    dp_event.ComposedDpEvent: [
        Case(
            event=lambda z: dp_event.ComposedDpEvent(
                [dp_event.LaplaceDpEvent(z), dp_event.PoissonSampledDpEvent(0.2, _gaussian(z)), _gaussian(2 * z)]
            ),
            least=told(laplace(1.0, 1.0), laplace(0.0, 1.0)),
        )
    ],
}
ALL_CASES = [case for cases in EVENTS.values() for case in cases]
CASES = [
    pytest.param(case, id=f"{kind.__name__}-{number}")
    for kind, cases in EVENTS.items()
    for number, case in enumerate(cases)
]
each_case = pytest.mark.parametrize("case", CASES)
MECHANISMS = {
    type(mechanism)
    for cases in EVENTS.values()
    for case in cases
    for mechanism, _ in read_releases(case.event(1.0)).others
}
"""The mechanisms that these events are accounted by."""


@functools.cache
def curve_of(accountant: Accountant, place: int, adjacency: Adjacency, noise: float, times: int) -> PrivacyCurve | None:
    """Compose the event of a case this many times; None where the accountant refuses, and then with a reason."""
    event = ALL_CASES[place].event(noise)
    event = event if times == 1 else dp_event.SelfComposedDpEvent(event, times)
    if accountant.supports(event, adjacency) is None:
        return accountant.curve(event, adjacency)
    with pytest.raises(AccountingError):
        accountant.curve(event, adjacency)
    return None


def curves(case: Case, *, noise: float = 1.0, times: int = 1, adjacency: Adjacency | None = None) -> list[PrivacyCurve]:
    """Return the curves of all accountants that support the event."""
    chosen = case.adjacency if adjacency is None else adjacency
    place = next(place for place, other in enumerate(ALL_CASES) if other is case)
    found = [curve_of(accountant, place, chosen, noise, times) for accountant in ALL]
    return [curve for curve in found if curve is not None]


@each_case
def test_somebody_gives_a_curve_and_whoever_does_not_gives_a_reason(case: Case) -> None:
    found = curves(case)
    assert found
    assert all(curve.accountant for curve in found)
    for accountant in ALL:
        reason = accountant.supports(case.event(1.0), case.adjacency)
        assert reason is None or reason.endswith(".")


@each_case
def test_is_never_below_what_one_release_tells(case: Case) -> None:
    for curve in curves(case):
        deltas = curve.deltas(EPSILONS)
        assert (deltas >= case.least * (1 - 1e-4) - 1e-9).all(), curve.accountant
        assert ((deltas >= 0) & (deltas <= 1)).all()
        assert (np.diff(deltas) <= 1e-12).all(), "a larger epsilon needs no larger delta"


@each_case
def test_more_noise_and_fewer_releases_cost_no_more(case: Case) -> None:
    here, twice = (min(curve.epsilon(DELTA) for curve in curves(case, times=times)) for times in (1, 2))
    assert twice >= here * (1 - 2e-3)
    if case.has_noise:
        assert min(curve.epsilon(DELTA) for curve in curves(case, noise=1.5)) < here


@each_case
def test_replacing_a_record_costs_at_least_as_much_as_removing_it(case: Case) -> None:
    removed, replaced = (
        {curve.accountant: curve.epsilon(DELTA) for curve in curves(case, adjacency=adjacency)}
        for adjacency in (ADD_REMOVE, REPLACE_ONE)
    )
    for name in removed.keys() & replaced.keys():
        assert removed[name] <= replaced[name] * (1 + 1e-3)


@each_case
def test_accountants_agree_and_the_tightest_is_the_one_that_is_taken(case: Case) -> None:
    found = [curve.epsilon(DELTA) for curve in curves(case)]
    taken = tightest(case.event(1.0), case.adjacency, DELTA).name
    chosen = [curve.epsilon(DELTA) for curve in curves(case) if curve.accountant == taken]
    assert not chosen or min(chosen) <= min(found) * (1 + 2e-3) + 1e-9
    finite = [value for value in found if math.isfinite(value)]
    assert len(finite) in (0, len(found)), "what hides nothing hides nothing from anybody"
    if finite:
        assert max(finite) <= 1.8 * min(finite) + 1e-9


@each_case
def test_epsilon_and_delta_are_read_from_one_curve(case: Case) -> None:
    for curve in curves(case):
        epsilon = curve.epsilon(DELTA)
        assert epsilon >= 0
        if math.isfinite(epsilon):
            assert float(curve.deltas(np.array([epsilon]))[0]) <= DELTA * (1 + 1e-3) + 1e-15


@each_accountant
def test_what_it_does_not_know_is_refused_by_name(accountant: Accountant) -> None:
    for event in (dp_event.ZCDpEvent(0.1), dp_event.SingleEpochTreeAggregationDpEvent(1.0, 4)):
        with pytest.raises(AccountingError, match=type(event).__name__):
            accountant.curve(event, ADD_REMOVE)
    with pytest.raises(ArgumentError, match="adjacency"):
        accountant.supports(dp_event.GaussianDpEvent(1.0), "add_or_remove")  # type: ignore[arg-type]


@each_accountant
def test_has_a_name_of_its_own(accountant: Accountant) -> None:
    assert [type(other) for other in ALL if other.name == accountant.name] == [type(accountant)] * len(
        MEMBERS[type(accountant)]
    )
    assert type(accountant) in ACCOUNTANTS
