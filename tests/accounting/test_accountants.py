"""Accountants against reference values that share no method with them, and the laws that bind them together.

The references: closed forms for one step, quadrature in two dimensions for two steps, numerical inversion of the
Laplace transform of the loss (ten digits) for many.
"""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.accountants import PLD, RDP, Accountant, ExactGaussian, curve, tightest
from privet.accounting.dominating_pairs import LossPair, Removal, Replacement, Reversed
from privet.accounting.loss_distribution import MAX_POINTS, compose_losses, plan_grid
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import DpEvent, compose
from privet.vocabulary import Adjacency

ADD_REMOVE, REPLACE_ONE, ZERO_OUT = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
ACCOUNTANTS: list[Accountant] = [ExactGaussian(), PLD(), RDP()]

# rate, multiplier, epsilon -> delta when one unit is removed, added, replaced
ONE_STEP: list[tuple[float, float, float, float, float, float | None]] = [
    (0.01, 1.0, 0.1, 7.290037695761226e-5, 0.0, 9.331845682732146e-5),
    (0.01, 1.0, 0.5, 2.214519013153062e-7, 0.0, 2.455648058484533e-7),
    (0.1, 2.0, 0.2, 2.885711118012615e-4, 0.0, 1.389205568309841e-3),
    (0.5, 1.0, 1.0, 2.886761783763035e-2, 0.0, 9.335797496934036e-2),
    (0.001, 0.5, 0.05, 8.82085441184066e-5, 0.0, 8.97575691840576e-5),
    (1.0, 1.0, 1.0, 0.1269367375066439, 0.1269367375066439, 0.5098616600546702),
    (0.02, 1.0, 0.01, 5.26572188949868e-3, 1.94661959547664e-3, None),
]
# rate, multiplier, epsilon -> delta after two steps, one unit removed
TWO_STEPS = [
    (0.01, 1.0, 0.1, 1.5451857458824e-4),
    (0.1, 2.0, 0.2, 9.4825857707038e-4),
    (0.5, 1.0, 1.0, 7.1796635892948e-2),
    (0.1, 1.0, 1.0, 5.1416042790667e-4),
]
# rate, multiplier, steps, delta -> epsilon when one unit is removed, added, replaced
MANY_STEPS: list[tuple[float, float, int, float, float, float | None, float]] = [
    (0.01, 1.0, 1000, 1e-5, 1.828236667, 1.416661948, 2.843440259),
    (0.02, 1.0, 500, 1e-6, 3.213574254, 2.189913009, 4.744920836),
    (0.005, 1.3, 12000, 1e-5, 1.994723917, 1.906859021, 3.704816257),
    (0.1, 2.0, 100, 1e-5, 2.337399593, 1.881035711, 4.368096796),
    (0.001, 0.8, 100000, 1e-7, 3.226228971, 2.994648702, 5.064534318),
    (1 / 60, 5.0, 24000, 1e-5, 2.094467649, 2.082329918, 4.542929431),
    (1 / 60, 15.0, 24000, 1e-5, 0.617035791, None, 1.317117342),
    (1024 / 50000, 1.0, 3000, 1e-5, 7.2181818667, None, 12.4160692),
    (256 / 60000, 1.1, 14063, 1e-5, 2.3816897261, None, 4.2214699),
    (256 / 60000, 1.1, 3516, 1e-5, 1.1338747152, None, 1.9287223),
    (32 / 550152, 0.4, 54076, 1 / 550152, 5.1633316824, None, 5.2332721),
    (0.001, 0.6, 10000, 1e-6, 3.1521911108, None, 3.4546420),
    (0.05, 4.0, 2000, 1e-5, 2.3208610791, None, 4.9765939),
]
# (0.01, 1.0) for 1000 steps: delta -> epsilon, one unit removed
SMALL_DELTAS = [(1e-10, 3.290443751), (1e-12, 3.914298156), (1e-16, 5.161800649), (1e-20, 6.361700204)]
# [(rate, multiplier, steps), ...], delta -> epsilon, one unit removed
MIXED: list[tuple[list[tuple[float, float, int]], float, float]] = [
    ([(0.01, 1.0, 500), (0.02, 1.5, 300)], 1e-5, 1.6825951577),
    ([(0.05, 2.0, 200), (1.0, 3.0, 1)], 1e-5, 2.0690213960),
    ([(0.01, 0.8, 1000), (0.01, 1.2, 1000), (0.01, 2.0, 1000)], 1e-6, 4.0433161656),
]


