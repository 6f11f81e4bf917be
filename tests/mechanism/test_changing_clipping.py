"""The learned threshold: what one example can do to its count, what the count costs, and where the threshold goes."""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privet.errors import ArgumentError, CheckpointError, LoopError, PlanError
from privet.mechanism.changing_clipping import AdaptiveQuantile, AdaptiveQuantileRun
from privet.mechanism.events import same_event

LIKE = torch.zeros(1)
HOSTILE = [0.0, 1e-45, 0.3, 1.0, 1e38, math.inf, math.nan]


class Silent:
    """A noise source that adds nothing and remembers what was asked of it."""

    def __init__(self) -> None:
        self.sums: list[list[float]] = []
        self.stds: list[float] = []

    def add_normal(self, flat: Tensor, std: float) -> None:
        assert flat.dtype == torch.float64
        self.sums.append(flat.tolist())
        self.stds.append(std)


def started(num_groups: int = 1, **changes: float) -> AdaptiveQuantileRun:
    settings = {"norm": 1.0, "count_noise_std": 5.0, **changes}
    return AdaptiveQuantile(**settings).start(num_groups=num_groups, num_steps=10, expected_batch_size=100.0)


@given(
    others=st.lists(st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3), max_size=6),
    extra=st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_one_example_moves_each_count_by_one_half_whatever_its_norms(
    others: list[list[float]], extra: list[float]
) -> None:
    sums = []
    for rows in (others, [*others, extra]):
        run, source = started(3), Silent()
        run.begin(0, LIKE)
        run.watch(torch.tensor(rows).reshape(-1, 3))
        run.release(GaussianDpEvent(1.0), source)
        sums.append(source.sums[0])
    assert [abs(after - before) for before, after in zip(*sums, strict=True)] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("num_groups", [1, 2, 7])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 8.0])
def test_sum_and_count_cost_one_fused_gaussian_for_every_number_of_groups(num_groups: int, multiplier: float) -> None:
    piece = AdaptiveQuantile(norm=1.0, count_noise_std=5.0)
    fused = 1 / math.sqrt(multiplier**-2 + (2 * 5.0) ** -2)  # Andrew et al. 2021, theorem 1
    planned = piece.joint_event(GaussianDpEvent(multiplier))
    assert planned.noise_multiplier == pytest.approx(fused, rel=1e-12)
    run, source = started(num_groups), Silent()
    run.begin(0, LIKE)
    assert same_event(run.release(GaussianDpEvent(multiplier), source), planned)
    assert source.stds == [5.0 * math.sqrt(num_groups)]


def test_the_threshold_moves_by_the_published_rule() -> None:
    run = started(quantile=0.25, learning_rate=0.2)
    run.begin(0, LIKE)
    run.watch(torch.tensor([[0.5]] * 30 + [[2.0]] * 30))
    run.watch(torch.tensor([[0.5]] * 40))
    run.release(GaussianDpEvent(1.0), Silent())
    # 70 of 100 are short: the share is (70 - 30) / 2 / 100 + 1/2
    assert run.bounds[0] == pytest.approx(math.exp(-0.2 * (0.7 - 0.25)))
    assert run.begin(1, LIKE).sensitivity.bounds == run.bounds


def test_the_threshold_finds_the_quantile() -> None:
    generator = torch.Generator().manual_seed(0)
    run = AdaptiveQuantile(norm=50.0, count_noise_std=10.0, quantile=0.8).start(
        num_groups=1, num_steps=300, expected_batch_size=200.0
    )

    class Noisy:
        def add_normal(self, flat: Tensor, std: float) -> None:
            flat.add_(torch.randn(flat.shape, generator=generator, dtype=flat.dtype), alpha=std)

    for step in range(300):
        run.begin(step, LIKE)
        run.watch(torch.rand(200, 1, generator=generator) * 3.0)
        run.release(GaussianDpEvent(1.0), Noisy())
    assert run.bounds[0] == pytest.approx(0.8 * 3.0, rel=0.15)


def test_an_empty_batch_moves_the_threshold_by_noise_alone() -> None:
    run, source = started(), Silent()
    run.begin(0, LIKE)
    run.release(GaussianDpEvent(1.0), source)
    assert source.sums == [[0.0]]
    assert run.bounds == (1.0,)


def test_what_an_unfinished_pass_has_counted_is_forgotten() -> None:
    run, source = started(), Silent()
    run.begin(0, LIKE)
    run.watch(torch.zeros(9, 1))
    run.begin(0, LIKE)
    run.watch(torch.zeros(2, 1))
    run.release(GaussianDpEvent(1.0), source)
    assert source.sums == [[1.0]]


def test_wild_noise_stops_at_the_end_of_the_range() -> None:
    class Wild:
        def __init__(self, value: float) -> None:
            self.value = value

        def add_normal(self, flat: Tensor, std: float) -> None:
            flat.fill_(self.value)

    for value, end in ((1e300, 1e-6), (-1e300, 1e6)):
        run = started()
        for step in range(3):
            run.begin(step, LIKE)
            run.release(GaussianDpEvent(1.0), Wild(value))
        assert run.bounds == pytest.approx((end,))


def test_a_step_must_be_begun() -> None:
    with pytest.raises(LoopError, match="no open step"):
        started().watch(torch.ones(1, 1))


def test_a_state_goes_on_where_it_was_and_foreign_states_are_refused() -> None:
    run, other = started(2), started(2)
    run.begin(0, LIKE)
    run.watch(torch.zeros(50, 2))
    run.release(GaussianDpEvent(1.0), Silent())
    other.restore(run.state())
    assert other.bounds == run.bounds != (1.0, 1.0)
    for state in ({}, {"bounds": (1.0,)}, {"bounds": (1.0, 1.0), "more": (1.0,)}):
        with pytest.raises(CheckpointError, match="another plan or model"):
            other.restore(state)
    with pytest.raises(ArgumentError):
        other.restore({"bounds": (1.0, math.nan)})


def test_noise_that_is_not_gaussian_is_refused() -> None:
    with pytest.raises(PlanError, match="needs Gaussian noise on the sum"):
        AdaptiveQuantile(norm=1.0, count_noise_std=1.0).joint_event(LaplaceDpEvent(1.0))


@pytest.mark.parametrize(
    "changes", [{"norm": 0.0}, {"count_noise_std": 0.0}, {"quantile": 1.0}, {"quantile": 0.0}, {"learning_rate": -1.0}]
)
def test_numbers_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        started(**changes)
