"""Masks in the engine: the same sums as by written-out gradients, and less work where whole rows are masked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.clipper import Clipper
from privet.gradients.forms.masked import MASKED, Masked, MaskedRankOne, SomeRows, keep_coordinates, keep_rows
from privet.gradients.forms.per_example import (
    ConvGeometry,
    Convolution,
    Explicit,
    Lookup,
    Outer,
    PerExample,
    TiedTable,
)
from privet.gradients.norms.conv_strategies import ShiftedStore
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import Strategy
from privet.mechanism.clipping import Threshold
from privet.mechanism.granularity import Blocks, Coordinates, Granularity, Kept, Rows
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients
from tests.gradients.reference import layout_of, relative_error, trainable

BATCH = 5
Build = Callable[[torch.dtype], PerExample]


def outer(length: int, width_in: int, width_out: int, shape: tuple[int, ...] | None = None) -> Build:
    return lambda dtype: Outer(
        inputs=torch.randn(BATCH, length, width_in, dtype=dtype),
        out_grads=torch.randn(BATCH, length, width_out, dtype=dtype),
        shape=shape,
    )


def lookup(dtype: torch.dtype) -> Lookup:
    return Lookup(ids=torch.randint(0, 6, (BATCH, 7)), out_grads=torch.randn(BATCH, 7, 3, dtype=dtype), num_rows=6)


def tied(dtype: torch.dtype) -> TiedTable:
    table = outer(4, 3, 6)(dtype)
    assert isinstance(table, Outer)
    return TiedTable(lookup=lookup(dtype), outer=table)


def convolution(weight: tuple[int, ...], *, stride: int = 1, groups: int = 1) -> Build:
    def build(dtype: torch.dtype) -> Convolution:
        reach = (7 - weight[2]) // stride + 1
        geometry = ConvGeometry(
            weight_shape=weight, stride=(stride,) * 2, padding=(0, 0), dilation=(1, 1), groups=groups
        )
        return Convolution(
            inputs=torch.randn(BATCH, weight[1] * groups, 7, 7, dtype=dtype),
            out_grads=torch.randn(BATCH, weight[0], reach, reach, dtype=dtype),
            geometry=geometry,
        )

    return build


FORMS: dict[str, Build] = {
    "explicit": lambda dtype: Explicit(gradients=torch.randn(BATCH, 6, 3, dtype=dtype)),
    "one position": outer(1, 5, 6),
    "one position, narrow": outer(1, 9, 6),
    "several positions": outer(4, 5, 6),
    "another shape": outer(3, 4, 6, (6, 2, 2)),
    "a shape of another order": outer(3, 6, 4, (8, 3)),
    "lookup": lookup,
    "tied table": tied,
    "convolution": convolution((6, 4, 3, 3)),
    "strided": convolution((6, 4, 3, 3), stride=2),
    "grouped": convolution((6, 2, 3, 3), groups=2),
}
each_form = pytest.mark.parametrize("name", FORMS)


def weighted_sum(part: PerExample, weights: Tensor, shape: torch.Size) -> Tensor:
    into = weights.new_zeros(shape)
    part.add_weighted_sum(weights, into)
    return into


def check(part: PerExample, truth: Tensor) -> None:
    """A masked form has the norms, sums and rows of the written-out truth."""
    weights = torch.linspace(-1, 2, BATCH, dtype=truth.dtype)
    inner = part.part if isinstance(part, SomeRows) else part
    squares, measured = Planner().choose(inner).strategy.measure(inner)
    kept: PerExample = measured
    if isinstance(part, SomeRows):
        kept = SomeRows(part=measured, rows=part.rows, shape=part.shape, geometry=part.geometry)
    assert torch.allclose(squares.safe(), truth.flatten(1).square().sum(1), rtol=1e-9)
    for form in (part, kept):
        assert len(form) == BATCH
        assert torch.allclose(form.in_full(), truth, atol=1e-12)
        found = weighted_sum(form, weights, truth.shape[1:])
        assert torch.allclose(found, torch.tensordot(weights, truth, dims=1), atol=1e-12)
        bad = torch.tensor([False, True, False, False, True])
        emptied = weighted_sum(form.without(bad), weights, truth.shape[1:])
        assert torch.allclose(emptied, torch.tensordot(weights * ~bad, truth, dims=1), atol=1e-12)
        assert torch.allclose(form[1:3].in_full(), truth[1:3], atol=1e-12)


@each_form
def test_masked_coordinates_have_the_norms_and_sums_of_written_out_gradients(name: str) -> None:
    torch.manual_seed(0)
    part = FORMS[name](torch.float64)
    full = part.in_full()
    keep = (torch.rand(full.shape[1:]) < 0.5).double()
    check(keep_coordinates(part, keep), full * keep)


@each_form
def test_masked_rows_have_the_norms_and_sums_of_written_out_gradients(name: str) -> None:
    torch.manual_seed(1)
    part = FORMS[name](torch.float64)
    full = part.in_full()
    rows = torch.tensor([1, 4])
    truth = torch.zeros_like(full)
    truth[:, rows] = full[:, rows]
    check(keep_rows(part, rows, tuple(full.shape[1:])), truth)


def masked_pairs() -> list[object]:
    found: list[object] = []
    for name, build in FORMS.items():
        part = build(torch.float32)
        masked = keep_coordinates(part, torch.ones(part.in_full().shape[1:]))
        if isinstance(masked, Masked):
            found += [
                pytest.param(strategy, build, id=f"{strategy.name}-{name}")
                for strategy in MASKED
                if strategy.fits(masked)
            ]
    return found


each_pair = pytest.mark.parametrize(("strategy", "build"), masked_pairs())


@each_pair
def test_every_way_to_measure_finds_the_masked_norms_to_a_millionth(strategy: Strategy, build: Build) -> None:
    torch.manual_seed(2)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        part = build(dtype)
        full = part.in_full()
        keep = (torch.rand(full.shape[1:]) < 0.3).to(dtype)
        truth = (full.double() * keep).flatten(1).square().sum(1).sqrt()
        squares, kept = strategy.measure(keep_coordinates(part, keep))
        assert torch.allclose(squares.safe().double().sqrt(), truth, rtol=tolerance)
        weights = torch.ones(BATCH, dtype=dtype)
        expected = (full * keep).sum(0)
        assert torch.allclose(weighted_sum(kept, weights, full.shape[1:]), expected, rtol=1e-4, atol=1e-5)


@each_pair
def test_in_single_precision_a_clipped_example_is_no_longer_than_its_bound(strategy: Strategy, build: Build) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        part = build(torch.float32)[:1]
        shape = part.in_full().shape[1:]
        squares, kept = strategy.measure(keep_coordinates(part, (torch.rand(shape) < 0.4).float()))
        weights = squares.safe().sqrt().clamp_min(1e-30).reciprocal()
        assert float(weighted_sum(kept, weights, shape).double().norm()) <= 1 + 1e-6


def test_squares_that_underflow_are_not_taken_for_zero() -> None:
    part = Outer(inputs=torch.full((1, 1, 4), 1e-25), out_grads=torch.full((1, 1, 4), 1e22))
    squares, kept = MaskedRankOne().measure(Masked(part=part, keep=torch.eye(4)))
    weights = (1e-6 / squares.safe().sqrt()).clamp_max(1.0)
    assert float(weighted_sum(kept, weights, torch.Size((4, 4))).double().norm()) <= 1e-6


@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)], ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3)], ids=str)
def test_shifted_products_are_the_gradients_of_a_convolution(
    kernel: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> None:
    torch.manual_seed(3)
    geometry = ConvGeometry(weight_shape=(3, 4, *kernel), stride=(1, 1), padding=padding, dilation=dilation, groups=1)
    inputs = torch.randn(BATCH, 4, 8, 9, dtype=torch.float64)
    outputs = nn.functional.conv2d(
        inputs, torch.zeros(geometry.weight_shape, dtype=torch.float64), padding=padding, dilation=dilation
    )
    part = Convolution(inputs=inputs, out_grads=torch.randn_like(outputs), geometry=geometry)
    assert ShiftedStore().fits(part)
    squares, kept = ShiftedStore().measure(part)
    assert torch.allclose(kept.in_full(), part.in_full())
    assert torch.allclose(squares.safe(), part.in_full().flatten(1).square().sum(1))


# ------------------------------------------------------------------------------------------------- through the engine


class Everything(nn.Module):
    """An embedding, a linear map over positions, a norm, convolutions plain and grouped, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.plain, self.grouped = nn.Conv1d(6, 6, 3), nn.Conv1d(6, 12, 3, groups=6)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.norm(torch.tanh(self.mix(self.embedding(tokens)))).transpose(1, 2)
        return self.head(torch.tanh(self.grouped(torch.tanh(self.plain(states)))).mean(2))  # type: ignore[no-any-return]


