"""Recurrent layers taken apart: the same function, noted once per layer, by loop and by fused kernel alike."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from privet.errors import UnsupportedModel
from privet.gradients.capture import recurrent_layers
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.capture.recurrent_layers import COMPOSITES, Recurrent, fused_recurrence, looped_recurrence
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.norms import processor_products
from privet.gradients.rules.layer_rules import RULES
from privet.mechanism.clipping import Threshold
from privet.mechanism.sums import ClippedSum
from tests.gradients.reference import engine_clipped_sum, layout_of, loop_clipped_sum, relative_error, trainable
from tests.gradients.zoo import squared
from tests.gradients.zoo_recurrent import RECURRENT, Packed, Root, Sequences, Started, frames, ragged

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
SIZES = (5, 5, 3, 1)  # running sequences per step


def composite_of(name: str) -> Recurrent:
    found = COMPOSITES[getattr(torch._VF, name)]
    assert isinstance(found, Recurrent)
    return found


def states_of(layer: nn.RNNBase, batch: int) -> Any:
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    start = torch.randn(rows, batch, layer.hidden_size, dtype=torch.float64, requires_grad=True)
    return (start, start.tanh()) if isinstance(layer, nn.LSTM) else start


def arguments(layer: nn.RNNBase, *, packed: bool) -> tuple[Any, ...]:
    rest = (list(layer.parameters()), layer.bias, layer.num_layers, 0.0, True, layer.bidirectional)
    if packed:
        data = torch.randn(sum(SIZES), 3, dtype=torch.float64, requires_grad=True)
        return data, torch.tensor(SIZES), states_of(layer, SIZES[0]), *rest
    return torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True), states_of(layer, 5), *rest, False


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("recurrence", [looped_recurrence, fused_recurrence], ids=["looped", "fused"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_all_gradients_are_those_of_torch(name: str, bias: bool, recurrence: Any, packed: bool) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](3, 4, 2, bidirectional=True, bias=bias).double()
    args = arguments(layer, packed=packed)
    wanted = [args[0], *layer.parameters()]
    noted: list[str] = []
    parts = Recurrent(cell=composite_of(name).cell, recurrence=recurrence)
    found = parts(lambda function, part_args, output: noted.append(function.__name__), *args)
    expected = composite_of(name).cell.fused(*args)
    assert len(noted) == 4  # two layers, two directions, however many steps
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(sum(part.sin().sum() for part in found), wanted)
    theirs = torch.autograd.grad(sum(part.sin().sum() for part in expected), wanted)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_steps_through_onednn_are_those_of_double_precision(
    name: str, bias: bool, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(processor_products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(processor_products, "_SMALL", 0)
    monkeypatch.setattr(processor_products, "_SMALL_IN_ORDER", 0)
    layer = LAYERS[name](3, 4, 2, bidirectional=True, bias=bias).double()
    args = arguments(layer, packed=packed)
    wanted = [args[0], *layer.parameters()]
    expected = composite_of(name).cell.fused(*args)
    theirs = torch.autograd.grad(sum(part.sin().sum() for part in expected), wanted)
    single = copy.deepcopy(layer).float()
    states = args[2 if packed else 1]
    states = tuple(state.detach().float() for state in states) if isinstance(states, tuple) else states.detach().float()
    data = args[0].detach().float().requires_grad_()
    rest = (list(single.parameters()), *args[(4 if packed else 3) :])
    found = composite_of(name)(lambda *_: None, data, *args[1:2] * packed, states, *rest)
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(sum(part.sin().sum() for part in found), [data, *single.parameters()])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "lstm_packed", "gru_deep_bidirectional", "gru_packed", "rnn_tanh"])
def test_the_fused_way_gives_the_same_clipped_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    build, inputs = next((build, inputs) for case, build, inputs in RECURRENT if case == name)
    model, examples = build().double(), inputs(5)
    examples = examples.double() if examples.is_floating_point() else examples
    expected = loop_clipped_sum(model, squared, examples, Threshold(norm=0.1))
    monkeypatch.setattr(recurrent_layers, "looped_recurrence", fused_recurrence)
    found = engine_clipped_sum(BookKeeping(), model, squared, examples, Threshold(norm=0.1))
    assert relative_error(found, expected) <= 1e-9


@pytest.mark.parametrize("name", ["summed_gates", "reset_gates"])
def test_the_noted_operation_is_itself_exact_for_the_general_rule(name: str) -> None:
    torch.manual_seed(0)
    operation = getattr(recurrent_layers, name)
    rules = {function: rule for function, rule in RULES.items() if function is not operation}
    layer = nn.GRU(3, 4, batch_first=True) if name == "reset_gates" else nn.LSTM(3, 4, batch_first=True)
    model, inputs = Root(layer).double(), frames(4).double()
    # by vmap the examples must come first, but a recurrence has time first: one example at a time
    found = engine_clipped_sum(
        BookKeeping(rules=rules), model, squared, inputs, Threshold(norm=0.1), physical_batch_size=1
    )
    assert relative_error(found, loop_clipped_sum(model, squared, inputs, Threshold(norm=0.1))) <= 1e-9


@pytest.mark.parametrize("name", LAYERS)
def test_dropout_between_layers_is_drawn_once(name: str) -> None:
    torch.manual_seed(0)
    model = Sequences(LAYERS[name](5, 4, 3, dropout=0.5)).double()
    inputs = frames(6).double()
    layout, rule = layout_of(model), Threshold(norm=1e6).for_groups(1)
    parameters = [value for _, value in trainable(model)]
    running = BookKeeping().start(model, parameters, layout)
    into = ClippedSum(
        flat=torch.zeros(layout.num_coordinates, dtype=torch.float64), layout=layout, sensitivity=rule.sensitivity
    )
    running.begin(6)
    mark_batch([inputs])
    losses = squared(model, inputs)
    gradients = torch.autograd.grad(losses.sum(), parameters, retain_graph=True)
    running.add_clipped(losses, rule, into)
    running.close()
    assert relative_error(into.flat, torch.cat([gradient.flatten() for gradient in gradients])) <= 1e-9


class SortedByHand(nn.Module):
    """Sorts examples itself and forgets to put them back."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 5), nn.LSTM(5, 4, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        lengths, order = (ids != 0).sum(1).clamp(min=1).sort(descending=True)
        packed = pack_padded_sequence(self.table(ids)[order], lengths, batch_first=True)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=6)[0]


class CheckpointedLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.layer, inputs, use_reentrant=False)[0]
        return out


class ShiftedStart(nn.Module):
    """An initial state that is computed from a parameter without a copy per example being asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.start = nn.GRU(3, 4, batch_first=True), nn.Parameter(torch.randn(4))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layer(inputs, torch.zeros(1, len(inputs), 4) + self.start)[0]
        return out


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (SortedByHand, ragged, "mixes the examples|do not add up"),
        (CheckpointedLstm, frames, r"torch\.utils\.checkpoint"),
    ],
    ids=["sorted by hand", "checkpoint"],
)
def test_what_is_not_exact_is_refused_by_name(
    build: Callable[[], nn.Module], inputs: Callable[[int], Tensor], message: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=message):
        engine_clipped_sum(BookKeeping(), build(), squared, inputs(7), Threshold(norm=1.0))


@pytest.mark.parametrize(
    "build", [lambda: Root(nn.LSTM(3, 4, proj_size=2, batch_first=True)), ShiftedStart],
    ids=["projection", "state from parameters"],
)  # fmt: skip
def test_a_recurrent_layer_without_a_rule_is_exact_by_a_backward_pass_for_each_example(
    build: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    model, inputs = build().double(), frames(7).double()
    torch.set_default_dtype(torch.float64)  # a start that the model makes has the default type
    try:
        found = engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=0.1))
        expected = loop_clipped_sum(model, squared, inputs, Threshold(norm=0.1))
    finally:
        torch.set_default_dtype(torch.float32)
    assert relative_error(found, expected) <= 1e-9


def test_sequences_of_every_length_and_one_example_alone_give_the_same_sum_in_any_order() -> None:
    torch.manual_seed(0)
    model, ids = Packed(nn.GRU(5, 4)).double(), ragged(9)
    whole = engine_clipped_sum(BookKeeping(), model, squared, ids, Threshold(norm=0.1))
    mixed = engine_clipped_sum(BookKeeping(), model, squared, ids.flip(0), Threshold(norm=0.1), physical_batch_size=4)
    assert relative_error(mixed, whole) <= 1e-9


def test_a_learned_start_is_no_example_axis_where_there_are_as_many_rows_as_examples() -> None:
    torch.manual_seed(0)
    model = Started(nn.LSTM(3, 4, 2, batch_first=True), learned=True).double()
    inputs = frames(2).double()
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=0.1))
    assert relative_error(found, loop_clipped_sum(model, squared, inputs, Threshold(norm=0.1))) <= 1e-9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("recurrence", [looped_recurrence, fused_recurrence], ids=["looped", "fused"])
@pytest.mark.parametrize("name", [name for name, _, _ in RECURRENT])
def test_on_a_device_the_clipped_sum_is_that_of_the_loop(
    name: str, recurrence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(recurrent_layers, "fused_recurrence", recurrence)
    build, inputs = next((build, inputs) for case, build, inputs in RECURRENT if case == name)
    model, examples = build(), inputs(7)
    expected = loop_clipped_sum(model, squared, examples, Threshold(norm=0.1))
    with torch.device("cuda"):
        found = engine_clipped_sum(BookKeeping(), model.cuda(), squared, examples.cuda(), Threshold(norm=0.1))
    assert relative_error(found.cpu(), expected) <= 1e-5
