"""Weights that are computed from parameters: gradients go back once per sum, and the norm of each example is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines import clipper
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.forms.derived import DERIVED, Derived, DerivedWritten, WayBack
from privet.gradients.forms.per_example import Outer
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerLayer, PerParameter
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum

BATCH = 6


class Doubling(torch.autograd.Function):
    """Code of the user on the way back."""

    @staticmethod
    def forward(context: Any, weight: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.clamp(-0.1, 0.1)


class StandardisedConv2d(nn.Conv2d):
    """Filters of mean zero and unit variance, with a gain for each."""

    def __init__(self, *sizes: int, padding: int = 0, stride: int = 1) -> None:
        super().__init__(*sizes, padding=padding, stride=stride)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = torch.rsqrt(variance * self.weight[0].numel() + 1e-4) * self.gain
        return functional.conv2d(images, (self.weight - mean) * scale, self.bias, self.stride, self.padding)


class Merged(nn.Module):
    """A frozen weight with a trained one of low rank, merged before use."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("base", torch.randn(12, 10))
        self.down, self.up = nn.Parameter(torch.randn(3, 10)), nn.Parameter(torch.randn(12, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.base + self.up @ self.down)


class Twice(nn.Module):
    """A computed weight that is used twice, and another computed from the same parameter."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.weight, self.again = nn.Parameter(torch.randn(10, 10)), again

    def forward(self, inputs: Tensor) -> Tensor:
        weight = torch.tanh(self.weight)
        found = functional.linear(functional.linear(inputs, weight).relu(), weight)
        return functional.linear(found, self.weight.exp()) if self.again else found


def images(network: nn.Module, *, views: int = 1) -> Callable[[Tensor], Tensor]:
    def losses(inputs: Tensor) -> Tensor:
        seen = network(inputs[:, :views].flatten(0, 1)).flatten(1).square().sum(1)
        return seen.view(-1, views).mean(1)

    return losses


def rows(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda inputs: network(inputs.flatten(1)[:, :10]).square().sum(1)


def _conv() -> nn.Module:
    return nn.Sequential(StandardisedConv2d(3, 8, 3, padding=1), nn.ReLU(), StandardisedConv2d(8, 8, 3, stride=2))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Callable[[Tensor], Tensor]]]] = {
    "standardised": (_conv, images),
    "standardised, three views": (_conv, lambda network: images(network, views=3)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(10, 12)), rows),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(10, 12)).eval(), rows),
    "merged": (Merged, rows),
    "used twice": (lambda: Twice(again=False), rows),
    "computed twice": (lambda: Twice(again=True), rows),
}


def clipped_sum(
    network: nn.Module, losses: Callable[[Tensor], Tensor], inputs: Tensor, grouping: Grouping
) -> tuple[Tensor, Tensor, set[str]]:
    """Return sum and norms of the third run of a program, and the strategies in use."""
    named = list(network.named_parameters())
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], grouping)
    rule = Threshold(norm=1.0).for_groups(layout.num_groups)
    running = BookKeeping().start(network, [value for _, value in named], layout)
    for _ in range(3):
        flat = torch.zeros(layout.num_coordinates, dtype=inputs.dtype)
        mark_batch([inputs])
        running.begin(len(inputs))
        norms = running.add_clipped(
            losses(inputs), rule, ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity)
        )
    running.close()
    return flat, norms, {choice.strategy.name for choice in running.planner.by_parameter.values()}


def truth(
    network: nn.Module, losses: Callable[[Tensor], Tensor], inputs: Tensor, grouping: Grouping
) -> tuple[Tensor, Tensor]:
    named = list(network.named_parameters())
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], grouping)
    rule = Threshold(norm=1.0).for_groups(layout.num_groups)
    total, norms = torch.zeros(layout.num_coordinates, dtype=inputs.dtype), []
    for example in inputs:
        found = torch.autograd.grad(losses(example.unsqueeze(0))[0], [value for _, value in named])
        by_group = [torch.zeros(()) for _ in range(layout.num_groups)]
        for part, group in zip(found, layout.groups, strict=True):
            by_group[group] = by_group[group] + part.square().sum()
        norms.append(torch.stack(by_group).sqrt())
        factors = rule.factors(norms[-1].unsqueeze(0))[0]
        for part, place, group in zip(found, layout.slices, layout.groups, strict=True):
            total[place] += factors[group] * part.flatten()
    return total, torch.stack(norms)


@pytest.fixture(params=[0, 1 << 30], ids=["sent back once", "written out"])
def is_sent_back(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(clipper.Clipper, "_POOLED_ON_PROCESSOR", request.param)
    return bool(request.param == 0)


@pytest.mark.parametrize(
    "grouping", [OneGroup(), PerLayer(), PerParameter()], ids=["one group", "a group per layer", "one per parameter"]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_and_norms_are_those_of_a_loop_over_examples(name: str, grouping: Grouping, is_sent_back: bool) -> None:
    torch.manual_seed(0)
    build, losses_of = PROGRAMS[name]
    network, inputs = build().double(), torch.randn(BATCH, 4, 3, 7, 7, dtype=torch.float64)
    losses = losses_of(network)
    flat, norms, names = clipped_sum(network, losses, inputs, grouping)
    wanted, wanted_norms = truth(network, losses, inputs, grouping)
    torch.testing.assert_close(norms, wanted_norms, rtol=1e-9, atol=0)
    torch.testing.assert_close(flat, wanted, rtol=1e-9, atol=1e-12)
    # norms of a parameter are those of all its gradients together, and those of two groups are apart
    if name != "computed twice" and grouping != PerParameter():
        assert any(each.startswith("derived") for each in names) == is_sent_back


@pytest.mark.parametrize("grouping", [OneGroup(), PerLayer()], ids=["one group", "a group per layer"])
def test_in_single_precision_the_error_is_that_of_a_plain_backward_pass(grouping: Grouping, is_sent_back: bool) -> None:
    torch.manual_seed(0)
    network, inputs = _conv(), torch.randn(BATCH, 4, 3, 7, 7)
    losses = images(network, views=3)
    flat, norms, _ = clipped_sum(network, losses, inputs, grouping)
    network.double()
    wanted, wanted_norms = truth(network, losses, inputs.double(), grouping)
    assert float((flat.double() - wanted).norm() / wanted.norm()) < 2e-6
    assert float(((norms.double() - wanted_norms) / wanted_norms).abs().max()) < 2e-6


def test_code_of_the_user_on_the_way_back_sees_each_gradient_and_not_their_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it does to a sum says nothing about what it does to each example's part."""
    monkeypatch.setattr(clipper.Clipper, "_POOLED_ON_PROCESSOR", 0)
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, 4, 3, 7, 7, dtype=torch.float64)
    layer = nn.Linear(10, 12, bias=False).double()

    def hooked(given: Tensor) -> Tensor:
        weight = layer.weight * 2
        weight.register_hook(lambda gradient: gradient * 3)
        return functional.linear(given.flatten(1)[:, :10], weight).square().sum(1)

    flat, norms, names = clipped_sum(layer, hooked, inputs, OneGroup())
    wanted, wanted_norms = truth(layer, hooked, inputs, OneGroup())
    torch.testing.assert_close(norms, wanted_norms, rtol=1e-9, atol=0)
    torch.testing.assert_close(flat, wanted, rtol=1e-9, atol=1e-12)
    assert not any(name.startswith("derived") for name in names)