def squared(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().flatten(1).sum(1)  # type: ignore[no-any-return]


def clipped_sum(model: nn.Module, inputs: Tensor, bound: float, kept: Kept) -> tuple[Tensor, Tensor]:
    """The engine's masked sum in two physical batches, and the norms it found."""
    layout, parameters = layout_of(model), [value for _, value in trainable(model)]
    rule = Threshold(norm=bound).for_groups(1)
    into = ClippedSum(
        flat=parameters[0].new_zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity,
        keep=kept.coordinates, kept=kept,
    )  # fmt: skip
    running, norms = BookKeeping().start(model, parameters, layout), []
    try:
        for part in inputs.split(4):
            part, leaves = with_gradients(part, len(part)) if running.wants_input_gradients else (part, ())
            part = part.clone()
            running.begin(len(part), leaves)
            mark_batch([part])
            norms.append(running.add_clipped(squared(model, part), rule, into))
    finally:
        running.close()
    return into.flat, torch.cat(norms)[:, 0]


def true_gradients(model: nn.Module, inputs: Tensor) -> Tensor:
    parameters = [value for _, value in trainable(model)]
    rows = []
    for index in range(len(inputs)):
        found = torch.autograd.grad(squared(model, inputs[index : index + 1]).sum(), parameters)
        rows.append(torch.cat([value.reshape(-1) for value in found]))
    return torch.stack(rows)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(8, 9)),
    "images": lambda: (
        nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 3, stride=2), nn.Flatten()),
        torch.randn(8, 2, 7, 7),
    ),
    "everything": lambda: (Everything(), torch.randint(0, 7, (8, 8))),
}


