"""What correlated noise costs: the figures of an independent computation, and what an attacker really gets."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray

from privet.accounting.accountants import curve
from privet.mechanism.clipping import Threshold
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian, CorrelatedNoise
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.factorisation import prefix_error
from privet.mechanism.layout import Layout
from privet.mechanism.sampling import Sampling
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit
from tests.contract.noises import keystream

Array = NDArray[np.float64]


def plan_of(sampling: Sampling, noise: CorrelatedNoise, delta: float, adjacency: Adjacency) -> Plan:
    return Plan(
        sampling=sampling, clipping=Threshold(norm=1.0), noise=noise, delta=delta, adjacency=adjacency, unit=Unit.RECORD
    )


# Independent figures, computed with dp_accounting's privacy-loss distributions: steps, epochs, delta, epsilon, and for
# each number of bands the root mean squared error of prefix sums with square-root coefficients, and the noise
# multiplier where it was noted. Figures have two to four digits.
Cell = tuple[float, float | None]
TABLE: list[tuple[int, float, float, float, dict[int, Cell]]] = [
    (2000, 20, 1e-5, 1.0, {
        1: (58.7, 1.857), 2: (59.5, 2.523), 4: (61.6, 3.488), 8: (64.6, 4.872), 16: (68.2, None), 32: (72.7, None),
        64: (78.9, None)}),
    (2000, 20, 1e-5, 2.0, {
        1: (36.4, 1.151), 2: (35.0, 1.485), 4: (35.1, 1.984), 8: (35.9, None), 16: (37.4, None), 32: (39.5, None),
        64: (42.5, None)}),
    (2000, 20, 1e-5, 8.0, {
        1: (20.4, 0.645), 2: (17.4, 0.736), 4: (15.3, 0.863), 8: (14.0, 1.054), 16: (13.3, 1.332), 32: (13.1, 1.736),
        64: (13.3, None)}),
    (1000, 3, 1e-6, 3.0, {
        1: (14.4, 0.644), 2: (11.7, None), 4: (9.8, None), 8: (8.4, None), 16: (7.5, None), 32: (7.1, 1.296),
        64: (7.1, None)}),
    (1000, 3, 1e-6, 8.0, {
        1: (10.7, 0.480), 4: (7.0, None), 16: (4.9, None), 64: (3.9, None), 256: (3.7, 1.160)}),
    (875, 71.7, 1e-5, 1.0, {1: (191.7, 9.159), 2: (201.6, None), 4: (213.3, None)}),
    (3066, 251, 1e-5, 8.0, {1: (110.8, 2.829), 2: (114.9, None), 4: (120.5, None)}),
]  # fmt: skip
CELLS = [(*setting[:4], bands, cell) for setting in TABLE for bands, cell in setting[4].items()]


@pytest.mark.parametrize(("steps", "epochs", "delta", "epsilon", "bands", "cell"), CELLS)
def test_noise_and_error_of_prefix_sums_are_those_of_an_independent_computation(
    steps: int, epochs: float, delta: float, epsilon: float, bands: int, cell: Cell
) -> None:
    error, multiplier = cell
    sampling = CyclicPoisson(
        groups=bands, rate=bands * epochs / steps, cycles=math.ceil(steps / bands), expected_batch_size=1.0
    )
    noise = BandedGaussian.square_root(bands=bands)
    plan = plan_of(sampling, noise, delta, Adjacency.ADD_REMOVE).calibrated(epsilon=epsilon)
    found = float(plan.noise.noise_multiplier or math.nan)
    assert multiplier is None or found == pytest.approx(multiplier, rel=0.01)
    # the printed error is rounded to its last digit
    digit = 0.05
    assert found * noise.scale * prefix_error(noise.coefficients, steps) == pytest.approx(error, rel=0.01, abs=digit)


def test_a_run_is_charged_as_dp_accounting_charges_its_cycles() -> None:
    noise = BandedGaussian.square_root(bands=8).with_multiplier(1.1)
    sampling = CyclicPoisson.for_dataset(dataset_size=10_000, batch_size=100, groups=8, steps=403)
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    accountant.compose(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(8 * 100 / 10_000, dp_accounting.GaussianDpEvent(1.1)), -(-403 // 8)
        )
    )
    found = plan_of(sampling, noise, 1e-6, Adjacency.ADD_REMOVE).guarantee().epsilon
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-3)


# ------------------------------------------------------------------------------------- what an attacker really gets

TRIALS = 60_000


def releases(piece: CorrelatedNoise, uses: Array) -> Array:
    """Return the released sums of many one-record experiments, one for each coordinate; ``uses`` is steps by trials."""
    layout = Layout(names=("all",), shapes=((uses.shape[1],),), groups=(0,))
    run, source = piece.start(layout, has_mask=False), keystream(17)
    found = []
    for row in uses:
        flat = torch.from_numpy(row.astype(np.float64))
        sums = ClippedSum(flat=flat, layout=layout, sensitivity=Sensitivity(bounds=(1.0,)))
        found.append(run.add(sums, source).flat.numpy())
    return np.array(found)


def rows_of(piece: CorrelatedNoise, seen: Array) -> tuple[Array, Array]:
    """Undo the correlation: multiply by C, so that each row has independent noise."""
    steps = len(seen)
    matrix = np.zeros((steps, steps))
    for age, value in enumerate(piece.coefficients[:steps]):
        matrix += value * np.eye(steps, k=-age)
    if isinstance(piece, BandedInverseGaussian):
        matrix = np.linalg.inv(matrix)
    return np.asarray(matrix @ seen), matrix


def log_ratios(piece: CorrelatedNoise, uses: Array, places: list[int], rate: float) -> Array:
    """Return the exact log-likelihood ratio of a record that may be used at ``places``, each by a coin."""
    rows, matrix = rows_of(piece, releases(piece, uses))
    size = float(piece.noise_multiplier or math.nan) * piece.scale
    total = np.zeros(uses.shape[1])
    if rate == 1:
        shift = matrix[:, places].sum(1)
        return np.asarray((shift @ rows - shift @ shift / 2) / size**2)
    for place in places:  # columns of different uses do not overlap
        shift = matrix[:, place]
        ratio = (shift @ rows - shift @ shift / 2) / size**2
        total += np.log1p(rate * np.expm1(ratio))
    return total


def coins(steps: int, places: list[int], rate: float) -> Array:
    found = np.zeros((steps, TRIALS))
    found[places] = np.random.default_rng(5).random((len(places), TRIALS)) < rate
    return found


def delta_of(piece: CorrelatedNoise, steps: int, places: list[int], rate: float, epsilon: float) -> tuple[float, float]:
    """Return the hockey-stick divergence as estimated from runs with the record, and its standard error."""
    present = log_ratios(piece, coins(steps, places, rate), places, rate)
    values = np.maximum(0.0, -np.expm1(epsilon - present))
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


BANDED = BandedGaussian.square_root(bands=4).with_multiplier(1.2)
INVERSE = BandedInverseGaussian.square_root(bands=4, batches=5, epochs=3).with_multiplier(1.5)
COIN_PLAN = plan_of(
    CyclicPoisson(groups=4, rate=0.5, cycles=5, expected_batch_size=1.0), BANDED, 1e-5, Adjacency.ADD_REMOVE
)
FIXED_PLAN = plan_of(Cyclic(batches=5, epochs=3, expected_batch_size=1.0), INVERSE, 1e-5, Adjacency.ZERO_OUT)


def cases() -> Iterator[tuple[Plan, list[int], float]]:
    for group in (0, 1, 3):
        yield COIN_PLAN, list(range(group, 20, 4)), 0.5
    for place in (0, 2, 4):
        yield FIXED_PLAN, list(range(place, 15, 5)), 1.0


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("plan", "places", "rate"), list(cases()))
def test_the_best_attacker_gets_at_most_what_is_charged_and_nearly_as_much(
    plan: Plan, places: list[int], rate: float, epsilon: float
) -> None:
    noise = plan.noise
    assert isinstance(noise, CorrelatedNoise)
    charged = float(curve(plan.event, plan.adjacency).deltas(np.array([epsilon]))[0])
    found, error = delta_of(noise, plan.num_steps, places, rate, epsilon)
    assert found < charged + 4.5 * error
    is_worst = places[0] == 0  # rows of later groups are cut off by the end of the run
    assert not is_worst or found > 0.97 * charged - 4.5 * error


def test_uses_that_are_closer_than_the_bands_would_break_the_charge() -> None:
    epsilon = 0.5
    charged = float(curve(COIN_PLAN.event, Adjacency.ADD_REMOVE).deltas(np.array([epsilon]))[0])
    whole = plan_of(Cyclic(batches=5, epochs=5, expected_batch_size=1.0), BANDED, 1e-5, Adjacency.ZERO_OUT)
    certain = float(curve(whole.event, Adjacency.ZERO_OUT).deltas(np.array([epsilon]))[0])
    close, error = delta_of(BANDED, 20, [0, 1, 2, 3, 4], 1.0, epsilon)
    assert close > certain + 10 * error
    assert charged < certain


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_of_fewer_epochs_costs_at_most_its_rounds(epochs: int) -> None:
    """The rounds of a run that is broken off are charged as those of the whole: never too little."""
    spent = plan_of(Cyclic(batches=5, epochs=epochs, expected_batch_size=1.0), INVERSE, 1e-5, Adjacency.ZERO_OUT)
    for epsilon in (0.1, 0.5):
        charged = float(curve(spent.event, Adjacency.ZERO_OUT).deltas(np.array([epsilon]))[0])
        found, error = delta_of(INVERSE, 5 * epochs, list(range(0, 5 * epochs, 5)), 1.0, epsilon)
        assert found < charged + 4.5 * error
