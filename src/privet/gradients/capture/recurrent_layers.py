"""Runs LSTM, GRU and RNN layers in parts, so that per-example gradients of their weights exist.

Torch runs a whole stack of recurrent layers as one operation. Here the same stack is run layer by layer: the inputs'
contribution to the gates of all time steps is one linear map, and the recurrence over those gates is one operation.
The gradient of the gates, ``d``, then gives both weights of a layer: ``d x inputs`` and ``d x previous states``.

Packed sequences are spread out to ``[time, batch]`` in the order of the examples; no gradient reaches the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture.recurrent_loops import GruLoop, InputMap, LstmLoop, RnnLoop

Note = Callable[[Callable[..., Any], tuple[Any, ...], Tensor], None]
"""Takes an operation, its arguments and the tensor whose gradient decides the gradients of those arguments."""

Composite = Callable[..., tuple[Tensor, ...]]
States = tuple[Tensor, ...]

_ORDER = "_privet_order"


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The parameters of one direction of one layer."""

    inputs: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None

    @property
    def in_order(self) -> tuple[Tensor | None, ...]:
        """All of them, in the order in which torch keeps them."""
        return self.inputs, self.hidden, self.input_bias, self.hidden_bias


class Cell(Protocol):
    """A kind of recurrent layer."""

    @property
    def fused(self) -> Callable[..., Any]:
        """Torch's operation for a whole layer."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """The operation under which a layer's weights are noted."""
        ...

    @property
    def hidden_bias_inside(self) -> bool:
        """Whether the hidden bias acts inside the recurrence instead of simply adding to the gates."""
        ...

    def loop(self, gates: Tensor, states: States, weights: Weights, sizes: Sequence[int]) -> tuple[Tensor, States]:
        """Run step by step: states before and after every step ``[time + 1, batch, width]``, and the last states."""
        ...


def summed_gates(
    inputs: Tensor, before: Tensor, weight: Tensor, hidden: Tensor, bias: Tensor | None, hidden_bias: Tensor | None
) -> Tensor:
    """Gates of a cell into which inputs and previous states enter as one sum (LSTM, RNN)."""
    return functional.linear(inputs, weight, bias) + functional.linear(before, hidden, hidden_bias)


def reset_gates(
    inputs: Tensor, before: Tensor, weight: Tensor, hidden: Tensor, bias: Tensor | None, hidden_bias: Tensor | None
) -> Tensor:
    """Gates of a cell that damps the previous states' part of the last third by the first third (GRU).

    The damping is a constant here: its own dependence on the weights is accounted for by the first third.
    """
    given, inner = functional.linear(inputs, weight, bias), functional.linear(before, hidden, hidden_bias)
    width = before.shape[-1]
    reset = (given[..., :width] + inner[..., :width]).sigmoid().detach()
    return given + torch.cat([inner[..., : 2 * width], reset * inner[..., 2 * width :]], -1)


@dataclass(frozen=True, kw_only=True)
class _OfSums:
    """A cell into which inputs and previous states enter as one sum, biases included."""

    function: Callable[..., Any] = summed_gates
    hidden_bias_inside: bool = False


@dataclass(frozen=True, kw_only=True)
class Lstm(_OfSums):
    """Long short-term memory without projection."""

    fused: Callable[..., Any] = torch._VF.lstm

    def loop(self, gates: Tensor, states: States, weights: Weights, sizes: Sequence[int]) -> tuple[Tensor, States]:
        hidden, cell = LstmLoop.apply(gates, *states, weights.hidden, sizes)  # type: ignore[no-untyped-call]
        return hidden, (hidden[-1], cell)


@dataclass(frozen=True, kw_only=True)
class Gru:
    """Gated recurrent unit."""

    fused: Callable[..., Any] = torch._VF.gru
    function: Callable[..., Any] = reset_gates
    hidden_bias_inside: bool = True

    def loop(self, gates: Tensor, states: States, weights: Weights, sizes: Sequence[int]) -> tuple[Tensor, States]:
        hidden = GruLoop.apply(gates, *states, weights.hidden, weights.hidden_bias, sizes)  # type: ignore[no-untyped-call]
        return hidden, (hidden[-1],)


