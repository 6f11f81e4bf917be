"""Masks piece by piece: exact counts, schedules, what a ranking sees, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st

from privet.errors import ArgumentError, PlanError
from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.granularity import Blocks, Coordinates, Rows
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import Constant, Cosine, GradualCooling, Linear, RateSchedule
from privet.mechanism.masking import FrozenMask, RandomMask
from privet.mechanism.release_masks import RankedMask
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson, Sampling
from privet.mechanism.sums import PrivateSum
from privet.mechanism.truncated import TruncatedPoisson


def layout_of(*named: tuple[str, tuple[int, ...]]) -> Layout:
    return Layout.of(list(named), OneGroup())


LAYOUT = layout_of(("a.weight", (10, 4)), ("a.bias", (10,)), ("b.weight", (5, 10)), ("b.bias", (5,)))
LIKE = torch.zeros(1)


def released(flat: torch.Tensor, noise_std: float | None = 1.0) -> PrivateSum:
    return PrivateSum(flat=flat, layout=LAYOUT, event=GaussianDpEvent(1.0), noise_std=noise_std)


@given(rate=st.floats(0, 0.999), seed=st.integers(0, 9))
def test_a_random_mask_drops_the_rate_rounded_down_exactly(rate: float, seed: int) -> None:
    run = RandomMask(schedule=Constant(value=rate)).start(layout=LAYOUT, num_steps=1, steps_per_epoch=1)
    kept = run.begin(0, np.random.default_rng(seed), LIKE)
    dropped = 0 if kept is None else int((~kept.coordinates).sum())
    assert dropped == math.floor(rate * LAYOUT.num_coordinates + 1e-9)


@given(rate=st.floats(0, 0.999), block=st.integers(1, 6), seed=st.integers(0, 9))
def test_every_layer_loses_its_share_of_blocks_and_the_bias_goes_with_its_row(
    rate: float, block: int, seed: int
) -> None:
    mask = RandomMask(schedule=Constant(value=rate), granularity=Blocks(num_rows=block))
    kept = mask.start(layout=LAYOUT, num_steps=1, steps_per_epoch=1).begin(0, np.random.default_rng(seed), LIKE)
    if kept is None:
        return
    parts = [kept.coordinates[where].reshape(shape) for where, shape in zip(LAYOUT.slices, LAYOUT.shapes, strict=True)]
    for weight, bias in ((parts[0], parts[1]), (parts[2], parts[3])):
        assert torch.equal(weight.all(1), bias)
        assert torch.equal(weight.any(1), bias)
        blocks = [bool(rows.all()) for rows in bias.split(block)]
        assert blocks == [bool(rows.any()) for rows in bias.split(block)]
        assert blocks.count(False) == min(len(blocks) - 1, math.floor(rate * len(blocks) + 1e-9))


def test_every_coordinate_is_masked_as_often_as_any_other() -> None:
    run = RandomMask(schedule=Constant(value=0.3)).start(layout=LAYOUT, num_steps=4000, steps_per_epoch=1)
    rng, draws = np.random.default_rng(0), 4000
    counts = torch.zeros(LAYOUT.num_coordinates)
    for step in range(draws):
        kept = run.begin(step, rng, LIKE)
        assert kept is not None
        counts += ~kept.coordinates
    share = math.floor(0.3 * LAYOUT.num_coordinates) / LAYOUT.num_coordinates
    deviations = (counts - draws * share) / math.sqrt(draws * share * (1 - share))
    assert float(deviations.abs().max()) < 4.5


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(value=0.4), [0.4, 0.4, 0.4]),
        (GradualCooling(final=0.8), [0.0, 0.4, 0.8]),
        (Linear(first=0.6, last=0.2), [0.6, 0.4, 0.2]),
        (Cosine(first=0.0, last=0.8), [0.0, 0.4, 0.8]),
    ],
    ids=repr,
)
def test_schedules_reach_their_ends(schedule: RateSchedule, expected: list[float]) -> None:
    assert [schedule.rate(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx(expected)


def test_a_cosine_is_slow_at_both_ends() -> None:
    schedule = Cosine(first=0.0, last=1.0 - 1e-12)
    assert schedule.rate(0.1) < 0.1
    assert schedule.rate(0.9) > 0.9


def test_cooling_rises_epoch_by_epoch_to_its_final_rate_and_a_single_epoch_has_it_at_once() -> None:
    mask, rng = RandomMask(schedule=GradualCooling(final=0.9)), np.random.default_rng(0)
    run = mask.start(layout=LAYOUT, num_steps=10, steps_per_epoch=2)
    size, dropped = LAYOUT.num_coordinates, []
    for step in range(10):
        kept = run.begin(step, rng, LIKE)
        dropped.append(0 if kept is None else int((~kept.coordinates).sum()))
    assert dropped == [math.floor(0.9 * (step // 2) / 4 * size + 1e-9) for step in range(10)]
    only = mask.start(layout=LAYOUT, num_steps=2, steps_per_epoch=2).begin(0, rng, LIKE)
    assert only is not None
    assert int((~only.coordinates).sum()) == math.floor(0.9 * size)


def test_a_frozen_mask_is_the_same_in_every_run_and_depends_on_its_seed() -> None:
    def choice(seed: int, rng_seed: int) -> torch.Tensor:
        run = FrozenMask(rate=0.5, seed=seed).start(layout=LAYOUT, num_steps=9, steps_per_epoch=3)
        kept = [run.begin(step, np.random.default_rng(rng_seed), LIKE) for step in (0, 8)]
        assert kept[0] is kept[1]
        assert kept[0] is not None
        return kept[0].coordinates

    assert torch.equal(choice(0, 1), choice(0, 2))
    assert not torch.equal(choice(0, 1), choice(1, 1))


def test_a_ranking_keeps_what_noisy_sums_were_largest_in_and_needs_one_stretch_to_begin() -> None:
    run = RankedMask(schedule=Constant(value=0.5), refresh_every=2).start(layout=LAYOUT, num_steps=6, steps_per_epoch=1)
    rng, values = np.random.default_rng(0), torch.arange(LAYOUT.num_coordinates).float()
    signs = 1 - 2 * (torch.arange(LAYOUT.num_coordinates) % 2)
    for step in range(2):
        assert run.begin(step, rng, LIKE) is None
        run.watch(released(values * signs), kept=None)
    kept = run.begin(2, rng, LIKE)
    assert kept is not None
    assert torch.equal(kept.coordinates, values >= LAYOUT.num_coordinates // 2)


def test_masked_coordinates_come_back_by_noise_of_the_size_of_the_others() -> None:
    mask = RankedMask(schedule=Constant(value=0.5), refresh_every=4)
    run = mask.start(layout=LAYOUT, num_steps=400, steps_per_epoch=1)
    rng, noise = np.random.default_rng(0), torch.Generator().manual_seed(0)
    counts = torch.zeros(LAYOUT.num_coordinates)
    for step in range(400):
        kept = run.begin(step, rng, LIKE)
        flat = torch.randn(LAYOUT.num_coordinates, generator=noise)
        if kept is not None:
            flat *= kept.weights
            counts += ~kept.coordinates
        run.watch(released(flat), kept=kept)
    # nothing but noise: nobody stays masked, and nobody is spared
    assert float(counts.min()) > 0.3 * 396
    assert float(counts.max()) < 0.7 * 396


def test_rows_are_ranked_by_their_mean_square_whatever_their_length() -> None:
    run = RankedMask(schedule=Constant(value=0.2), granularity=Rows(), refresh_every=1).start(
        layout=LAYOUT, num_steps=2, steps_per_epoch=1
    )
    rng, flat = np.random.default_rng(0), torch.ones(LAYOUT.num_coordinates)
    flat[LAYOUT.slices[0]].view(10, 4)[3] = 0.0
    flat[LAYOUT.slices[0]].view(10, 4)[7] = 0.5
    flat[LAYOUT.slices[3]][2] = -9.0
    flat[LAYOUT.slices[2]].view(5, 10)[4] = 0.1
    run.begin(0, rng, LIKE)
    run.watch(released(flat), kept=None)
    kept = run.begin(1, rng, LIKE)
    assert kept is not None
    assert kept.rows is not None
    assert kept.rows[0] is not None
    assert kept.rows[2] is not None
    assert kept.rows[0].tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
    assert kept.rows[2].tolist() == [0, 1, 2, 3]


def test_a_ranking_refuses_noise_that_differs_between_coordinates() -> None:
    run = RankedMask(schedule=Constant(value=0.5)).start(layout=LAYOUT, num_steps=2, steps_per_epoch=1)
    with pytest.raises(PlanError, match="noise of one size"):
        run.watch(released(torch.ones(LAYOUT.num_coordinates), noise_std=None), kept=None)


@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        (Poisson(rate=0.02, steps=9, expected_batch_size=5), 50),
        (Poisson(rate=1.0, steps=9, expected_batch_size=5), 1),
        (TruncatedPoisson(rate=0.1, steps=3, dataset_size=9, max_batch_size=2), 10),
        (FixedSize(dataset_size=9, batch_size=3, steps=2), 3),
        (Shuffle(batches=7, epochs=3, expected_batch_size=2), 7),
        (FullBatch(steps=4, expected_batch_size=2), 1),
    ],
    ids=repr,
)
def test_an_epoch_is_one_pass_over_the_data(sampling: Sampling, steps: int) -> None:
    assert sampling.steps_per_epoch == steps


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan"), True, "0.5"])
def test_rates_that_leave_nothing_or_are_no_numbers_are_refused(rate: object) -> None:
    for build in (
        lambda: Constant(value=rate),  # type: ignore[arg-type]
        lambda: GradualCooling(final=rate),  # type: ignore[arg-type]
        lambda: Linear(first=0.0, last=rate),  # type: ignore[arg-type]
        lambda: Cosine(first=rate, last=0.0),  # type: ignore[arg-type]
        lambda: FrozenMask(rate=rate),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError):
            build()


def test_parts_of_the_wrong_kind_are_refused() -> None:
    for build in (
        lambda: RandomMask(schedule=0.5),  # type: ignore[arg-type]
        lambda: RandomMask(schedule=Constant),  # type: ignore[arg-type]
        lambda: RankedMask(schedule=Constant(value=0.5), granularity="rows"),  # type: ignore[arg-type]
        lambda: FrozenMask(rate=0.5, granularity=Rows),  # type: ignore[arg-type]
    ):
        with pytest.raises(PlanError, match="must be a"):
            build()
    for every in (0, -1, 1.5):
        with pytest.raises(ArgumentError, match="refresh_every"):
            RandomMask(schedule=Constant(value=0.5), refresh_every=every)  # type: ignore[arg-type]


def test_scalars_and_empty_parameters_are_no_obstacle() -> None:
    layout = layout_of(("scale", ()), ("nothing", (0, 4)), ("w", (4, 2)))
    for granularity in (Coordinates(), Rows(), Blocks(num_rows=2)):
        mask = RankedMask(schedule=Constant(value=0.5), granularity=granularity, refresh_every=1)
        run = mask.start(layout=layout, num_steps=3, steps_per_epoch=1)
        run.begin(0, np.random.default_rng(0), LIKE)
        private = PrivateSum(flat=torch.arange(9.0), layout=layout, event=GaussianDpEvent(1.0), noise_std=1.0)
        run.watch(private, kept=None)
        kept = run.begin(1, np.random.default_rng(0), LIKE)
        assert kept is not None
        assert bool(kept.coordinates[-1])
