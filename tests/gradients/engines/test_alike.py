"""Laws of layers of equal shape, whose gradients are formed together once their program is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.capture import recorded
from privet.gradients.engines import alike
from privet.gradients.engines.bookkeeping import BookKeeping, RunningBookKeeping
from privet.gradients.engines.clipper import Clipper
from privet.gradients.forms.per_example import PerExample
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import Strategy
from privet.gradients.rules.layer_rules import RULES, linear
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerLayer
from privet.mechanism.sums import ClippedSum
from tests.gradients.reference import add, loop_clipped_sum, median_norm, relative_error, started

BATCH, LENGTH, WIDTH = 5, 6, 8


class Deep(nn.Module):
    """Narrow layers of a few shapes, many of each, as in a deep transformer; one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList([nn.Linear(WIDTH, 12) for _ in range(4)])
        self.narrow = nn.ModuleList([nn.Linear(12, WIDTH, bias=number != 2) for number in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.scales = nn.ModuleList([nn.RMSNorm(WIDTH) for _ in range(2)])
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, states: Tensor) -> Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            states = states + narrow(torch.tanh(wide(states)))
        for norm in (*self.norms, *self.scales):
            states = states + self.shared(norm(states)) if norm is self.norms[0] else norm(states) + 0.5 * states
        return self.head(self.shared(states).mean(1))  # type: ignore[no-any-return]


class Pictures(nn.Module):
    """Convolutions and group norms of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)])
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4) for _ in range(3)])

    def forward(self, images: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            images = images + torch.tanh(norm(convolution(images)))
        return images.mean((2, 3))


class TimeFirst(nn.Module):
    """Layers that see the examples on their second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def forward(self, states: Tensor) -> Tensor:
        states = states.transpose(0, 1)
        for layer in self.layers:
            states = states + torch.sin(layer(states))
        return states.mean(0)


def squared(model: nn.Module, inputs: Tensor) -> Tensor:
    found: Tensor = model(inputs)
    return found.square().sum(1)


SEQUENCES = (BATCH, LENGTH, WIDTH)
MODELS = {
    "deep": (Deep, SEQUENCES),
    "one position": (Deep, (BATCH, 1, WIDTH)),
    "pictures": (Pictures, (BATCH, 4, 7, 7)),
    "time first": (TimeFirst, SEQUENCES),
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of parameters that were taken together."""
    found: list[int] = []
    take_layers = Clipper.take_layers

    def noted(self: Clipper, positions: tuple[int, ...], part: object) -> None:
        found.append(len(positions))
        take_layers(self, positions, part)  # type: ignore[arg-type]

    monkeypatch.setattr(Clipper, "take_layers", noted)
    return found


def run_until_known(
    model: nn.Module, inputs: Tensor, bound: float, grouping: Grouping | None = None, times: int = 4
) -> tuple[RunningBookKeeping, list[Tensor], list[Tensor]]:
    """Add the same batch several times to sums of their own; return the sums and the norms."""
    running, into, rule = started(BookKeeping(), model, Threshold(norm=bound), grouping or OneGroup())
    assert isinstance(running, RunningBookKeeping)
    sums, norms = [], []
    for _ in range(times):
        into.clear()
        norms.append(add(running, model, inputs, rule, into, squared))
        sums.append(into.flat.clone())
    return running, sums, norms


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model: nn.Module = build()
    return model, torch.randn(shape)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limit", [0, 1 << 16], ids=["measured", "pooled"])
def test_layers_taken_together_give_the_clipped_sum_of_the_loop(
    name: str, limit: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clipper, "_POOLED_ON_PROCESSOR", limit)
    model, inputs = made(name)
    bound = median_norm(model, squared, inputs)
    _, sums, norms = run_until_known(model, inputs, bound)
    assert taken, "nothing was taken together"
    assert max(taken) >= 3
    truth = loop_clipped_sum(model, squared, inputs, Threshold(norm=bound))
    assert relative_error(sums[-1], truth) < 2e-6
    assert torch.allclose(norms[-1], norms[0], rtol=1e-6)


@pytest.mark.parametrize("strategy", range(3), ids=["first", "second", "third"])
def test_any_strategy_measures_layers_taken_together(
    strategy: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Planner.options

    def one_option(self: Planner, part: PerExample) -> Sequence[Strategy]:
        found = options(self, part)
        return [found[strategy % len(found)]]

    monkeypatch.setattr(Planner, "options", one_option)
    for name in MODELS:
        model, inputs = made(name)
        bound = median_norm(model, squared, inputs)
        _, sums, _ = run_until_known(model, inputs, bound)
        truth = loop_clipped_sum(model, squared, inputs, Threshold(norm=bound))
        assert relative_error(sums[-1], truth) < 2e-6
    assert taken


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", MODELS)
def test_an_example_that_is_not_finite_adds_exactly_zero_to_layers_taken_together(
    name: str, bad: float, taken: list[int]
) -> None:
    model, inputs = made(name)
    bound = median_norm(model, squared, inputs)
    running, into, rule = started(BookKeeping(), model, Threshold(norm=bound), OneGroup())
    for _ in range(3):
        add(running, model, inputs, rule, into, squared)
    taken.clear()
    into.clear()
    spoiled = inputs.clone()
    spoiled[2] = bad
    add(running, model, spoiled, rule, into, squared)
    assert taken
    others = torch.cat([inputs[:2], inputs[3:]])
    truth = loop_clipped_sum(model, squared, others, Threshold(norm=bound))
    assert relative_error(into.flat, truth) < 2e-6


def test_layers_of_different_clipping_groups_are_taken_apart(taken: list[int]) -> None:
    model, inputs = made("deep")
    _, sums, _ = run_until_known(model, inputs, 1.0, PerLayer())
    assert not taken
    assert relative_error(sums[-1], loop_clipped_sum(model, squared, inputs, Threshold(norm=1.0), PerLayer())) < 2e-6


def test_large_layers_and_single_examples_are_taken_apart(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = made("deep")
    run_until_known(model, inputs[:1], 1.0)
    assert not taken
    monkeypatch.setattr(alike, "_SMALL", 1)
    run_until_known(model, inputs, 1.0)
    assert not taken


def test_no_more_layers_wait_for_each_other_than_fit(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "_TOGETHER", 2 * BATCH * LENGTH * (WIDTH + 12))
    model, inputs = made("deep")
    _, sums, _ = run_until_known(model, inputs, 1.0)
    assert max(taken) == 2
    assert relative_error(sums[-1], loop_clipped_sum(model, squared, inputs, Threshold(norm=1.0))) < 2e-6


def test_a_rule_of_the_users_own_is_never_given_several_uses_at_once(taken: list[int]) -> None:
    own = {**RULES, functional.linear: lambda use, axis, batch_size: linear(use, axis, batch_size)}
    model, inputs = made("time first")
    running, into, rule = started(BookKeeping(rules=own), model, Threshold(norm=1.0), OneGroup())
    for _ in range(3):
        add(running, model, inputs, rule, into, squared)
    assert not taken


def test_masked_sums_take_every_layer_by_itself(taken: list[int]) -> None:
    model, inputs = made("deep")
    running, into, rule = started(BookKeeping(), model, Threshold(norm=1.0), OneGroup())
    for _ in range(3):
        add(running, model, inputs, rule, into, squared)
    assert taken
    taken.clear()
    keep = torch.ones_like(into.flat, dtype=torch.bool)
    masked = ClippedSum(flat=into.flat, layout=into.layout, sensitivity=into.sensitivity, keep=keep)
    add(running, model, inputs, rule, masked, squared)
    assert not taken


def test_sums_with_squares_take_every_layer_by_itself() -> None:
    _, into, _ = started(BookKeeping(), made("deep")[0], Threshold(norm=1.0), OneGroup())
    squares = torch.zeros(sum(map(sum, into.layout.shapes)))
    with_squares = ClippedSum(flat=into.flat, layout=into.layout, sensitivity=into.sensitivity, squares=squares)
    assert Clipper(into, BATCH, Planner()).takes_layers
    assert not Clipper(with_squares, BATCH, Planner()).takes_layers


@pytest.mark.parametrize("name", MODELS)
def test_gradients_that_arrive_early_and_gradients_that_are_gathered_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = made(name)
    _, gathered, _ = run_until_known(model, inputs, 1.0)
    monkeypatch.setattr(recorded, "_SMALL", 0)
    _, early, _ = run_until_known(model, inputs, 1.0)
    truth = loop_clipped_sum(model, squared, inputs, Threshold(norm=1.0))
    assert relative_error(early[-1], truth) < 2e-6
    assert relative_error(gathered[-1], early[-1].double()) < 2e-6


def test_a_known_beginning_with_another_end_is_tried_and_exact() -> None:
    model, inputs = made("deep")
    running, into, rule = started(BookKeeping(), model, Threshold(norm=1.0), OneGroup())
    for _ in range(3):
        add(running, model, inputs, rule, into, squared)
    into.clear()

    def other(model: nn.Module, inputs: Tensor) -> Tensor:
        found: Tensor = model(inputs)
        return found.cosh().sum(1)

    for _ in range(3):
        into.clear()
        add(running, model, inputs, rule, into, other)
        assert relative_error(into.flat, loop_clipped_sum(model, other, inputs, Threshold(norm=1.0))) < 2e-6
