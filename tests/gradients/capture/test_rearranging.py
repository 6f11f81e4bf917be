"""Which operations may move examples about, led by their data, and which only look inside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privet.errors import UnsupportedModel
from privet.gradients.capture.capture import Capture
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import add, loop_clipped_sum, relative_error, started
from tests.gradients.zoo import squared

SIZE = 4


def moves(program: Callable[[Tensor, Tensor], object]) -> bool:
    """Whether a program on rows ``[4, 3, 5]`` and numbers ``[4]`` is noted as one that moves rows."""
    rows, numbers = torch.randn(SIZE, 3, 5), torch.tensor([2, 1, 3, 1])
    mark_batch([rows, numbers])
    capture = Capture({}, SIZE)
    capture.__enter__()  # type: ignore[no-untyped-call]
    try:
        program(rows, numbers)
    finally:
        capture.close()
    return capture.recording.rearranges


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x[n.argsort()],
        lambda x, n: x[n > 1],
        lambda x, n: x[x > 0],
        lambda x, n: x[..., n - 1, :, :],
        lambda x, n: x.index_select(0, n),
        lambda x, n: torch.gather(x, 0, n.view(4, 1, 1).expand(4, 3, 5)),
        lambda x, n: x.take_along_dim(n.view(4, 1, 1), 0),
        lambda x, n: torch.sort(n),
        lambda x, n: x.flatten(1).topk(2, dim=0),
        lambda x, n: torch.zeros_like(x).index_add(0, n, x),
        lambda x, n: x.new_zeros(4, 3, 5).index_put((n,), x),
        lambda x, n: x.masked_select(x > 0),
        lambda x, n: n.nonzero(),
        lambda x, n: torch.where(n > 1),
        lambda x, n: x.repeat_interleave(n, 0),
        lambda x, n: x.flatten(0, 1)[n],
        lambda x, n: x.transpose(0, 1)[:, n],
        lambda x, n: x[sorted(range(4), key=n.tolist().__getitem__)],
        lambda x, n: torch.index_select(input=x, dim=0, index=n),
    ],
)
def test_rows_picked_sorted_or_placed_by_the_data_are_noted(program: Callable[[Tensor, Tensor], object]) -> None:
    assert moves(program)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x[torch.arange(4), n - 1],
        lambda x, n: x[:, 0],
        lambda x, n: x[..., -1, None],
        lambda x, n: x[torch.tensor([0, 1])],
        lambda x, n: x.gather(1, n.view(4, 1, 1).expand(4, 1, 5) - 1),
        lambda x, n: x.sort(dim=2),
        lambda x, n: x.topk(2),
        lambda x, n: x.argsort(dim=-1),
        lambda x, n: torch.where(x > 0, x, 0),
        lambda x, n: x.masked_fill(x > 0, 0),
        lambda x, n: torch.nn.functional.embedding(n, torch.randn(6, 3)),
        lambda x, n: torch.randn(8, 3)[n],
        lambda x, n: x.repeat_interleave(2, 0),
        lambda x, n: pad_packed_sequence(pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)),
    ],
)
def test_what_stays_within_examples_is_not_noted(program: Callable[[Tensor, Tensor], object]) -> None:
    assert not moves(program)


def test_with_one_example_nothing_can_be_out_of_order() -> None:
    rows = torch.randn(1, 3)
    mark_batch([rows])
    capture = Capture({}, 1)
    capture.__enter__()  # type: ignore[no-untyped-call]
    try:
        rows[rows.sum(1).argsort()]
    finally:
        capture.close()
    assert not capture.recording.rearranges


class Chosen(nn.Module):
    """Computes on the tokens that count, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        places = (inputs[:, :, 0] > 0).nonzero(as_tuple=True)
        return inputs.new_zeros(*inputs.shape[:2], 2).index_put(places, self.inner(inputs[places]))


def test_a_row_for_each_example_in_one_batch_is_not_taken_for_the_rows_of_the_next() -> None:
    torch.manual_seed(0)
    model, clipping = Chosen().double(), Threshold(norm=0.1)
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    signs = torch.tensor([[1, -1]]).expand(4, 2)
    others = torch.tensor([[1, 1], [-1, -1], [1, -1], [-1, 1]])  # as many rows, but not one of each example
    running, into, rule = started(BookKeeping(), model, clipping)
    try:
        for _ in range(3):
            into.clear()
            inputs[:, :, 0] = inputs[:, :, 0].abs() * signs
            add(running, model, inputs, rule, into, squared)
            assert relative_error(into.flat, loop_clipped_sum(model, squared, inputs, clipping)) <= 1e-9
        inputs[:, :, 0] = inputs[:, :, 0].abs() * others
        with pytest.raises(UnsupportedModel, match="mixes the examples of a batch"):
            add(running, model, inputs, rule, into, squared)
    finally:
        running.close()
