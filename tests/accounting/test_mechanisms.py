"""Truncated and fixed-size samples, Laplace noise and pure guarantees against values that share no method with them.

The references: numerical inversion of the Laplace transform of the loss (truncated and fixed-size samples), closed
forms for one step, brackets from losses rounded down and up, and the exact hockey-stick of small mechanisms.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.accountants import PLD, RDP, ExactGaussian, ExactPure, tightest
from privet.accounting.calibration import calibrate_noise
from privet.accounting.dominating_pairs import (
    FixedSizeExchange,
    LaplaceRemoval,
    LossPair,
    Mirrored,
    Mixture,
    PureRemoval,
)
from privet.accounting.guarantee import guarantee
from privet.accounting.library_check import confirmed, library_epsilon
from privet.accounting.loss_distribution import compose_losses, plan_grid
from privet.accounting.mechanisms import TruncatedGaussian
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import DpEvent, PureDpEvent
from privet.vocabulary import Adjacency, Unit

ADD_REMOVE, REPLACE_ONE, ZERO_OUT = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT


def times(event: DpEvent, count: int) -> DpEvent:
    return dp_event.SelfComposedDpEvent(event, count)


def truncated(size: int, batch: float, limit: int, multiplier: float, steps: int = 1) -> DpEvent:
    return times(dp_event.TruncatedSubsampledGaussianDpEvent(size, batch / size, limit, multiplier), steps)


def without_replacement(size: int, batch: int, multiplier: float, steps: int = 1) -> DpEvent:
    return times(dp_event.SampledWithoutReplacementDpEvent(size, batch, dp_event.GaussianDpEvent(multiplier)), steps)


def poisson(rate: float, multiplier: float, steps: int = 1) -> DpEvent:
    return times(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)), steps)


def laplace(rate: float, scale: float, steps: int = 1) -> DpEvent:
    return times(dp_event.PoissonSampledDpEvent(rate, dp_event.LaplaceDpEvent(scale)), steps)


def pure(rate: float, epsilon: float, steps: int = 1) -> DpEvent:
    return times(dp_event.PoissonSampledDpEvent(rate, PureDpEvent(epsilon=epsilon)), steps)


def one_direction(pair: LossPair, steps: int = 1) -> Any:
    parts: list[tuple[LossPair | Mixture, int]] = [(pair, steps)]
    return compose_losses(parts, plan_grid(parts))


def assert_tight_from_above(value: float, reference: float, rel: float = 1e-3) -> None:
    assert reference * (1 - 1e-6) <= value <= reference * (1 + rel)


# ------------------------------------------------------------------------------------------------- reference values


@pytest.mark.parametrize(
    ("size", "batch", "limit", "multiplier", "steps", "epsilon"),
    [
        (60000, 256, 320, 1.1, 14063, 2.4086683421),
        (60000, 256, 307, 1.1, 14063, 2.8618046050),
        (50000, 1024, 1126, 1.0, 3000, 7.7368891925),
        (50000, 1024, 1075, 1.0, 3000, 14.6866907377),
        (10000, 100, 130, 1.0, 1000, 3.6840727611),
    ],
)
def test_truncated_samples_agree_with_the_reference(
    size: int, batch: int, limit: int, multiplier: float, steps: int, epsilon: float
) -> None:
    event = truncated(size, batch, limit, multiplier, steps)
    found = PLD().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE)
    assert_tight_from_above(found, epsilon)
    assert found <= RDP().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE)


@pytest.mark.parametrize(
    ("batch", "increase"),
    [(180, 0.0000), (190, 0.0006), (200, 0.015), (205, 0.066), (210, 0.23), (220, 0.69), (230, 1.28)],
)
def test_truncation_costs_what_the_design_rule_says(batch: int, increase: float) -> None:
    steps = math.ceil(60 * 60000 / batch)
    quick = PLD(coarsest_spacing=1e-2)
    plain = quick.epsilon(poisson(batch / 60000, 1.1, steps), delta=1e-5, adjacency=ADD_REMOVE)
    cut = quick.epsilon(truncated(60000, batch, 256, 1.1, steps), delta=1e-5, adjacency=ADD_REMOVE)
    assert cut / plain - 1 == pytest.approx(increase, abs=max(1.5e-3, 0.02 * increase))


@pytest.mark.parametrize(
    ("size", "batch", "multiplier", "steps", "delta", "epsilon"),
    [
        (100, 1, 2.0, 1000, 1e-5, 2.19890995),
        (60, 1, 15.0, 24000, 1e-5, 1.39795102),
        (1000, 5, 4.0, 10000, 1e-5, 1.18699896),
        (50, 1, 5.0, 2000, 1e-6, 1.88753421),
        (10, 1, 4.0, 100, 1e-5, 2.54086208),
        (60, 1, 5.0, 24000, 1e-5, 5.55702975),
        (50000, 1024, 1.0, 3000, 1e-5, 56.0803),
        (60000, 256, 1.1, 14063, 1e-5, 18.4544),
        (50000, 250, 1.3, 12000, 1e-5, 11.5758),
    ],
)
def test_fixed_size_samples_agree_with_the_reference(
    size: int, batch: int, multiplier: float, steps: int, delta: float, epsilon: float
) -> None:
    event = without_replacement(size, batch, multiplier, steps)
    found = PLD().epsilon(event, delta=delta, adjacency=REPLACE_ONE)
    digits = 1e-6 if epsilon < 10 else 1e-5
    assert epsilon * (1 - digits) <= found <= epsilon * (1 + 1e-3)
    assert found <= RDP().epsilon(event, delta=delta, adjacency=REPLACE_ONE)
    assert found >= PLD().epsilon(poisson(batch / size, multiplier, steps), delta=delta, adjacency=REPLACE_ONE)


@pytest.mark.parametrize(
    ("rate", "scale", "epsilon", "removed", "added"),
    [
        (0.1, 1.0, 0.05, 0.0254013898251428, 0.00821794835084622),
        (0.1, 1.0, 0.1, 0.0131218308858313, 0.0),
        (0.5, 0.5, 1.0, 0.1125649734774, 0.0),
        (0.01, 0.3, 0.1, 0.00359015868743414, 0.0),
        (1.0, 2.0, 0.25, 0.117503097415405, 0.117503097415405),
    ],
)
def test_one_laplace_release_has_its_closed_form(
    rate: float, scale: float, epsilon: float, removed: float, added: float
) -> None:
    pair = LaplaceRemoval(rate=rate, noise_multiplier=scale)
    assert one_direction(pair).delta(np.array([epsilon]))[0] == pytest.approx(removed, rel=1e-4)
    assert one_direction(Mirrored(pair=pair)).delta(np.array([epsilon]))[0] == pytest.approx(added, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "scale", "steps", "epsilon", "low", "high"),
    [
        (0.1, 1.0, 10, 0.3, 0.02894065, 0.02894252),
        (0.1, 2.0, 100, 1.0, 0.00485904, 0.00486430),
        (0.02, 1.0, 100, 0.3, 0.00527053, 0.00527682),
        (0.5, 5.0, 50, 1.5, 0.00686964, 0.00687224),
        (0.01, 0.5, 200, 0.3, 0.0248640, 0.0248954),
    ],
)
def test_composed_laplace_releases_lie_in_their_bracket(
    rate: float, scale: float, steps: int, epsilon: float, low: float, high: float
) -> None:
    event = laplace(rate, scale, steps)
    assert low <= PLD().delta(event, epsilon=epsilon, adjacency=ADD_REMOVE) <= high
    assert RDP().delta(event, epsilon=epsilon, adjacency=ADD_REMOVE) >= low


@pytest.mark.parametrize(
    ("rate", "each", "steps", "delta", "epsilon"),
    [
        (0.01, 1.0, 100, 1e-5, 0.373401268864),
        (0.1, 0.5, 50, 1e-5, 1.38493382253),
        (0.02, 2.0, 200, 1e-6, 3.36930208106),
        (0.005, 4.0, 300, 1e-5, 3.08283746262),
        (1.0, 0.1, 100, 1e-5, 4.30679137252),
    ],
)
def test_pure_releases_agree_in_every_accountant(
    rate: float, each: float, steps: int, delta: float, epsilon: float
) -> None:
    event = pure(rate, each, steps)
    assert tightest(event, ADD_REMOVE, delta) == ExactPure()
    assert ExactPure().epsilon(event, delta=delta, adjacency=ADD_REMOVE) == pytest.approx(epsilon, rel=1e-11)
    assert_tight_from_above(PLD().epsilon(event, delta=delta, adjacency=ADD_REMOVE), epsilon)
    assert RDP().epsilon(event, delta=delta, adjacency=ADD_REMOVE) >= epsilon


# ----------------------------------------------------------------------------------- the mechanisms themselves, small


Mixed = list[tuple[float, float]]


def hockey_stick(first: Mixed, second: Mixed, std: float, epsilon: float) -> float:
    """Return the divergence of two mixtures of normals (weight, mean) by the trapezoid rule."""
    x = np.linspace(-12 * std - 12, 12 * std + 12, 40001)

    def density(parts: Mixed) -> Any:
        return sum(w * np.exp(-0.5 * ((x - m) / std) ** 2) for w, m in parts) / (std * math.sqrt(2 * math.pi))

    return float(np.trapezoid(np.maximum(density(first) - math.exp(epsilon) * density(second), 0), x))


def truncated_sums(size: int, rate: float, limit: int, mine: float, other: float) -> Mixed:
    """Return the law of the sum of a truncated sample in which one record gives ``mine`` and all others ``other``."""
    parts = []
    for others, sampled in itertools.product(range(size), (0, 1)):
        chance = math.comb(size - 1, others) * rate**others * (1 - rate) ** (size - 1 - others)
        chance *= rate if sampled else 1 - rate
        total = others + sampled
        kept = min(1.0, limit / total) if total else 0.0
        if sampled:
            parts.append((chance * kept, mine + other * (min(total, limit) - 1)))
            parts.append((chance * (1 - kept), other * limit))
        else:
            parts.append((chance, other * min(total, limit)))
    return [part for part in parts if part[0] > 0]


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("size", "rate", "limit", "std"), [(6, 0.4, 2, 1.0), (10, 0.3, 3, 2.0), (20, 0.2, 3, 0.7)])
def test_no_truncated_mechanism_reveals_more_than_its_charge(
    size: int, rate: float, limit: int, std: float, adjacency: Adjacency
) -> None:
    event = dp_event.TruncatedSubsampledGaussianDpEvent(size, rate, limit, std)
    changed = -1.0 if adjacency is REPLACE_ONE else 0.0
    for epsilon in (0.1, 0.5, 1.5):
        charged = PLD().delta(event, epsilon=epsilon, adjacency=adjacency)
        for other in (-1.0, 0.0, 1.0):
            with_it = truncated_sums(size, rate, limit, 1.0, other)
            without_it = truncated_sums(size, rate, limit, changed, other)
            for first, second in ((with_it, without_it), (without_it, with_it)):
                assert hockey_stick(first, second, std, epsilon) <= charged * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize(("size", "batch", "std"), [(10, 2, 1.0), (4, 1, 3.0), (30, 10, 2.0)])
def test_the_worst_fixed_size_mechanism_reveals_exactly_its_charge(size: int, batch: int, std: float) -> None:
    rate = batch / size
    # All other records give -1. The exchanged one gives 1 or -1: the sums differ by 2 when it is drawn.
    with_it, without_it = [(1 - rate, 0.0), (rate, 2.0)], [(1.0, 0.0)]
    for epsilon in (0.05, 0.3, 1.0):
        exact = max(hockey_stick(with_it, without_it, std, epsilon), hockey_stick(without_it, with_it, std, epsilon))
        charged = PLD().delta(without_replacement(size, batch, std), epsilon=epsilon, adjacency=REPLACE_ONE)
        assert charged == pytest.approx(exact, rel=1e-4, abs=1e-9)


# --------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_truncation_costs_less_the_more_room_there_is_and_nothing_in_the_end(adjacency: Adjacency) -> None:
    def epsilon(limit: int) -> float:
        event = truncated(10000, 100, limit, 1.0, 1000)
        return PLD(coarsest_spacing=1e-2).epsilon(event, delta=1e-5, adjacency=adjacency)

    found = [epsilon(limit) for limit in (110, 120, 130, 150, 190)]
    plain = PLD(coarsest_spacing=1e-2).epsilon(poisson(0.01, 1.0, 1000), delta=1e-5, adjacency=adjacency)
    assert found == sorted(found, reverse=True)
    assert plain * (1 - 1e-3) <= found[-1] <= plain * (1 + 1e-3)


def test_the_library_confirms_truncated_samples() -> None:
    event = truncated(1000, 20, 30, 2.0, 50)
    promise = guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert confirmed(promise, event).witness == pytest.approx(promise.epsilon, rel=3e-3)
    assert library_epsilon(without_replacement(10, 2, 1.0), delta=1e-5, adjacency=REPLACE_ONE) is None


def test_the_library_agrees_on_laplace_noise() -> None:
    library = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    library.compose(laplace(0.1, 2.0, 100))
    found = PLD().epsilon(laplace(0.1, 2.0, 100), delta=1e-5, adjacency=ADD_REMOVE)
    assert found == pytest.approx(library.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(
    "pair",
    [
        FixedSizeExchange(rate=0.1, noise_multiplier=1.0),
        FixedSizeExchange(rate=0.9, noise_multiplier=6.0),
        LaplaceRemoval(rate=0.2, noise_multiplier=0.5),
        LaplaceRemoval(rate=1.0, noise_multiplier=3.0),
        Mirrored(pair=LaplaceRemoval(rate=0.7, noise_multiplier=1.0)),
        PureRemoval(rate=0.3, epsilon=1.5),
        Mirrored(pair=PureRemoval(rate=1.0, epsilon=0.2)),
    ],
    ids=str,
)
def test_losses_and_masses_of_a_pair_belong_together(pair: LossPair) -> None:
    low, high = pair.ends(6.0)
    x = np.linspace(low, high, 2002)
    losses = pair.loss(x)
    assert np.all(np.diff(losses) >= 0)
    upper, lower = pair.upper_mass(x[:-1], x[1:]), pair.lower_mass(x[:-1], x[1:])
    inner = (upper > 1e-250) & (lower > 1e-250)
    ratio = np.log(upper[inner] / lower[inner])
    assert np.all(ratio >= losses[:-1][inner] - 1e-6)
    assert np.all(ratio <= losses[1:][inner] + 1e-6)
    whole = np.array([-np.inf]), np.array([np.inf])
    assert float(pair.upper_mass(*whole)[0]) == pytest.approx(1, abs=1e-12)
    assert float(pair.lower_mass(*whole)[0]) == pytest.approx(1, abs=1e-12)


def test_a_fixed_size_pair_is_its_own_reverse() -> None:
    pair = FixedSizeExchange(rate=0.2, noise_multiplier=1.5)
    epsilons = np.linspace(0.0, 3.0, 50)
    assert one_direction(pair, 5).delta(epsilons) == pytest.approx(
        one_direction(Mirrored(pair=pair), 5).delta(epsilons), rel=1e-9, abs=1e-15
    )


def test_a_record_is_in_a_full_batch_as_often_as_in_any() -> None:
    mechanism = TruncatedGaussian(dataset_size=10, rate=0.4, max_batch_size=3, noise_multiplier=1.0)
    kept = sum(
        math.comb(9, others) * 0.4**others * 0.6 ** (9 - others) * 0.4 * min(1.0, 3 / (others + 1))
        for others in range(10)
    )
    free = 0.4 * (1 - mechanism.full_probability)
    assert free + mechanism.full_probability * mechanism.full_rate == pytest.approx(kept, rel=1e-12)


@given(st.floats(0.01, 1), st.floats(0.2, 20), st.integers(1, 500), st.floats(-9, -2))
@settings(deadline=None, max_examples=12)
def test_pld_and_rdp_bracket_laplace_and_pure_releases(rate: float, scale: float, steps: int, digits: float) -> None:
    spacing = 1e-2  # losses are rounded up to this grid, so a single release may cost that much more
    delta, quick = 10**digits, PLD(coarsest_spacing=spacing)
    for event in (laplace(rate, scale, steps), pure(rate, 1 / scale, steps)):
        if quick.supports(event, ADD_REMOVE) is None:
            found = quick.epsilon(event, delta=delta, adjacency=ADD_REMOVE)
            assert 0 <= found <= RDP().epsilon(event, delta=delta, adjacency=ADD_REMOVE) * (1 + 2e-3) + spacing
    exact = ExactPure().epsilon(pure(rate, 1 / scale, steps), delta=delta, adjacency=ADD_REMOVE)
    assert exact <= RDP().epsilon(pure(rate, 1 / scale, steps), delta=delta, adjacency=ADD_REMOVE) * (1 + 1e-9)


def test_kinds_of_releases_compose_with_each_other() -> None:
    event = dp_event.ComposedDpEvent(
        [truncated(1000, 20, 30, 1.5, 50), laplace(0.1, 3.0, 20), pure(1.0, 0.05, 3), dp_event.GaussianDpEvent(5.0)]
    )
    alone = [tightest(part, ADD_REMOVE, 1e-5).epsilon(part, delta=1e-5, adjacency=ADD_REMOVE) for part in event.events]
    together = guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert max(alone) < together.epsilon < sum(alone)
    assert together.accountant == "PLD"


def test_noise_is_calibrated_for_every_kind_of_sample() -> None:
    for adjacency, make in (
        (ADD_REMOVE, lambda z: truncated(1000, 20, 40, z, 10)),
        (REPLACE_ONE, lambda z: without_replacement(1000, 20, z, 10)),
    ):
        noise = calibrate_noise(make, epsilon=0.3, delta=1e-5, adjacency=adjacency, rel_tol=1e-2)
        spent = PLD().epsilon(make(noise), delta=1e-5, adjacency=adjacency)
        assert 0.3 * (1 - 1e-2) <= spent <= 0.3


# -------------------------------------------------------------------------------------------------------------- edges


def test_what_reveals_nothing_and_what_hides_nothing() -> None:
    for event in (truncated(10, 5, 3, math.inf), laplace(0.0, 1.0), laplace(0.5, math.inf), pure(0.5, 0.0)):
        assert guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD).epsilon == 0
    for event in (truncated(10, 5, 3, 0.0), laplace(0.5, 0.0), pure(0.5, math.inf), without_replacement(10, 5, 0.0)):
        assert guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD).epsilon == math.inf


def test_a_sample_of_everything_is_no_sample() -> None:
    whole = without_replacement(10, 10, 2.0, 3)
    assert tightest(whole, ADD_REMOVE, 1e-5) == ExactGaussian()
    roomy = truncated(100, 20, 100, 2.0, 3)
    assert PLD().epsilon(roomy, delta=1e-5, adjacency=ADD_REMOVE) == PLD().epsilon(
        poisson(0.2, 2.0, 3), delta=1e-5, adjacency=ADD_REMOVE
    )


def test_a_full_rate_cut_to_a_few_costs_about_a_sample_of_fixed_size() -> None:
    cut = truncated(50, 50, 5, 3.0, 10)
    fixed = PLD().epsilon(without_replacement(50, 5, 3.0, 10), delta=1e-5, adjacency=REPLACE_ONE)
    assert 0.5 * fixed < PLD().epsilon(cut, delta=1e-5, adjacency=ADD_REMOVE) < 2 * fixed


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (without_replacement(10, 2, 1.0), ADD_REMOVE),
        (without_replacement(10, 2, 1.0), ZERO_OUT),
        (laplace(0.5, 1.0), REPLACE_ONE),
        (laplace(1.0, 1.0), REPLACE_ONE),
        (pure(0.5, 1.0), REPLACE_ONE),
    ],
    ids=str,
)
def test_adjacencies_without_a_proof_are_refused_by_every_accountant(event: DpEvent, adjacency: Adjacency) -> None:
    with pytest.raises(AccountingError, match="No accountant can bound"):
        tightest(event, adjacency, 1e-5)


def test_exchanging_a_unit_costs_a_pure_release_twice() -> None:
    twice = ExactPure().epsilon(pure(1.0, 0.2, 30), delta=1e-5, adjacency=ADD_REMOVE)
    assert ExactPure().epsilon(pure(1.0, 0.1, 30), delta=1e-5, adjacency=REPLACE_ONE) == pytest.approx(twice, rel=1e-12)


def test_a_sample_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot be drawn"):
        RDP().epsilon(without_replacement(3, 5, 1.0), delta=1e-5, adjacency=REPLACE_ONE)


def test_several_releases_on_one_laplace_sample_are_not_guessed_at() -> None:
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(1.0), 2))
    with pytest.raises(AccountingError):
        tightest(event, ADD_REMOVE, 1e-5)
