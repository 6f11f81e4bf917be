"""Many random settings: bounds bracket each other, move the right way with every argument, and never misbehave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.accounting.accountants import PLD, RDP, tightest
from privet.accounting.batch_sizes import waste_table
from privet.accounting.gaussian_dp import clt_mu, gdp_delta, gdp_epsilon, gdp_mu
from privet.accounting.guarantee import guarantee
from privet.accounting.private_selection import RandomSearch
from privet.errors import PrivetError
from privet.mechanism.events import DpEvent, PureDpEvent, TotalVariationDpEvent
from privet.mechanism.truncated import overflow_probability
from privet.vocabulary import Adjacency, Unit

QUICK = PLD(coarsest_spacing=1e-2)
_SECONDS = 5.0


def poisson(rate: float, multiplier: float, steps: int) -> DpEvent:
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)), steps
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_random_plans_are_bracketed_and_grow_with_what_reveals_more(
    seed: int, adjacency: Adjacency, record_property: Callable[[str, object], None]
) -> None:
    # Twelve cases of 42: more than 500 plans. Each is compared with one that reveals more, argument by argument.
    rng = np.random.default_rng([seed, list(Adjacency).index(adjacency)])
    for number in range(42):
        rate, multiplier = 10 ** rng.uniform(-4, -0.1), 10 ** rng.uniform(-0.2, 1.3)
        steps, delta = round(10 ** rng.uniform(0, 3)), 10 ** rng.uniform(-9, -1)
        more = [
            (rate, multiplier, 2 * steps, delta),
            (min(1.0, 1.5 * rate), multiplier, steps, delta),
            (rate, multiplier / 1.3, steps, delta),
            (rate, multiplier, steps, delta / 10),
        ][number % 4]
        here, there = (bounds(q, z, t, d, adjacency) for q, z, t, d in ((rate, multiplier, steps, delta), more))
        case = (rate, multiplier, steps, delta)
        assert 0 <= here[0] <= here[1] * (1 + 1e-3) + 1e-3, case
        assert there[0] >= here[0] * (1 - 2e-3) - 2e-3, case
        assert there[1] >= here[1] * (1 - 1e-9), case
    record_property("plans", 42)


def bounds(rate: float, multiplier: float, steps: int, delta: float, adjacency: Adjacency) -> tuple[float, float]:
    event = poisson(rate, multiplier, steps)
    tight = tightest(event, adjacency, delta, pld=QUICK).epsilon(event, delta=delta, adjacency=adjacency)
    return tight, RDP().epsilon(event, delta=delta, adjacency=adjacency)


# ------------------------------------------------------------------------------------------------------------ fuzzing

ODD = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300, 5e-324, 0.5, 1 - 1e-16, 709.9, 2**53]


def any_number(rng: np.random.Generator) -> float:
    if rng.random() < 0.3:
        return float(ODD[rng.integers(len(ODD))])
    return float(10 ** rng.uniform(-8, 4) * (1 if rng.random() < 0.95 else -1))


def any_share(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-9, 0)) if rng.random() < 0.8 else any_number(rng)


def any_count(rng: np.random.Generator) -> int:
    return int(10 ** rng.uniform(0, 4)) if rng.random() < 0.9 else int(rng.integers(-3, 2**40))


def any_event(rng: np.random.Generator) -> DpEvent:
    inner = [
        lambda: dp_event.GaussianDpEvent(any_number(rng)),
        lambda: dp_event.LaplaceDpEvent(any_number(rng)),
        lambda: PureDpEvent(epsilon=any_number(rng)),
        lambda: TotalVariationDpEvent(distance=any_share(rng)),
        lambda: dp_event.NoOpDpEvent(),
    ][int(rng.integers(5))]()
    kinds: list[Callable[[], DpEvent]] = [
        lambda: inner,
        lambda: dp_event.PoissonSampledDpEvent(any_share(rng), inner),
        lambda: dp_event.SampledWithoutReplacementDpEvent(any_count(rng), any_count(rng), inner),
        lambda: dp_event.TruncatedSubsampledGaussianDpEvent(
            any_count(rng), any_share(rng), any_count(rng), any_number(rng)
        ),
        lambda: RandomSearch(mean=any_number(rng), shape=any_number(rng)).event(inner),
    ]
    return dp_event.SelfComposedDpEvent(kinds[int(rng.integers(len(kinds)))](), any_count(rng))


def cheap_answer(rng: np.random.Generator) -> float:
    """Return one answer of a closed form to odd figures."""
    a, b, share, count = any_number(rng), any_number(rng), any_share(rng), any_count(rng)
    few = min(count, 10**4)
    answers: list[Callable[[], float]] = [
        lambda: gdp_delta(a, b),
        lambda: gdp_epsilon(a, share),
        lambda: gdp_mu(a, share),
        lambda: clt_mu(rate=share, noise_multiplier=a, num_steps=count).mu,
        lambda: overflow_probability(dataset_size=max(count, 1), rate=share, max_batch_size=1),
        lambda: max(
            row.padding for row in waste_table(dataset_size=count, batch_size=few, physical_batch_size=any_count(rng))
        ),
    ]
    return answers[int(rng.integers(len(answers)))]()


def dear_answer(rng: np.random.Generator) -> float:
    """Return the guarantee of an odd event."""
    event, adjacency = any_event(rng), list(Adjacency)[int(rng.integers(3))]
    return guarantee(event, delta=any_share(rng), adjacency=adjacency, unit=Unit.RECORD).epsilon


@pytest.mark.parametrize(("answer", "count"), [(cheap_answer, 4700), (dear_answer, 300)], ids=["closed", "events"])
def test_odd_inputs_get_a_sound_answer_or_a_reason_and_never_hang(
    answer: Callable[[np.random.Generator], float], count: int
) -> None:
    refused = 0
    for seed in range(count):
        start = time.process_time()
        try:
            value = answer(np.random.default_rng(seed))
        except PrivetError as error:
            value, refused = 0.0, refused + bool(str(error))
        assert value >= 0, (seed, value)
        assert time.process_time() - start < _SECONDS, seed
    assert 0 < refused < 0.9 * count, "both kinds of outcome must occur"


# -------------------------------------------------------------------------------------------------------------- speed


@pytest.mark.parametrize(
    "event",
    [
        poisson(0.001, 1.0, 10**6),
        poisson(256 / 60000, 4.0, 10**6),
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1000.0), 10**6),
        dp_event.SelfComposedDpEvent(
            dp_event.SampledWithoutReplacementDpEvent(10**5, 100, dp_event.GaussianDpEvent(4.0)), 10**6
        ),
    ],
    ids=["poisson", "poisson, more noise", "full batch", "fixed size"],
)
def test_a_million_steps_are_accounted_in_two_seconds(event: DpEvent) -> None:
    start = time.process_time()
    promise = guarantee(event, delta=1e-6, adjacency=Adjacency.REPLACE_ONE, unit=Unit.RECORD)
    assert 0 < promise.epsilon < 100
    assert time.process_time() - start < 2.0
