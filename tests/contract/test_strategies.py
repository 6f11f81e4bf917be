"""Laws of every way to measure norms: the same norms, and never a norm shorter than what is then added to the sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.forms.derived import Derived, WayBack
from privet.gradients.forms.masked import Masked
from privet.gradients.forms.per_example import ConvGeometry, Convolution, Explicit, Lookup, Outer, PerExample, TiedTable
from privet.gradients.norms.conv_strategies import ConvKernel
from privet.gradients.norms.planner import STRATEGIES, Planner
from privet.gradients.norms.strategies import GramKernel, Strategy

BATCH = 5
Build = Callable[[torch.dtype], PerExample]


def outer(length: int, width_in: int, width_out: int) -> Build:
    return lambda dtype: Outer(
        inputs=torch.randn(BATCH, length, width_in, dtype=dtype),
        out_grads=torch.randn(BATCH, length, width_out, dtype=dtype),
    )


def lookup(length: int, rows: int, width: int) -> Build:
    return lambda dtype: Lookup(
        ids=torch.randint(0, rows, (BATCH, length)),
        out_grads=torch.randn(BATCH, length, width, dtype=dtype),
        num_rows=rows,
    )


def convolution(
    weight: tuple[int, ...], size: int, *, stride: int = 1, padding: int = 0, groups: int = 1, views: int = 1
) -> Build:
    out_channels, in_channels, *kernel = weight
    reach = (size + 2 * padding - kernel[0]) // stride + 1
    spatial = len(kernel)
    geometry = ConvGeometry(
        weight_shape=weight,
        stride=(stride,) * spatial,
        padding=(padding,) * spatial,
        dilation=(1,) * spatial,
        groups=groups,
    )
    return lambda dtype: Convolution(
        inputs=torch.randn(BATCH * views, in_channels * groups, *(size,) * spatial, dtype=dtype),
        out_grads=torch.randn(BATCH * views, out_channels, *(reach,) * spatial, dtype=dtype),
        geometry=geometry,
        views=views,
    )


def tied(rows: int, width: int) -> Build:
    def build(dtype: torch.dtype) -> PerExample:
        look_up, linear = lookup(6, rows, width)(dtype), outer(4, width, rows)(dtype)
        assert isinstance(look_up, Lookup)
        assert isinstance(linear, Outer)
        return TiedTable(lookup=look_up, outer=linear)

    return build


def masked(build: Build) -> Build:
    def build_masked(dtype: torch.dtype) -> PerExample:
        part = build(dtype)
        return Masked(part=part, keep=(torch.rand(part[:1].in_full().shape[1:]) < 0.5).to(dtype))

    return build_masked


def derived(build: Build) -> Build:
    """Gradients of a weight whose rows are standardised and scaled, as those of what it is computed from."""

    def build_derived(dtype: torch.dtype) -> PerExample:
        part = build(dtype)
        shape = part[:1].in_full().shape[1:]
        raw, gain = torch.randn(shape, dtype=dtype), torch.rand(shape[0], *[1] * (len(shape) - 1), dtype=dtype) + 0.5
        parameters = nn.Parameter(raw), nn.Parameter(gain)
        variance, mean = torch.var_mean(parameters[0], dim=tuple(range(1, len(shape))), keepdim=True)
        weight = (parameters[0] - mean) * torch.rsqrt(variance + 1e-4) * parameters[1]
        return Derived(part=part, way=WayBack(tensor=weight, parameters=parameters))

    return build_derived


FORMS: dict[str, Build] = {
    "explicit": lambda dtype: Explicit(gradients=torch.randn(BATCH, 4, 3, dtype=dtype)),
    "explicit scalar": lambda dtype: Explicit(gradients=torch.randn(BATCH, dtype=dtype)),
    "outer, one position": outer(1, 6, 4),
    "outer, few positions": outer(4, 16, 12),
    "outer, many positions": outer(20, 3, 2),
    "lookup": lookup(7, 5, 3),
    "conv2d": convolution((8, 6, 3, 3), 5, padding=1),
    "conv2d, strided": convolution((8, 6, 2, 2), 6, stride=2),
    "conv2d, many pixels": convolution((2, 1, 3, 3), 9),
    "conv2d, grouped": convolution((4, 2, 3, 3), 6, groups=2),
    "conv2d, few positions": convolution((24, 16, 3, 3), 3, padding=1),
    "conv2d, few positions, strided": convolution((40, 12, 2, 2), 6, stride=2),
    "conv2d, three views": convolution((8, 6, 3, 3), 5, padding=1, views=3),
    "conv2d, few positions of two views": convolution((24, 16, 3, 3), 3, padding=1, views=2),
    "conv2d, grouped, two views": convolution((4, 2, 3, 3), 6, groups=2, views=2),
    "conv1d": convolution((3, 2, 3), 9),
    "conv1d, few positions": convolution((20, 16, 3), 5),
    "conv3d": convolution((2, 2, 2, 2, 2), 4),
    "table that is a weight": tied(9, 4),
    "masked, one position": masked(outer(1, 6, 4)),
    "masked, many positions": masked(outer(20, 3, 2)),
    "masked lookup": masked(lookup(7, 5, 3)),
    "masked conv2d": masked(convolution((8, 6, 3, 3), 5, padding=1)),
    "derived, one position": derived(outer(1, 6, 4)),
    "derived, many positions": derived(outer(20, 3, 2)),
    "derived lookup": derived(lookup(7, 5, 3)),
    "derived conv2d": derived(convolution((8, 6, 3, 3), 5, padding=1)),
    "derived conv2d, three views": derived(convolution((8, 6, 3, 3), 5, padding=1, views=3)),
    "derived explicit": derived(lambda dtype: Explicit(gradients=torch.randn(BATCH, 4, 3, dtype=dtype))),
    "masked explicit": masked(lambda dtype: Explicit(gradients=torch.randn(BATCH, 4, 3, dtype=dtype))),
}
ON_A_DEVICE = frozenset({GramKernel, ConvKernel})
"""Kernels: tests/gradients/norms/kernel_check.py compares them with written-out gradients."""


def pairs() -> list[object]:
    found: list[object] = []
    for name, build in FORMS.items():
        part = build(torch.float32)
        found += [
            pytest.param(strategy, build, id=f"{strategy.name}-{name}")
            for strategy in STRATEGIES[type(part)]
            if strategy.fits(part)
        ]
    return found


each_pair = pytest.mark.parametrize(("strategy", "build"), pairs())
STRATEGIES_TRIED = {type(pair.values[0]) for pair in pairs()} | ON_A_DEVICE  # type: ignore[attr-defined]


def weighted_sum(part: PerExample, weights: Tensor) -> Tensor:
    into = torch.zeros_like(part[:1].in_full()[0])
    part.add_weighted_sum(weights, into)
    return into


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_a_way_to_be_measured(name: str) -> None:
    torch.manual_seed(0)
    part = FORMS[name](torch.float64)
    squares, kept = Planner().choose(part).strategy.measure(part)
    assert torch.allclose(squares.safe(), part.in_full().reshape(BATCH, -1).square().sum(1), rtol=1e-10)
    assert len(kept) == BATCH


@each_pair
def test_norms_and_weighted_sums_are_those_of_the_written_out_gradients(strategy: Strategy, build: Build) -> None:
    torch.manual_seed(1)
    part = build(torch.float64)
    full = part.in_full()
    squares, kept = strategy.measure(part)
    assert torch.allclose(squares.safe(), full.reshape(BATCH, -1).square().sum(1), rtol=1e-10)
    weights = torch.linspace(-1, 2, BATCH, dtype=torch.float64)
    assert torch.allclose(weighted_sum(kept, weights), torch.tensordot(weights, full, dims=1), rtol=1e-9, atol=1e-12)


@each_pair
def test_some_examples_can_be_taken_or_emptied(strategy: Strategy, build: Build) -> None:
    torch.manual_seed(2)
    part = build(torch.float64)
    full, (_, kept) = part.in_full(), strategy.measure(part)
    assert torch.allclose(part[1:3].in_full(), full[1:3])
    bad = torch.tensor([False, True, False, False, True])
    emptied = torch.tensordot((~bad).double(), full, dims=1)
    assert torch.allclose(weighted_sum(kept.without(bad), torch.ones(BATCH, dtype=torch.float64)), emptied)


def clipped_length(strategy: Strategy, part: PerExample) -> float:
    """Length of what one example adds when its factor is one over its measured norm."""
    squares, kept = strategy.measure(part)
    weights = squares.safe().sqrt().clamp_min(1e-30).reciprocal()
    return float(weighted_sum(kept, weights).double().norm())


@each_pair
def test_in_single_precision_a_clipped_example_is_no_longer_than_its_bound(strategy: Strategy, build: Build) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        assert clipped_length(strategy, build(torch.float32)[:1]) <= 1 + 1e-6


def cancelling(part: PerExample, spread: float) -> PerExample:
    """The same form with positions that pull one way and the other on nearly the same inputs."""
    if isinstance(part, Outer):
        signs = torch.ones(part.out_grads.shape[1], 1)
        signs[1::2] = -1
        inputs = part.inputs[:, :1] * 1e3 + spread * part.inputs
        return Outer(inputs=inputs, out_grads=part.out_grads[:, :1] * signs)
    if isinstance(part, Lookup):
        signs = torch.ones(part.out_grads.shape[1], 1)
        signs[1::2] = -1
        grads = part.out_grads[:, :1] * 1e3 * signs + spread * part.out_grads
        return Lookup(ids=torch.zeros_like(part.ids), out_grads=grads, num_rows=part.num_rows)
    assert isinstance(part, Convolution)
    signs = torch.ones(part.out_grads.shape[-1])
    signs[1::2] = -1
    inputs = 1e3 * torch.ones_like(part.inputs) + spread * part.inputs
    return replace(part, inputs=inputs, out_grads=torch.ones_like(part.out_grads) * signs)


each_cancelling_pair = pytest.mark.parametrize(
    ("strategy", "build"),
    [pair for pair in pairs() if isinstance(pair.values[1](torch.float32), Outer | Lookup | Convolution)],  # type: ignore[attr-defined]
)


@each_cancelling_pair
@pytest.mark.parametrize("spread", [1e3, 1e2, 10.0, 3.0, 1.0, 0.1])
def test_near_cancellation_does_not_let_more_through_than_the_bound(
    strategy: Strategy, build: Build, spread: float
) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        part = cancelling(build(torch.float32), spread)[:1]
        # the sum itself is rounded in proportion to its terms, which are longer than what is left of them
        assert clipped_length(strategy, part) <= 1 + 1e-4


@each_cancelling_pair
@pytest.mark.parametrize("size", [1e4, 1e7, 1e10, 1e14])
def test_an_example_that_cancels_itself_does_not_wipe_out_the_others(
    strategy: Strategy, build: Build, size: float
) -> None:
    torch.manual_seed(0)
    part = build(torch.float32)
    hostile = cancelling(part, 0.0)
    scale = size / 1e3
    if isinstance(part, Lookup):
        assert isinstance(hostile, Lookup)
        part.out_grads[2] = hostile.out_grads[2] * scale
        part.ids[2] = 0
    else:
        assert isinstance(part, Outer | Convolution)
        assert isinstance(hostile, Outer | Convolution)
        rows = part[2:3].inputs.shape[0]
        its = slice(2 * rows, 3 * rows)
        part.inputs[its], part.out_grads[its] = hostile.inputs[its] * scale, hostile.out_grads[its]
    squares, kept = strategy.measure(part)
    weights = squares.safe().sqrt().clamp_min(1.0).reciprocal()
    alone = torch.zeros(BATCH, dtype=torch.bool)
    alone[2] = True
    moved = weighted_sum(kept, weights) - weighted_sum(kept.without(alone), weights)
    assert float(moved.double().norm()) <= 1 + 1e-3


def test_a_large_weight_over_few_positions_may_be_summed_by_its_patches() -> None:
    part = FORMS["conv2d, few positions"](torch.float32)
    fitting = {strategy.name for strategy in STRATEGIES[Convolution] if strategy.fits(part)}
    assert {"patch gram", "pixel gram, patches"} <= fitting
    many = FORMS["conv2d, many pixels"](torch.float32)
    assert not {"patch gram", "pixel gram, patches"} & {
        strategy.name for strategy in STRATEGIES[Convolution] if strategy.fits(many)
    }
