"""Which axis tells examples apart is found right where shapes alone cannot say, and never guessed where it matters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.trial import trials
from privet.gradients.rules.example_axis import FoldedAxis, WholeAxis, candidates, fits
from privet.mechanism.clipping import Threshold
from privet.mechanism.sums import ClippedSum
from tests.gradients.reference import engine_clipped_sum, layout_of, loop_clipped_sum, relative_error, trainable
from tests.gradients.zoo import Attention, BareParameters, FoldedTime, FrameConvolution, Positions, squared

CLIPPING = Threshold(norm=0.3)


def error_of(model: nn.Module, inputs: Tensor, physical_batch_size: int | None = None) -> float:
    model = model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs, CLIPPING, physical_batch_size=physical_batch_size)
    return relative_error(found, loop_clipped_sum(model, squared, inputs, CLIPPING))


class TimeFirst(nn.Module):
    """A transformer layer in its default order: time first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layer(inputs.transpose(0, 1)).transpose(0, 1)
        return out


class ExpandedOverTime(nn.Module):
    """A parameter copied once per time step: not once per example, even where there are as many of both."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(inputs * self.gate.expand(inputs.shape[1], -1))
        return out


SIZE = 7
AS_MANY_STEPS_AS_EXAMPLES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "attention, batch first": (lambda: Attention(batch_first=True), lambda: torch.randn(SIZE, SIZE, 6)),
    "attention, time first": (lambda: Attention(batch_first=False), lambda: torch.randn(SIZE, SIZE, 6)),
    "transformer, time first": (TimeFirst, lambda: torch.randn(SIZE, SIZE, 6)),
    "folded time, batch major": (lambda: FoldedTime(time_first=False), lambda: torch.randn(SIZE, SIZE, 6)),
    "folded time, time major": (lambda: FoldedTime(time_first=True), lambda: torch.randn(SIZE, SIZE, 6)),
    "positions": (Positions, lambda: torch.randint(0, 11, (SIZE, 7))),
    "token and positions": (BareParameters, lambda: torch.randn(5, 4, 6)),
    "frames": (FrameConvolution, lambda: torch.randn(SIZE, SIZE, 1, 5, 5)),
    "widths like the batch": (
        lambda: nn.Sequential(nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)),
        lambda: torch.randn(SIZE, SIZE, SIZE),
    ),
    "channels like the batch": (
        lambda: nn.Sequential(nn.Conv1d(SIZE, SIZE, 3, padding=1), nn.GroupNorm(1, SIZE)),
        lambda: torch.randn(SIZE, SIZE, SIZE),
    ),
}


@pytest.mark.parametrize("name", AS_MANY_STEPS_AS_EXAMPLES)
def test_other_axes_as_long_as_the_batch_do_not_confuse(name: str) -> None:
    torch.manual_seed(0)
    build, inputs = AS_MANY_STEPS_AS_EXAMPLES[name]
    assert error_of(build(), inputs()) <= 1e-9


def one_wide(time_first: bool) -> nn.Module:
    model = FoldedTime(time_first=time_first)
    model.layer = nn.Linear(6, 1)
    return model


def one_channel() -> nn.Module:
    model = FrameConvolution()
    model.layer = nn.Conv2d(1, 1, 3)
    return model


@pytest.mark.parametrize("physical_batch_size", [1, 2, 4])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: one_wide(False), (5, 6)),
        (lambda: one_wide(True), (5, 6)),
        (one_channel, (3, 1, 5, 5)),
        (lambda: nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 1)), (5, 6)),
        (lambda: Attention(batch_first=False), (1, 6)),
    ],
    ids=["folded, batch major", "folded, time major", "frames", "one output", "one time step"],
)
def test_axes_of_length_one_are_no_examples(
    build: Callable[[], nn.Module], shape: tuple[int, ...], physical_batch_size: int
) -> None:
    torch.manual_seed(0)
    assert error_of(build(), torch.randn(4, *shape), physical_batch_size) <= 1e-9


@pytest.mark.parametrize("lengths", [(1, 3), (3, 1), (4, 3), (3, 4), (1, 4, 2)], ids=str)
@pytest.mark.parametrize(
    "build",
    [
        lambda: FoldedTime(time_first=True),
        lambda: FoldedTime(time_first=False),
        lambda: Attention(batch_first=False),
        lambda: Attention(batch_first=True),
    ],
    ids=["folded, time major", "folded, batch major", "attention, time first", "attention, batch first"],
)
def test_an_axis_found_at_one_length_holds_at_every_other(
    build: Callable[[], nn.Module], lengths: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = build().double()
    layout, rule = layout_of(model), CLIPPING.for_groups(1)
    running = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    for length in lengths:
        inputs = torch.randn(4, length, 6, dtype=torch.float64)
        flat = torch.zeros(layout.num_coordinates, dtype=torch.float64)
        running.begin(4)
        mark_batch([inputs])
        into = ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity)
        running.add_clipped(squared(model, inputs), rule, into)
        assert relative_error(flat, loop_clipped_sum(model, squared, inputs, CLIPPING)) <= 1e-9
    running.close()


class Gated(nn.Module):
    """Time first, with gates in the data: an example decides which of its steps have a gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        steps = inputs.transpose(0, 1)
        return (self.layer(steps[..., :3]) * steps[..., 3:]).transpose(0, 1)