def sampled(rate: float, multiplier: float, steps: int = 1) -> DpEvent:
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    return dp_event.SelfComposedDpEvent(event, steps)


def assert_tight_from_above(value: float, reference: float, rel: float = 1e-3) -> None:
    assert reference * (1 - 1e-6) <= value <= reference * (1 + rel)


def one_direction(pair: LossPair, steps: int) -> Any:
    parts = [(pair, steps)]
    return compose_losses(parts, plan_grid(parts))


# ------------------------------------------------------------------------------------------------- reference values


@pytest.mark.parametrize(("rate", "multiplier", "epsilon", "removed", "added", "replaced"), ONE_STEP)
def test_one_step_has_its_closed_form(
    rate: float, multiplier: float, epsilon: float, removed: float, added: float, replaced: float | None
) -> None:
    removal = Removal(rate=rate, noise_multiplier=multiplier)
    at = np.array([epsilon])
    assert_tight_from_above(one_direction(removal, 1).delta(at)[0], removed)
    reverse = one_direction(Reversed(pair=removal), 1).delta(at)[0]
    assert added * (1 - 1e-6) <= reverse <= added * 1.001 + 1e-13
    event = sampled(rate, multiplier)
    assert_tight_from_above(PLD().delta(event, epsilon=epsilon, adjacency=ADD_REMOVE), max(removed, added))
    if replaced is not None:
        assert_tight_from_above(PLD().delta(event, epsilon=epsilon, adjacency=REPLACE_ONE), replaced)


@pytest.mark.parametrize(("rate", "multiplier", "epsilon", "delta"), TWO_STEPS)
def test_two_steps_agree_with_quadrature(rate: float, multiplier: float, epsilon: float, delta: float) -> None:
    found = PLD().delta(sampled(rate, multiplier, 2), epsilon=epsilon, adjacency=ADD_REMOVE)
    assert_tight_from_above(found, delta)


@pytest.mark.parametrize(("rate", "multiplier", "steps", "delta", "removed", "added", "replaced"), MANY_STEPS)
def test_many_steps_agree_with_the_reference_in_every_direction(
    rate: float, multiplier: float, steps: int, delta: float, removed: float, added: float | None, replaced: float
) -> None:
    event = sampled(rate, multiplier, steps)
    for adjacency in (ADD_REMOVE, ZERO_OUT):
        assert_tight_from_above(PLD().epsilon(event, delta=delta, adjacency=adjacency), removed)
    assert_tight_from_above(PLD().epsilon(event, delta=delta, adjacency=REPLACE_ONE), replaced)
    if added is not None:
        pair = Reversed(pair=Removal(rate=rate, noise_multiplier=multiplier))
        assert_tight_from_above(one_direction(pair, steps).epsilon(delta), added)
    for adjacency, truth in ((ADD_REMOVE, removed), (REPLACE_ONE, replaced)):
        loose = RDP().epsilon(event, delta=delta, adjacency=adjacency)
        assert truth <= loose <= truth * 1.3


