"""Single steps of LSTM, GRU and RNN written out in operations that have rules of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _gates(inputs: Tensor, hidden: Tensor, weights: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    weight, hidden_weight, bias, hidden_bias = (*weights, None, None)[:4]
    assert weight is not None, "a cell always has two weights"
    assert hidden_weight is not None, "a cell always has two weights"
    # type_as changes nothing here, but says that an initial state of zeros has one row per example
    hidden = hidden.type_as(inputs)
    return functional.linear(inputs, weight, bias), functional.linear(hidden, hidden_weight, hidden_bias)


def lstm_cell(inputs: Tensor, states: Sequence[Tensor], *weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: hidden and cell state."""
    given, inner = _gates(inputs, states[0], weights)
    gate, let, fresh, out = (given + inner).chunk(4, 1)
    cell = let.sigmoid() * states[1] + gate.sigmoid() * fresh.tanh()
    return out.sigmoid() * cell.tanh(), cell


def gru_cell(inputs: Tensor, hidden: Tensor, *weights: Tensor | None) -> Tensor:
    """One step of a GRU."""
    given, inner = _gates(inputs, hidden, weights)
    (reset, update, fresh), (inner_reset, inner_update, recalled) = given.chunk(3, 1), inner.chunk(3, 1)
    new = (fresh + (reset + inner_reset).sigmoid() * recalled).tanh()
    return new + (update + inner_update).sigmoid() * (hidden - new)


def rnn_tanh_cell(inputs: Tensor, hidden: Tensor, *weights: Tensor | None) -> Tensor:
    """One step of a plain recurrence through tanh."""
    given, inner = _gates(inputs, hidden, weights)
    return (given + inner).tanh()


def rnn_relu_cell(inputs: Tensor, hidden: Tensor, *weights: Tensor | None) -> Tensor:
    """One step of a plain recurrence through ReLU."""
    given, inner = _gates(inputs, hidden, weights)
    return (given + inner).relu()


CELLS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: rnn_tanh_cell,
    torch.rnn_relu_cell: rnn_relu_cell,
}
"""Torch's single steps and their replacements while a physical batch is out."""