@pytest.mark.parametrize("size", [2, 4, 5, 8])
def test_an_example_cannot_choose_the_axis_and_so_count_several_times(size: int) -> None:
    torch.manual_seed(0)
    model, clipping = Gated().double(), Threshold(norm=1.0)

    def loss(gated: nn.Module, inputs: Tensor) -> Tensor:
        return gated(inputs).sum((1, 2))

    for group in (*trials(size, torch.device("cpu")), torch.ones(size) > 0):
        steps = group.nonzero().flatten()
        for example in steps.tolist():
            inputs = torch.zeros(size, size, 4, dtype=torch.float64)
            inputs[example, steps] = torch.tensor([100.0, 0.0, 0.0, 1.0], dtype=torch.float64)
            moved = engine_clipped_sum(BookKeeping(), model, loss, inputs, clipping)
            assert float(moved.norm()) <= 1 + 1e-6  # all other examples have no gradient


def test_candidates_are_every_axis_of_the_right_length_and_both_foldings() -> None:
    assert list(candidates(torch.Size([4, 3, 4]), 4)) == [WholeAxis(axis=0), WholeAxis(axis=2)]
    assert list(candidates(torch.Size([12, 3]), 4)) == [
        FoldedAxis(examples_first=True),
        FoldedAxis(examples_first=False),
    ]
    assert list(candidates(torch.Size([5, 3]), 4)) == []


def test_an_expansion_over_time_is_told_from_one_over_examples_by_another_batch_size() -> None:
    torch.manual_seed(0)
    model = ExpandedOverTime().double()
    inputs = torch.randn(2 * SIZE - 1, SIZE, 6, dtype=torch.float64)
    expected = loop_clipped_sum(model, squared, inputs, CLIPPING)
    # a first batch of another size shows what the length is; alone, equal lengths cannot be told apart and are refused
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs.flip(0), CLIPPING, physical_batch_size=SIZE - 1)
    assert relative_error(found, expected) <= 1e-9
    with pytest.raises(
        UnsupportedModel, match=r"test_example_axis\.py:\d+, in forward\).*examples at different places"
    ):
        engine_clipped_sum(BookKeeping(), model, squared, inputs[:SIZE], CLIPPING)


def test_axes_bring_the_examples_to_the_front() -> None:
    tensor = torch.arange(24).reshape(4, 6)
    assert torch.equal(WholeAxis(axis=1).in_front(tensor, 6), tensor.T)
    assert FoldedAxis(examples_first=True).in_front(tensor, 2)[1].tolist() == tensor[2:].tolist()
    assert FoldedAxis(examples_first=False).in_front(tensor, 2)[1].tolist() == tensor[1::2].tolist()


def test_an_axis_fits_only_if_absent_examples_have_no_gradient() -> None:
    absent = torch.tensor([True, False, True])
    gradient = torch.zeros(3, 3)
    gradient[1] = 1
    assert fits(WholeAxis(axis=0), gradient, absent)
    assert not fits(WholeAxis(axis=1), gradient, absent)
    assert fits(WholeAxis(axis=0), None, absent)


@pytest.mark.parametrize("size", [2, 3, 9, 64])
def test_trials_leave_out_some_examples_and_part_every_two(size: int) -> None:
    sets = torch.stack(list(trials(size, torch.device("cpu"))))
    assert ((sets.sum(1) > 0) & (sets.sum(1) < size)).all()
    # one way is not enough: that the first reaches the second's loss shows only when the first alone is left out
    first_alone = sets.mT.unsqueeze(1) & ~sets.mT.unsqueeze(0)
    assert (first_alone.any(2) | torch.eye(size, dtype=torch.bool)).all()