@dataclass(frozen=True, kw_only=True)
class Rnn(_OfSums):
    """A plain recurrence through tanh or ReLU."""

    fused: Callable[..., Any]
    rectified: bool

    def loop(self, gates: Tensor, states: States, weights: Weights, sizes: Sequence[int]) -> tuple[Tensor, States]:
        hidden = RnnLoop.apply(gates, *states, weights.hidden, self.rectified, sizes)  # type: ignore[no-untyped-call]
        return hidden, (hidden[-1],)


def fused_recurrence(
    cell: Cell, gates: Tensor, states: States, weights: Weights, sizes: Sequence[int]
) -> tuple[Tensor, States]:
    """Run torch's own kernel over gates that are known already: its input weight is the identity.

    The gradient of the kernel's input is then the gradient of the gates. One large product more than needed, but no
    step of Python: faster where launches are expensive.
    """
    steps, batch, size = gates.shape
    zeros = gates.new_zeros(size)
    inner_bias = weights.hidden_bias if cell.hidden_bias_inside and weights.hidden_bias is not None else zeros
    parts = [torch.eye(size, dtype=gates.dtype, device=gates.device), weights.hidden, zeros, inner_bias]
    # one block of memory in the kernel's own order, which always has room for biases: it would copy and warn otherwise
    chunk = torch.split_with_sizes(torch.cat([part.reshape(-1) for part in parts]), [part.numel() for part in parts])
    flat = [piece.view(part.shape) for piece, part in zip(chunk, parts, strict=True)]
    first = tuple(state.unsqueeze(0).contiguous() for state in states)
    given = first if isinstance(cell, Lstm) else first[0]
    options = (flat, True, 1, 0.0, True, False)  # biases, one layer, no dropout, training, one direction
    if sizes[-1] < batch:
        rows = _packed_rows(sizes, batch, gates.device)
        packed = gates.reshape(-1, size).index_select(0, rows)
        out, *last = cell.fused(packed, torch.tensor(sizes, device="cpu"), given, *options)
        out = out.new_zeros(steps * batch, out.shape[1]).index_copy(0, rows, out).view(steps, batch, -1)
    else:
        out, *last = cell.fused(gates, given, *options, False)
    return torch.cat([first[0], out]), tuple(state.squeeze(0) for state in last)


def looped_recurrence(
    cell: Cell, gates: Tensor, states: States, weights: Weights, sizes: Sequence[int]
) -> tuple[Tensor, States]:
    """Run the steps in Python, as one node of the autograd graph: faster where arithmetic is expensive."""
    # through a view: autograd says whether gradients of an input are needed only if the input is no leaf
    hidden, bias = weights.hidden.view_as(weights.hidden), weights.hidden_bias
    weights = replace(weights, hidden=hidden, hidden_bias=None if bias is None else bias.view_as(bias))
    return cell.loop(gates, states, weights, sizes)


def _packed_rows(sizes: Sequence[int], batch: int, device: torch.device) -> Tensor:
    """Places of a packed sequence's rows in ``[time, batch]``."""
    counts = torch.tensor(sizes, device="cpu")
    return (torch.arange(batch, device="cpu") < counts.unsqueeze(1)).flatten().nonzero().flatten().to(device)


