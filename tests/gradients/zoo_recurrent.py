"""Recurrent networks in all their options."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Recurrent = nn.LSTM | nn.GRU | nn.RNN


def hidden_of(states: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    return states if isinstance(states, Tensor) else torch.cat(states, -1)


class Sequences(nn.Module):
    """All outputs and all final states of a recurrent layer, examples first."""

    def __init__(self, layer: Recurrent, *, width: int = 5) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(3, width), layer

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.before(inputs)
        inputs = inputs if self.layer.batch_first else inputs.transpose(0, 1)
        out, states = self.layer(inputs)
        out = out if self.layer.batch_first else out.transpose(0, 1)
        return torch.cat([out.flatten(1), hidden_of(states).transpose(0, 1).flatten(1)], 1)


class Twice(nn.Module):
    """One recurrent layer applied twice: every weight has two uses."""

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(inputs)[0])[0]
        return out


class Root(nn.Module):
    """A recurrent layer with nothing trainable before it."""

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layer(inputs)[0]
        return out


class Started(nn.Module):
    """Initial states computed from each example, or learned and copied for each example."""

    def __init__(self, layer: Recurrent, *, learned: bool, by_repeat: bool = False) -> None:
        super().__init__()
        self.layer, self.by_repeat = layer, by_repeat
        rows = layer.num_layers * (2 if layer.bidirectional else 1)
        self.start = nn.Parameter(torch.randn(rows, 1, layer.hidden_size)) if learned else None
        self.first = None if learned else nn.Linear(3, rows * layer.hidden_size)
        self.rows = rows

    def forward(self, inputs: Tensor) -> Tensor:
        if self.start is not None:
            size = len(inputs)
            start = self.start.repeat(1, size, 1) if self.by_repeat else self.start.expand(-1, size, -1).contiguous()
        else:
            assert self.first is not None
            start = self.first(inputs[:, 0]).view(len(inputs), self.rows, -1).transpose(0, 1).contiguous()
        states = (start, start.tanh()) if isinstance(self.layer, nn.LSTM) else start
        out, last = self.layer(inputs, states)
        return torch.cat([out.flatten(1), hidden_of(last).transpose(0, 1).flatten(1)], 1)


class Packed(nn.Module):
    """Sequences of different lengths, packed; zero is the padding token."""

    def __init__(self, layer: Recurrent, *, by_lookup: bool = False, started: bool = False) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 5), layer
        self.by_lookup, self.started = by_lookup, started

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1).clamp(min=1).cpu()
        order = {"batch_first": True, "enforce_sorted": False}
        if self.by_lookup:  # the look-up itself would then see rows in packed order
            packed = pack_padded_sequence(self.table(ids).tanh(), lengths, **order)
            packed = PackedSequence(packed.data * 2, *packed[1:])
        else:
            packed = pack_padded_sequence(self.table(ids), lengths, **order)
        states = None
        if self.started:
            start = self.table(ids[:, 0]).unsqueeze(0)
            states = (start, start) if isinstance(self.layer, nn.LSTM) else start
        out, last = self.layer(packed, states)
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=ids.shape[1])
        return torch.cat([padded.flatten(1), hidden_of(last).transpose(0, 1).flatten(1)], 1)


class PackedInOrder(nn.Module):
    """Sequences that come sorted by length, packed with time first."""

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(3, 5), layer

    def forward(self, inputs: Tensor) -> Tensor:
        # the same length for all: the one way in which a batch of any composition is sorted
        lengths = torch.full((len(inputs),), inputs.shape[1], device="cpu")
        packed = pack_padded_sequence(self.before(inputs).transpose(0, 1), lengths, enforce_sorted=True)
        out: Tensor = pad_packed_sequence(self.layer(packed)[0])[0]
        return out.transpose(0, 1)


class Cells(nn.Module):
    """Single steps in a Python loop: one weight, as many uses as steps."""

    def __init__(self, cell: nn.LSTMCell | nn.GRUCell | nn.RNNCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, inputs: Tensor) -> Tensor:
        states = None
        for step in inputs.unbind(1):
            states = self.cell(step, states)
        assert states is not None
        return hidden_of(states)


def only(layer: Recurrent, *names: str) -> Recurrent:
    """Freeze all parameters but those."""
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name in names)
    return layer


def ragged(batch: int) -> Tensor:
    """Token sequences of lengths one to six, in no order."""
    ids = torch.randint(1, 9, (batch, 6))
    lengths = torch.tensor([3, 6, 1, 2, 6, 4, 5, 2, 3])[torch.arange(batch) % 9]
    return ids.masked_fill(torch.arange(6) >= lengths.unsqueeze(1), 0)


def frames(batch: int) -> Tensor:
    return torch.randn(batch, 4, 3)


RECURRENT: list[tuple[str, Callable[[], nn.Module], Callable[[int], Tensor]]] = [
    ("lstm", lambda: Sequences(nn.LSTM(5, 4, batch_first=True)), frames),
    ("lstm_time_first", lambda: Sequences(nn.LSTM(5, 4)), frames),
    ("lstm_no_bias", lambda: Root(nn.LSTM(3, 4, bias=False, batch_first=True)), frames),
    ("lstm_deep_bidirectional", lambda: Sequences(nn.LSTM(5, 3, 2, bidirectional=True)), frames),
    ("lstm_started", lambda: Started(nn.LSTM(3, 4, 2, batch_first=True), learned=False), frames),
    ("lstm_learned_start", lambda: Started(nn.LSTM(3, 4, batch_first=True), learned=True), frames),
    ("lstm_packed", lambda: Packed(nn.LSTM(5, 4, 2, bidirectional=True), by_lookup=True), ragged),
    ("lstm_packed_started", lambda: Packed(nn.LSTM(5, 5), started=True), ragged),
    ("lstm_packed_in_order", lambda: PackedInOrder(nn.LSTM(5, 4)), frames),
    ("lstm_hidden_only", lambda: Root(only(nn.LSTM(3, 4, batch_first=True), "weight_hh_l0", "bias_hh_l0")), frames),
    ("lstm_upper_layer_only", lambda: Root(only(nn.LSTM(3, 4, 2, batch_first=True), "weight_ih_l1")), frames),
    ("gru", lambda: Sequences(nn.GRU(5, 4, batch_first=True)), frames),
    ("gru_no_bias", lambda: Sequences(nn.GRU(5, 4, bias=False)), frames),
    ("gru_deep_bidirectional", lambda: Sequences(nn.GRU(5, 3, 2, bidirectional=True, batch_first=True)), frames),
    ("gru_learned_start", lambda: Started(nn.GRU(3, 4, 2, batch_first=True), learned=True, by_repeat=True), frames),
    ("gru_packed", lambda: Packed(nn.GRU(5, 4, bidirectional=True)), ragged),
    ("rnn_tanh", lambda: Sequences(nn.RNN(5, 4, 2, batch_first=True)), frames),
    ("rnn_relu_bidirectional", lambda: Sequences(nn.RNN(5, 4, nonlinearity="relu", bidirectional=True)), frames),
    ("rnn_packed", lambda: Packed(nn.RNN(5, 4, bidirectional=True, bias=False)), ragged),
    ("lstm_twice", lambda: Twice(nn.LSTM(3, 3, batch_first=True)), frames),
    ("lstm_cells", lambda: Cells(nn.LSTMCell(3, 4)), frames),
    ("gru_cells", lambda: Cells(nn.GRUCell(3, 4)), frames),
    ("rnn_cells", lambda: Cells(nn.RNNCell(3, 4)), frames),
    ("rnn_relu_cells", lambda: Cells(nn.RNNCell(3, 4, bias=False, nonlinearity="relu")), frames),
]