@pytest.mark.parametrize(("delta", "epsilon"), SMALL_DELTAS)
def test_small_deltas_use_the_accountant_that_can_be_trusted_there(delta: float, epsilon: float) -> None:
    event = sampled(0.01, 1.0, 1000)
    accountant = tightest(event, ADD_REMOVE, delta)
    found = accountant.epsilon(event, delta=delta, adjacency=ADD_REMOVE)
    if delta >= 1e-12:
        assert accountant == PLD()
        assert_tight_from_above(found, epsilon)
    else:
        assert accountant == RDP()
        assert epsilon <= found <= epsilon * 1.12
        with pytest.raises(AccountingError, match="1e-12"):
            PLD().epsilon(event, delta=delta, adjacency=ADD_REMOVE)


@pytest.mark.parametrize(("steps", "delta", "epsilon"), MIXED)
def test_mixed_steps_agree_with_the_reference_in_any_order(
    steps: list[tuple[float, float, int]], delta: float, epsilon: float
) -> None:
    parts = [sampled(*step) for step in steps]
    found = PLD().epsilon(dp_event.ComposedDpEvent(parts), delta=delta, adjacency=ADD_REMOVE)
    assert_tight_from_above(found, epsilon)
    assert PLD().epsilon(dp_event.ComposedDpEvent(parts[::-1]), delta=delta, adjacency=ADD_REMOVE) == found


def test_the_replacement_convention_of_the_underlying_library_has_not_changed() -> None:
    """Two conventions live in one library: if either number moves, every conversion here must be looked at again."""
    event = dp_event.GaussianDpEvent(1.0)
    by_loss = pld.PLDAccountant(NeighboringRelation.REPLACE_ONE)
    by_loss.compose(event)
    assert by_loss.get_epsilon(1e-5) == pytest.approx(9.99725615, rel=1e-7)
    by_renyi = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    by_renyi.compose(event)
    assert by_renyi.get_epsilon(1e-5) == pytest.approx(4.72850707, rel=1e-7)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
def test_replacing_one_unit_is_twice_the_signal_in_every_accountant(accountant: Accountant) -> None:
    replaced = accountant.epsilon(dp_event.GaussianDpEvent(1.0), delta=1e-5, adjacency=REPLACE_ONE)
    removed = accountant.epsilon(dp_event.GaussianDpEvent(0.5), delta=1e-5, adjacency=ADD_REMOVE)
    assert replaced == pytest.approx(removed, rel=1e-12)
    assert replaced == pytest.approx(9.997256, rel=0.1)


@pytest.mark.parametrize(
    ("adjacency", "relation"),
    [(ADD_REMOVE, NeighboringRelation.ADD_OR_REMOVE_ONE), (REPLACE_ONE, NeighboringRelation.REPLACE_ONE)],
)
@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.05, 1.5, 50), (0.3, 3.0, 20), (0.01, 0.7, 200)])
def test_loss_distributions_agree_with_those_of_the_underlying_library(
    adjacency: Adjacency, relation: NeighboringRelation, rate: float, multiplier: float, steps: int
) -> None:
    event = sampled(rate, multiplier, steps)
    theirs = pld.PLDAccountant(relation)
    theirs.compose(event)
    ours = PLD().curve(event, adjacency)
    for delta in (1e-2, 1e-5, 1e-8):
        assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon(delta), rel=1e-5)
    assert ours.deltas(np.array([0.0, 1.0])) == pytest.approx([theirs.get_delta(0.0), theirs.get_delta(1.0)], rel=1e-5)


