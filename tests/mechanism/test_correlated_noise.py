"""Noise that is correlated between steps: its covariance, its size in each step, its memory, and its refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.errors import ArgumentError, CheckpointError, LoopError, PlanError
from privet.mechanism.clipping import Threshold
from privet.mechanism.correlated_noise import (
    FREELY_KEPT,
    BandedGaussian,
    BandedInverseGaussian,
    BandedInverseGaussianRun,
    CorrelatedNoise,
)
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import NoMask, RandomMask
from privet.mechanism.noise import Gaussian, NoiseRun
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from privet.plan import Plan
from privet.vocabulary import Adjacency, Release, Unit
from tests.contract import statistics as stats
from tests.contract.noises import Source, each_source, keystream

Array = NDArray[np.float64]
DRAWS, STEPS = 100_000, 10
BANDED = BandedGaussian.square_root(bands=4).with_multiplier(0.7)
INVERSE = BandedInverseGaussian.square_root(bands=3, batches=5, epochs=2).with_multiplier(0.7)
PIECES: list[CorrelatedNoise] = [
    BANDED,
    BandedGaussian.optimised(bands=3, steps=STEPS).with_multiplier(1.3),
    BandedGaussian(coefficients=(1.0, 0.2), noise_multiplier=2.0),
    INVERSE,
    BandedInverseGaussian.cancelling(share=0.9, batches=2, epochs=5).with_multiplier(1.0),
]
each_piece = pytest.mark.parametrize("piece", PIECES, ids=str)


def one_layer(size: int) -> Layout:
    return Layout(names=("all",), shapes=((size,),), groups=(0,))


def step(
    run: NoiseRun, source: NormalSource, flat: Tensor, *, bounds: tuple[float, ...] = (1.0,), keep: Tensor | None = None
) -> PrivateSum:
    layout = one_layer(flat.numel())
    sums = ClippedSum(flat=flat, layout=layout, sensitivity=Sensitivity(bounds=bounds), keep=keep)
    return run.add(sums, source)


def released(piece: CorrelatedNoise, source: NormalSource, *, steps: int = STEPS, size: int = DRAWS) -> list[Tensor]:
    run = piece.start(one_layer(size), has_mask=False)
    return [step(run, source, torch.zeros(size, dtype=torch.float64)).flat for _ in range(steps)]


def covariance(piece: CorrelatedNoise, steps: int) -> Array:
    """Return C^-1 C^-T from the matrices, at the size of the draws."""
    matrix = np.zeros((steps, steps))
    for age, value in enumerate(piece.coefficients[:steps]):
        matrix += value * np.eye(steps, k=-age)
    inverse = matrix if isinstance(piece, BandedInverseGaussian) else np.linalg.inv(matrix)
    size = float(piece.noise_multiplier or math.nan) * piece.scale
    return np.asarray(size**2 * inverse @ inverse.T)


def covariance_p_value(found: Array, expected: Array) -> float:
    """Return how odd the covariance of many draws is, for normal numbers of the expected one."""
    whitened = np.linalg.solve(np.linalg.cholesky(expected), found)
    number = found.shape[1]
    deviation = (whitened @ whitened.T / number - np.eye(len(found))) * math.sqrt(number)
    deviation[np.diag_indices(len(found))] /= math.sqrt(2)
    entries = deviation[np.tril_indices(len(found))]
    return stats.chi_square(float((entries**2).sum()), len(entries))


@each_piece
def test_the_covariance_of_many_draws_is_that_of_the_factorisation(piece: CorrelatedNoise) -> None:
    found = np.array([row.numpy() for row in released(piece, keystream(11))])
    expected = covariance(piece, STEPS)
    assert covariance_p_value(found, expected) > stats.ALPHA
    assert covariance_p_value(0.99 * found, expected) < stats.CERTAIN
    assert covariance_p_value(np.random.default_rng(0).permuted(found, axis=1), expected) < stats.CERTAIN


@each_source
def test_every_source_gives_the_covariance_of_the_factorisation(source: Source) -> None:
    stream = source(12)
    for piece in (BANDED, INVERSE):
        found = np.array([row.numpy() for row in released(piece, stream, size=20_000)])
        assert covariance_p_value(found, covariance(piece, STEPS)) > stats.ALPHA


@each_piece
def test_the_noise_of_each_step_is_told_with_the_length_of_its_row(piece: CorrelatedNoise) -> None:
    run, source = piece.start(one_layer(4), has_mask=False), keystream(3)
    told = [step(run, source, torch.zeros(4), bounds=(2.0,)).noise_std for _ in range(700)]
    expected = 2.0 * np.sqrt(np.diag(covariance(piece, 700)))
    assert np.allclose(np.array(told, dtype=np.float64), expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_one_band_is_gaussian_noise_bit_for_bit(dtype: torch.dtype) -> None:
    pieces = (
        Gaussian(noise_multiplier=0.8),
        BandedGaussian(coefficients=(1.0,), noise_multiplier=0.8),
        BandedInverseGaussian(coefficients=(1.0,), batches=7, epochs=3, noise_multiplier=0.8),
    )
    start = torch.linspace(-1, 1, 1001, dtype=dtype)
    found = []
    for piece in pieces:
        run, source = piece.start(one_layer(1001), has_mask=False), keystream(5)
        found.append([step(run, source, start.clone(), bounds=(0.3,)) for _ in range(3)])
    for first, *others in zip(*found, strict=True):
        assert all(torch.equal(first.flat, other.flat) for other in others)
        assert all(first.event == other.event and first.noise_std == other.noise_std for other in others)


@each_source
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_noise_made_again_from_its_numbers_is_the_noise_kept_in_memory_bit_for_bit(
    source: Source, dtype: torch.dtype
) -> None:
    found: list[list[Tensor]] = []
    bytes_kept = 3 * 300_001 * dtype.itemsize
    for keeps, freely in ((True, 0), (False, 0), (False, bytes_kept - 1), (False, bytes_kept)):
        piece = BandedInverseGaussian(
            coefficients=(1.0, -0.5, -0.125, -0.0625), batches=6, epochs=4, keeps_past=keeps, noise_multiplier=0.9
        )
        run = BandedInverseGaussianRun(noise=piece, layout=one_layer(300_001), freely_kept=freely)
        stream = source(6)
        rows = []
        for number in range(8):
            if number == 5:
                run.restart()
            rows.append(step(run, stream, torch.zeros(300_001, dtype=dtype)).flat)
        assert len(run._kept) == (3 if keeps or freely == bytes_kept else 0)
        found.append(rows)
    for kept, *others in zip(*found, strict=True):
        assert all(torch.equal(kept, other) for other in others)
    assert not torch.equal(found[0][0], found[0][5])


def test_a_run_keeps_the_draws_of_adapters_and_makes_those_of_a_large_model_again() -> None:
    run = BandedInverseGaussian.square_root(bands=32, batches=32, epochs=3).start(one_layer(1), has_mask=False)
    assert isinstance(run, BandedInverseGaussianRun)
    assert 31 * 4 * 150_000 < run.freely_kept == FREELY_KEPT < 31 * 4 * 100_000_000


@pytest.mark.parametrize("piece", [BANDED, INVERSE], ids=str)
def test_a_restart_begins_a_mechanism_that_shares_no_noise_with_the_last_one(piece: CorrelatedNoise) -> None:
    run, source = piece.start(one_layer(DRAWS), has_mask=False), keystream(7)
    before = [step(run, source, torch.zeros(DRAWS, dtype=torch.float64)).flat.clone() for _ in range(3)]
    run.restart()
    after = [step(run, source, torch.zeros(DRAWS, dtype=torch.float64)) for _ in range(4)]
    found = np.array([row.numpy() for row in (*before, *(private.flat for private in after))])
    expected = np.zeros((7, 7))
    expected[:3, :3], expected[3:, 3:] = covariance(piece, 3), covariance(piece, 4)
    assert covariance_p_value(found, expected) > stats.ALPHA
    assert after[0].noise_std == pytest.approx(math.sqrt(expected[0, 0]))


def test_two_runs_of_one_source_never_share_a_draw() -> None:
    source = keystream(8)
    first, second = (released(INVERSE, source, steps=2, size=1000) for _ in range(2))
    assert all(bool((one != other).all()) for one in first for other in second)


@pytest.mark.parametrize("piece", [BANDED, INVERSE], ids=str)
def test_noise_follows_a_bound_that_changes_from_step_to_step(piece: CorrelatedNoise) -> None:
    bounds = [1.0, 0.1, 3.0, 0.5, 2.0]
    run, source = piece.start(one_layer(1000), has_mask=False), keystream(9)
    private = [step(run, source, torch.zeros(1000, dtype=torch.float64), bounds=(bound,)) for bound in bounds]
    plain = released(piece, keystream(9), steps=len(bounds), size=1000)
    for bound, found, unit in zip(bounds, private, plain, strict=True):
        assert torch.allclose(found.flat, bound * unit)
        assert found.event.noise_multiplier == pytest.approx(piece.noise_multiplier)


@pytest.mark.parametrize("piece", [BANDED, INVERSE], ids=str)
def test_a_run_keeps_nothing_for_a_checkpoint_and_takes_nothing_from_one(piece: CorrelatedNoise) -> None:
    run = piece.start(one_layer(3), has_mask=False)
    step(run, keystream(1), torch.zeros(3))
    assert run.state() == {}
    with pytest.raises(CheckpointError, match="never stored"):
        run.restore({"noise": (1.0,)})


@pytest.mark.parametrize("piece", [BANDED, INVERSE], ids=str)
def test_masks_and_lone_sums_are_refused(piece: CorrelatedNoise) -> None:
    with pytest.raises(PlanError, match="NoMask"):
        piece.start(one_layer(3), has_mask=True)
    sums = ClippedSum(flat=torch.zeros(3), layout=one_layer(3), sensitivity=Sensitivity(bounds=(1.0,)))
    with pytest.raises(LoopError, match="Start a session"):
        piece.add(sums, keystream(0))
    with pytest.raises(LoopError, match="masked"):
        step(piece.start(one_layer(3), has_mask=False), keystream(0), torch.zeros(3), keep=torch.ones(3).bool())


def test_a_source_that_cannot_repeat_a_draw_is_refused() -> None:
    class Once:
        def add_normal(self, flat: Tensor, std: float) -> None:
            flat += std

    with pytest.raises(LoopError, match="cannot repeat"):
        step(INVERSE.start(one_layer(3), has_mask=False), Once(), torch.zeros(3))


# ------------------------------------------------------------------------------------------------------------- plans


def plan_of(sampling: Sampling, noise: CorrelatedNoise, **changes: Any) -> Plan:
    terms = {"delta": 1e-5, "adjacency": Adjacency.ZERO_OUT, "unit": Unit.RECORD, "mask": NoMask()}
    return Plan(sampling=sampling, clipping=Threshold(norm=1.0), noise=noise, **{**terms, **changes})


ALLOWED: Sequence[tuple[Sampling, CorrelatedNoise]] = [
    (CyclicPoisson(groups=4, rate=0.5, cycles=3, expected_batch_size=5), BANDED),
    (CyclicPoisson(groups=9, rate=0.5, cycles=3, expected_batch_size=5), BANDED),
    (Cyclic(batches=4, epochs=3, expected_batch_size=5), BANDED),
    (Cyclic(batches=5, epochs=2, expected_batch_size=5), INVERSE),
    (Cyclic(batches=5, epochs=1, expected_batch_size=5, secret_partition=True), INVERSE),
    (FullBatch(steps=8, expected_batch_size=5), BandedInverseGaussian.square_root(bands=4, batches=1, epochs=8)),
    (Poisson(rate=0.1, steps=5, expected_batch_size=5), BandedGaussian(coefficients=(1.0,))),
]
REFUSED: Sequence[tuple[Sampling, CorrelatedNoise, str]] = [
    (Poisson(rate=0.1, steps=5, expected_batch_size=5), BANDED, "at least that far apart"),
    (FullBatch(steps=5, expected_batch_size=5), BANDED, "at least that far apart"),
    (Shuffle(batches=8, epochs=2, expected_batch_size=5), BANDED, "at least that far apart"),
    (Cyclic(batches=3, epochs=3, expected_batch_size=5), BANDED, "at least that far apart"),
    (CyclicPoisson(groups=3, rate=0.5, cycles=3, expected_batch_size=5), BANDED, "groups=4"),
    (CyclicPoisson(groups=5, rate=0.5, cycles=2, expected_batch_size=5), INVERSE, "no amplification"),
    (Shuffle(batches=5, epochs=2, expected_batch_size=5), INVERSE, "no amplification"),
    (Cyclic(batches=6, epochs=2, expected_batch_size=5), INVERSE, "Make both alike"),
    (Cyclic(batches=5, epochs=3, expected_batch_size=5), INVERSE, "Make both alike"),
]


@pytest.mark.parametrize(("sampling", "noise"), ALLOWED, ids=str)
def test_a_plan_takes_noise_whose_rounds_compose(sampling: Sampling, noise: CorrelatedNoise) -> None:
    plan = plan_of(sampling, noise)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.calibrated(epsilon=3.0).guarantee().epsilon <= 3.0


@pytest.mark.parametrize(("sampling", "noise", "reason"), REFUSED, ids=str)
def test_a_plan_refuses_noise_whose_rounds_have_no_proven_cost(
    sampling: Sampling, noise: CorrelatedNoise, reason: str
) -> None:
    with pytest.raises(PlanError, match=f"no guarantee.*{reason}"):
        plan_of(sampling, noise)


def test_masks_and_hidden_iterates_are_refused_with_correlated_noise() -> None:
    sampling = Cyclic(batches=4, epochs=3, expected_batch_size=5)
    with pytest.raises(PlanError, match=r"RandomMask.*Use NoMask"):
        plan_of(sampling, BANDED, mask=RandomMask(schedule=Constant(value=0.5)))
    descent = StronglyConvexDescent(learning_rate=0.1, ridge=0.1, smoothness=1.0, gradient_bound=1.0)
    with pytest.raises(PlanError, match="correlates the noise of different steps"):
        plan_of(sampling, BANDED, release=Release.LAST_ITERATE, descent=descent)


@pytest.mark.parametrize(
    "coefficients", [(), (0.5,), (1.0, -0.1), (1.0, math.nan), (1.0, math.inf), (1.0, "a"), 3, "1", (2.0, 1.0)]
)
def test_coefficients_that_are_no_column_are_refused(coefficients: Any) -> None:
    with pytest.raises(ArgumentError, match="coefficients"):
        BandedGaussian(coefficients=coefficients)


def test_inverse_coefficients_of_the_wrong_sign_are_refused() -> None:
    with pytest.raises(ArgumentError, match="zero or less"):
        BandedInverseGaussian(coefficients=(1.0, -0.5, 0.1), batches=3, epochs=1)