@pytest.mark.parametrize("grouping", [OneGroup(), PerLayer()], ids=["one group", "a group per layer"])
def test_an_example_that_is_not_finite_adds_exactly_zero(grouping: Grouping, is_sent_back: bool) -> None:
    torch.manual_seed(0)
    network, inputs = _conv().double(), torch.randn(BATCH, 4, 3, 7, 7, dtype=torch.float64)
    inputs[2, 1] = torch.inf
    losses = images(network, views=3)
    flat, norms, _ = clipped_sum(network, losses, inputs, grouping)
    others = torch.cat([inputs[:2], inputs[3:]])
    assert not norms[2].isfinite().any()
    torch.testing.assert_close(flat, truth(network, losses, others, grouping)[0], rtol=1e-9, atol=1e-12)


def test_the_way_back_is_linear_only_by_torch_operations_in_full_precision() -> None:
    weight = nn.Parameter(torch.randn(4, 3))
    assert WayBack(tensor=weight * 2, parameters=(weight,)).is_linear
    assert not WayBack(tensor=Doubling.apply(weight) * 2, parameters=(weight,)).is_linear
    assert not WayBack(tensor=(weight.bfloat16() * 2).float(), parameters=(weight,)).is_linear
    assert not WayBack(tensor=(weight * 2).half(), parameters=(weight,)).is_linear
    half = nn.Parameter(torch.randn(4, 3, dtype=torch.bfloat16))
    assert not WayBack(tensor=half.float() * 2, parameters=(half,)).is_linear


def test_room_for_rounding_grows_with_the_way_back() -> None:
    """A weight that is divided by a small length: what products in half precision hide becomes as many times longer."""
    torch.manual_seed(0)
    raw = nn.Parameter(torch.randn(5, 8) * 1e-3)
    part = Outer(inputs=torch.randn(BATCH, 9, 8), out_grads=torch.randn(BATCH, 9, 5))
    way = WayBack(tensor=raw / 1e-3, parameters=(raw,))
    gain = float(way.gain())
    assert gain == pytest.approx(1e6, rel=1e-4)
    for strategy in (each for each in _fitting(Derived(part=part, way=way)) if not each.store):
        squares = strategy.measure(Derived(part=part, way=way))[0]
        assert squares.sizes is not None
        plain = part.inputs.norm(dim=2).mul(part.out_grads.norm(dim=2)).square().sum(1)
        torch.testing.assert_close(squares.sizes, plain * gain)


def test_a_row_that_is_stretched_more_than_the_others_decides() -> None:
    raw = nn.Parameter(torch.randn(4, 64))
    scales = torch.tensor([1.0, 1.0, 10.0, 1.0]).view(-1, 1)
    assert float(WayBack(tensor=raw * scales, parameters=(raw,)).gain()) == pytest.approx(100.0)


def _fitting(part: Derived) -> list[DerivedWritten]:
    return [strategy for strategy in DERIVED if strategy.fits(part)]