# ------------------------------------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
@pytest.mark.parametrize(
    "event",
    [
        dp_event.NoOpDpEvent(),
        sampled(0.0, 1.0, 10),
        sampled(0.0, 0.0, 10),
        sampled(0.1, math.inf, 10),
        sampled(0.1, 1.0, 0),
        dp_event.GaussianDpEvent(math.inf),
        dp_event.ComposedDpEvent([]),
    ],
    ids=str,
)
def test_what_reveals_nothing_costs_nothing(accountant: Accountant, event: DpEvent) -> None:
    for adjacency in Adjacency:
        assert accountant.epsilon(event, delta=1e-5, adjacency=adjacency) == 0
        assert accountant.delta(event, epsilon=0.0, adjacency=adjacency) == 0


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
@pytest.mark.parametrize(
    "event",
    [
        dp_event.NonPrivateDpEvent(),
        dp_event.GaussianDpEvent(0.0),
        sampled(0.1, 0.0),
        dp_event.ComposedDpEvent([sampled(0.1, 1.0), dp_event.GaussianDpEvent(0.0)]),
        dp_event.GaussianDpEvent(1e-200),
    ],
    ids=str,
)
def test_what_hides_nothing_costs_infinity(accountant: Accountant, event: DpEvent) -> None:
    for adjacency in Adjacency:
        assert accountant.epsilon(event, delta=1e-5, adjacency=adjacency) == math.inf
        assert accountant.delta(event, epsilon=10.0, adjacency=adjacency) == 1


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_full_sampling_is_the_exact_gaussian(adjacency: Adjacency) -> None:
    event = sampled(1.0, 3.0, 4)
    assert tightest(event, adjacency, 1e-5) == ExactGaussian()
    exact = ExactGaussian().epsilon(event, delta=1e-5, adjacency=adjacency)
    assert_tight_from_above(PLD().epsilon(event, delta=1e-5, adjacency=adjacency), exact)
    assert exact == ExactGaussian().epsilon(dp_event.GaussianDpEvent(1.5), delta=1e-5, adjacency=adjacency)


def test_releases_on_one_and_the_same_sample_are_one_joint_release() -> None:
    joint = dp_event.PoissonSampledDpEvent(0.1, dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 4))
    once = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.0))
    for accountant in (PLD(), RDP()):
        assert accountant.epsilon(joint, delta=1e-5, adjacency=ADD_REMOVE) == pytest.approx(
            accountant.epsilon(once, delta=1e-5, adjacency=ADD_REMOVE), rel=1e-12
        )


@pytest.mark.parametrize("multiplier", [0.02, 1e-3, 1e-6, 1e-100])
def test_tiny_noise_falls_back_to_rdp_instead_of_filling_the_memory(multiplier: float) -> None:
    event = sampled(0.01, multiplier, 100)
    assert tightest(event, ADD_REMOVE, 1e-5) == RDP()
    assert RDP().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE) > 100
    with pytest.raises(AccountingError):
        PLD().curve(event, ADD_REMOVE)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(1e-9, 50.0, 10), (0.5, 1e9, 3), (0.1, 1.0, 10**12)])
def test_what_a_grid_cannot_hold_is_refused_with_a_reason(rate: float, multiplier: float, steps: int) -> None:
    event = sampled(rate, multiplier, steps)
    reason = PLD().supports(event, ADD_REMOVE)
    assert reason is not None
    assert tightest(event, ADD_REMOVE, 1e-5) == RDP()
    assert RDP().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE) >= 0


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.9, 0.4, 10000), (1e-4, 0.3, 10**6), (0.5, 0.1, 10)])
def test_no_composition_exceeds_the_cap_on_points_and_memory(rate: float, multiplier: float, steps: int) -> None:
    event = sampled(rate, multiplier, steps)
    assert PLD().num_points(event, ADD_REMOVE) <= 2 * MAX_POINTS
    tracemalloc.start()
    try:
        PLD().curve(event, ADD_REMOVE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300e6


def test_events_that_no_accountant_knows_are_refused_with_every_reason() -> None:
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.NonPrivateDpEvent())
    with pytest.raises(AccountingError, match=r"exact Gaussian.*PLD.*RDP"):
        tightest(event, ADD_REMOVE, 1e-5)
    for accountant in ACCOUNTANTS:
        assert "NonPrivateDpEvent" in str(accountant.supports(event, ADD_REMOVE))
        with pytest.raises(AccountingError):
            accountant.curve(event, ADD_REMOVE)