def built(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(4)
    model, inputs = MODELS[name]()
    return model.to(dtype), inputs.to(dtype) if inputs.is_floating_point() else inputs


def drawn(model: nn.Module, granularity: Granularity, rate: float, dtype: torch.dtype) -> Kept:
    mask = RandomMask(schedule=Constant(value=rate), granularity=granularity)
    run = mask.start(layout=layout_of(model), num_steps=1, steps_per_epoch=1)
    kept = run.begin(0, np.random.default_rng(5), torch.zeros(1, dtype=dtype))
    assert kept is not None
    return kept


@pytest.mark.parametrize("rate", [0.5, 0.9])
@pytest.mark.parametrize("granularity", [Coordinates(), Rows(), Blocks(num_rows=2)], ids=repr)
@pytest.mark.parametrize("name", MODELS)
def test_engine_sums_under_a_mask_are_those_of_masked_gradients(
    name: str, granularity: Granularity, rate: float
) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        model, inputs = built(name, dtype)
        kept = drawn(model, granularity, rate, dtype)
        truth = true_gradients(model, inputs) * kept.weights
        bound = float(truth.norm(dim=1).median())
        expected = (truth * (bound / truth.norm(dim=1)).clamp_max(1.0).unsqueeze(1)).sum(0)
        found, norms = clipped_sum(model, inputs, bound, kept)
        assert relative_error(found, expected.double()) <= tolerance
        assert torch.allclose(norms, truth.norm(dim=1), rtol=max(tolerance, 1e-9))
        assert bool((found[~kept.coordinates] == 0).all())


@pytest.mark.parametrize("granularity", [Coordinates(), Rows()], ids=repr)
def test_an_example_whose_masked_part_overflows_leaves_nothing_in_masked_coordinates(granularity: Granularity) -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(4, 6))
    kept = drawn(model, granularity, 0.5, torch.float32)
    inputs = torch.randn(8, 4)
    inputs[3] *= 1e30
    found, _ = clipped_sum(model, inputs, 1.0, kept)
    assert bool(found.isfinite().all())
    assert bool((found[~kept.coordinates] == 0).all())
    others, _ = clipped_sum(model, inputs[[0, 1, 2, 4, 5, 6, 7]], 1.0, kept)
    assert float((found - others).norm()) <= 1 + 1e-5


def test_masked_rows_are_never_measured() -> None:
    torch.manual_seed(7)
    part = outer(4, 16, 32)(torch.float32)
    assert isinstance(part, Outer)
    layout = layout_of(nn.Linear(16, 32, bias=False))
    kept = drawn(nn.Linear(16, 32, bias=False), Rows(), 0.75, torch.float32)
    assert kept.rows is not None
    assert kept.rows[0] is not None
    part.out_grads[..., ~kept.coordinates.view(32, 16)[:, 0]] = float("nan")
    rule = Threshold(norm=1.0).for_groups(1)
    into = ClippedSum(
        flat=torch.zeros(512), layout=layout, sensitivity=rule.sensitivity, keep=kept.coordinates, kept=kept
    )
    clipper = Clipper(into, BATCH, Planner())
    clipper.take(0, part)
    assert bool(clipper.finish(rule).isfinite().all())
    assert bool(into.flat.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_clearing_by_bits_gives_the_sum_that_two_passes_give_whatever_stands_in_masked_coordinates(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(9)
    part = outer(1, 6, 4)(dtype)
    kept = Kept.of((torch.rand(24, dtype=dtype) < 0.5).to(dtype))
    assert kept.bits is not None
    keep, bits, weights = kept.weights.view(4, 6), kept.bits.view(4, 6), torch.rand(BATCH, dtype=dtype)
    spoilt = torch.where(
        keep == 0, torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype).repeat(8).view(4, 6), 0
    )
    sums = []
    for form in (keep_coordinates(part, keep), keep_coordinates(part, keep, bits)):
        into = spoilt.clone()
        form.add_weighted_sum(weights, into)
        sums.append(into)
    assert torch.equal(sums[0], sums[1])
    assert bool(sums[1].isfinite().all())
    assert bool((sums[1][keep == 0] == 0).all())