@dataclass(frozen=True, kw_only=True)
class Order:
    """Where the sequences of a recurrent layer stand among the examples, and how long they are."""

    sizes: Sequence[int]
    sorted_from: Tensor | None  # example of each row of the recurrence; None if rows are the examples in order

    def to_rows(self, tensor: Tensor) -> Tensor:
        """Bring ``[time, example, ...]`` into the order of the recurrence."""
        return tensor if self.sorted_from is None else tensor.index_select(1, self.sorted_from)

    def to_examples(self, tensor: Tensor) -> Tensor:
        """Bring ``[time, row, ...]`` into the order of the examples."""
        return tensor if self.sorted_from is None else tensor.index_select(1, self.sorted_from.argsort())

    def flipped(self, tensor: Tensor) -> Tensor:
        """Reverse the time of each row within its own length; twice is the identity."""
        steps, batch = tensor.shape[:2]
        if self.sizes[-1] == batch:
            return tensor.flip(0)
        counts = torch.tensor(self.sizes, device=tensor.device)
        lengths = (torch.arange(batch, device=tensor.device).unsqueeze(1) < counts).sum(1)
        time = torch.arange(steps, device=tensor.device).unsqueeze(1)
        source = torch.where(time < lengths, lengths - 1 - time, time)
        return tensor.gather(0, source.view(steps, batch, *[1] * (tensor.dim() - 2)).expand_as(tensor))


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """One of torch's recurrent operations, run layer by layer."""

    cell: Cell
    recurrence: Callable[[Cell, Tensor, States, Weights, Sequence[int]], tuple[Tensor, States]] | None = None

    def __call__(self, note: Note, *args: Any) -> tuple[Tensor, ...]:
        """Run the operation on its own arguments, noting each layer's weights.

        Guarantee:
            The result and its gradients are those of torch's operation up to rounding. No weight acts unnoted.

        Raises:
            UnsupportedModel: for a projection (``proj_size``), and inside activation checkpointing, which would repeat
                the layer in another form.
        """
        _refuse_checkpointing()
        # packed: (data, batch_sizes, states, weights, ...); otherwise: (inputs, states, weights, ..., batch_first)
        if isinstance(args[3], list | tuple):
            data, counts, *rest = args
            order = Order(sizes=counts.tolist(), sorted_from=getattr(counts, _ORDER, None))
            inputs, rows = _spread_out(data, order)
            out, last = self._layers(note, inputs, order, *rest)
            return out.flatten(0, 1).index_select(0, rows), *last
        data, *rest, batch_first = args
        inputs = data.transpose(0, 1) if batch_first else data
        order = Order(sizes=[inputs.shape[1]] * inputs.shape[0], sorted_from=None)
        out, last = self._layers(note, inputs, order, *rest)
        return out.transpose(0, 1) if batch_first else out, *last

    def _layers(
        self, note: Note, inputs: Tensor, order: Order, states: Any, flat: Sequence[Tensor], bias: bool,
        num_layers: int, dropout: float, training: bool, bidirectional: bool,
    ) -> tuple[Tensor, States]:  # fmt: skip
        directions = 2 if bidirectional else 1
        per_layer = zip(*[iter(flat)] * (len(flat) // (num_layers * directions)), strict=True)
        given = states if isinstance(states, list | tuple) else (states,)
        last: list[States] = []
        for layer in range(num_layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                start = tuple(state[layer * directions + direction] for state in given)
                weights = _weights(next(per_layer), bias=bias)
                out, end = self._direction(note, inputs, order, start, weights, backwards=direction == 1)
                outputs.append(out)
                last.append(end)
            inputs = torch.cat(outputs, -1) if bidirectional else outputs[0]
            if dropout > 0 and training and layer < num_layers - 1:
                inputs = functional.dropout(inputs, dropout)
        return inputs, tuple(torch.stack(list(kind)) for kind in zip(*last, strict=True))

    def _direction(
        self, note: Note, inputs: Tensor, order: Order, states: States, weights: Weights, *, backwards: bool
    ) -> tuple[Tensor, States]:
        with torch.autocast(inputs.device.type, enabled=False):  # gates sum over time: they keep the weights' precision
            inputs = inputs.to(weights.hidden.dtype)
            bias = weights.input_bias
            if bias is not None and weights.hidden_bias is not None and not self.cell.hidden_bias_inside:
                bias = bias + weights.hidden_bias
            noted = _input_map(inputs.contiguous(), weights.inputs, bias)
            if weights.hidden.requires_grad and not noted.requires_grad:
                noted.requires_grad_()  # only the hidden weight is trained: its gradient comes from here all the same
            gates = order.to_rows(noted)
            gates = order.flipped(gates) if backwards else gates
            run = self.recurrence or (fused_recurrence if gates.is_cuda else looped_recurrence)
            states = tuple(state.to(gates.dtype) for state in states)
            hidden, last = run(self.cell, gates, states, weights, order.sizes)
            before, after = hidden[:-1].detach(), hidden[1:]
            if backwards:
                before, after = order.flipped(before), order.flipped(after)
            note(self.cell.function, (inputs, order.to_examples(before), *weights.in_order), noted)
            return order.to_examples(after), last


def _input_map(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if inputs.is_cuda:
        return functional.linear(inputs, weight, bias)
    # through a view, as in the recurrence: autograd says whether gradients are needed only of what is no leaf
    gates: Tensor = InputMap.apply(inputs, weight.view_as(weight), bias)  # type: ignore[no-untyped-call]
    return gates


def _weights(tensors: Sequence[Tensor], *, bias: bool) -> Weights:
    if len(tensors) not in ((4,) if bias else (2,)):
        raise NoExampleRule(
            "An LSTM with a projection (proj_size > 0) has no exact per-example rule. Use proj_size=0, followed by an "
            "nn.Linear where a narrower output is wanted."
        )
    return Weights(
        inputs=tensors[0],
        hidden=tensors[1],
        input_bias=tensors[2] if bias else None,
        hidden_bias=tensors[3] if bias else None,
    )


def _spread_out(data: Tensor, order: Order) -> tuple[Tensor, Tensor]:
    """Bring packed rows into ``[time, example, ...]``; return also the place of each row."""
    steps, batch = len(order.sizes), order.sizes[0]
    rows = _packed_rows(order.sizes, batch, data.device)
    if order.sorted_from is not None:
        rows = rows - rows % batch + order.sorted_from[rows % batch]
    spread = data.new_zeros(steps * batch, *data.shape[1:]).index_copy(0, rows, data)
    return spread.view(steps, batch, *data.shape[1:]), rows


def _refuse_checkpointing() -> None:
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks is not None and "checkpoint" in getattr(hooks[0], "__module__", ""):
        raise UnsupportedModel(
            "A recurrent layer (nn.LSTM, nn.GRU, nn.RNN) was called inside torch.utils.checkpoint, which would repeat "
            "it in the backward pass in another form than it first ran. Leave recurrent layers outside checkpoints."
        )


def kept_inside(function: Callable[..., Any], result: Any) -> list[Tensor]:
    """Return the tensors that the recurrences of a recurrent operation keep for the backward pass."""
    if function not in COMPOSITES:
        return []
    found: list[Tensor] = []
    seen: set[Any] = {None}
    queue: list[Any] = [tensor.grad_fn for tensor in result if isinstance(tensor, Tensor)]
    while queue:
        node = queue.pop()
        if node not in seen:
            seen.add(node)
            found += getattr(node, "saved_tensors", ())
            queue.extend(child for child, _ in node.next_functions)
    return found


def remember_order(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Note by which permutation sequences were sorted before they were packed.

    A packed sequence reaches a recurrent layer sorted by length, without its permutation. A sort that was not noted
    does no harm: examples then seem to be mixed, and the model is refused.
    """
    if function in _SELECTING:
        axis, index = _named(args, kwargs, "input", "dim", "index")[1:]
        setattr(result, _ORDER, (axis, index))
    elif function is PACKING:
        inputs, _, batch_first = args
        axis, index = getattr(inputs, _ORDER, (None, None))
        if axis == (0 if batch_first else 1):
            setattr(result[1], _ORDER, index)


def _named(args: Sequence[Any], kwargs: Mapping[str, Any], *names: str) -> list[Any]:
    found = dict(zip(names, args, strict=False)) | dict(kwargs)
    return [found[name] for name in names]


_SELECTING: frozenset[Callable[..., Any]] = frozenset([torch.index_select, Tensor.index_select])
PACKING: Callable[..., Any] = torch._VF._pack_padded_sequence
ORDERING = _SELECTING | {PACKING}
"""Operations after which :func:`remember_order` has something to note."""

COMPOSITES: Mapping[Callable[..., Any], Composite] = {
    torch._VF.lstm: Recurrent(cell=Lstm()),
    torch._VF.gru: Recurrent(cell=Gru()),
    torch._VF.rnn_tanh: Recurrent(cell=Rnn(fused=torch._VF.rnn_tanh, rectified=False)),
    torch._VF.rnn_relu: Recurrent(cell=Rnn(fused=torch._VF.rnn_relu, rectified=True)),
}
"""Operations that are run in parts while a physical batch is out."""