def test_the_exact_accountant_refuses_sampling() -> None:
    assert ExactGaussian().supports(sampled(0.5, 1.0), ADD_REMOVE) is not None
    with pytest.raises(AccountingError):
        ExactGaussian().curve(sampled(0.5, 1.0), ADD_REMOVE)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
@pytest.mark.parametrize("bad", [math.nan, 0.0, 1.0, -1.0, 2.0, math.inf, "1e-5", True, None])
def test_a_wrong_delta_is_refused(accountant: Accountant, bad: Any) -> None:
    with pytest.raises(ArgumentError):
        accountant.epsilon(dp_event.GaussianDpEvent(1.0), delta=bad, adjacency=ADD_REMOVE)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
@pytest.mark.parametrize("bad", [math.nan, -1.0, "1", True, None])
def test_a_wrong_epsilon_is_refused(accountant: Accountant, bad: Any) -> None:
    with pytest.raises(ArgumentError):
        accountant.delta(dp_event.GaussianDpEvent(1.0), epsilon=bad, adjacency=ADD_REMOVE)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
@pytest.mark.parametrize("bad", ["add_or_remove", None, 1, NeighboringRelation.REPLACE_ONE])
def test_a_wrong_adjacency_is_refused(accountant: Accountant, bad: Any) -> None:
    with pytest.raises(ArgumentError, match="adjacency"):
        accountant.epsilon(dp_event.GaussianDpEvent(1.0), delta=1e-5, adjacency=bad)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda accountant: accountant.name)
@pytest.mark.parametrize(
    "event",
    [
        dp_event.GaussianDpEvent(math.nan),
        dp_event.GaussianDpEvent(-1.0),
        sampled(1.5, 1.0),
        sampled(math.nan, 1.0),
        sampled(0.1, 1.0, -1),
    ],
    ids=str,
)
def test_a_damaged_event_is_refused(accountant: Accountant, event: DpEvent) -> None:
    with pytest.raises(ArgumentError):
        accountant.epsilon(event, delta=1e-5, adjacency=ADD_REMOVE)


# -------------------------------------------------------------------------------------------------------------- laws

rates = st.floats(-4, -0.1).map(lambda exponent: 10**exponent)
noises = st.floats(-0.3, 1.3).map(lambda exponent: 10**exponent)
counts = st.floats(0, 4).map(lambda exponent: round(10**exponent))
deltas = st.floats(-10, -1).map(lambda exponent: 10**exponent)


@settings(deadline=None, max_examples=25)
@given(rates, noises, counts, deltas, st.sampled_from(Adjacency))
def test_every_bound_brackets_and_grows_with_what_reveals_more(
    rate: float, multiplier: float, steps: int, delta: float, adjacency: Adjacency
) -> None:
    def epsilon(rate: float, multiplier: float, steps: int, delta: float) -> float:
        event = sampled(rate, multiplier, steps)
        return tightest(event, adjacency, delta, pld=fast).epsilon(event, delta=delta, adjacency=adjacency)

    fast = PLD(coarsest_spacing=1e-2)
    here = epsilon(rate, multiplier, steps, delta)
    loose = RDP().epsilon(sampled(rate, multiplier, steps), delta=delta, adjacency=adjacency)
    assert 0 <= here <= loose * 1.001 + 1e-3
    slack = here * (1 - 2e-3) - 2e-3
    assert epsilon(rate, multiplier, steps * 2, delta) >= slack
    assert epsilon(min(1.0, rate * 1.5), multiplier, steps, delta) >= slack
    assert epsilon(rate, multiplier / 1.3, steps, delta) >= slack
    assert epsilon(rate, multiplier, steps, delta / 10) >= slack


@settings(deadline=None, max_examples=10)
@given(rates, noises, counts, deltas)
def test_replacing_costs_at_least_as_much_as_removing(rate: float, multiplier: float, steps: int, delta: float) -> None:
    event = sampled(rate, multiplier, steps)
    if PLD().supports(event, ADD_REMOVE) is None and PLD().supports(event, REPLACE_ONE) is None:
        removed = PLD().epsilon(event, delta=delta, adjacency=ADD_REMOVE)
        assert removed <= PLD().epsilon(event, delta=delta, adjacency=REPLACE_ONE) * (1 + 1e-3) + 1e-6


def test_composing_in_two_halves_is_composing_once() -> None:
    whole = PLD().epsilon(sampled(0.01, 1.0, 1000), delta=1e-5, adjacency=ADD_REMOVE)
    halves = dp_event.ComposedDpEvent([sampled(0.01, 1.0, 400), sampled(0.01, 1.0, 600)])
    assert PLD().epsilon(halves, delta=1e-5, adjacency=ADD_REMOVE) == pytest.approx(whole, rel=1e-6)
    assert PLD().epsilon(compose([(halves, 1)]), delta=1e-5, adjacency=ADD_REMOVE) == whole


@pytest.mark.parametrize(
    ("accountant", "before"),
    [
        *(pytest.param(each, [], id=f"{each.name}, alone") for each in ACCOUNTANTS),
        *(pytest.param(each, [sampled(0.02, 1.0, 50)], id=f"{each.name}, after steps") for each in (PLD(), RDP())),
    ],
)
def test_nine_releases_on_all_data_cost_what_one_with_a_third_of_their_noise_does(
    accountant: Accountant, before: list[DpEvent]
) -> None:
    many = compose([*((each, 1) for each in before), (dp_event.GaussianDpEvent(6.0), 9)])
    one = compose([*((each, 1) for each in before), (dp_event.GaussianDpEvent(2.0), 1)])
    found, expected = (accountant.epsilon(each, delta=1e-5, adjacency=ADD_REMOVE) for each in (many, one))
    assert found == pytest.approx(expected, rel=1e-6)


def test_beyond_its_grid_a_curve_admits_what_it_left_out() -> None:
    for direction in curve(sampled(0.01, 1.0, 1000), ADD_REMOVE).directions:
        last = direction.spacing * (direction.first + len(direction.deltas) - 1)
        assert float(direction.delta(np.array([last]))[0]) >= 1e-18


def test_a_curve_read_both_ways_closes() -> None:
    drawn = curve(sampled(0.01, 1.0, 1000), ADD_REMOVE)
    for delta in (0.1, 1e-3, 1e-5, 1e-9, 1e-12):
        epsilon = drawn.epsilon(delta)
        assert drawn.deltas(np.array([epsilon]))[0] == pytest.approx(delta, rel=1e-6)
    profile = drawn.deltas(np.linspace(0, 10, 500))
    assert np.all(np.diff(profile) <= 0)
    assert profile[-1] == 1e-12


@pytest.mark.parametrize(
    "pair",
    [
        Removal(rate=0.01, noise_multiplier=0.7),
        Removal(rate=1.0, noise_multiplier=2.0),
        Reversed(pair=Removal(rate=0.2, noise_multiplier=1.0)),
        Replacement(rate=0.05, noise_multiplier=0.5),
        Replacement(rate=0.9, noise_multiplier=4.0),
    ],
    ids=str,
)
def test_losses_and_masses_of_a_pair_belong_together(pair: LossPair) -> None:
    low, high = pair.ends(6.0)
    x = np.linspace(low, high, 2001)
    losses = pair.loss(x)
    assert np.all(np.diff(losses) >= 0)
    steep = np.flatnonzero(np.diff(losses) > 1e-9)
    assert pair.outcome(losses[steep]) == pytest.approx(x[steep], abs=2e-5)
    upper, lower = pair.upper_mass(x[:-1], x[1:]), pair.lower_mass(x[:-1], x[1:])
    inner = upper > 1e-250
    ratio = np.log(upper[inner] / lower[inner])
    assert np.all(ratio >= losses[:-1][inner] - 1e-6)
    assert np.all(ratio <= losses[1:][inner] + 1e-6)
