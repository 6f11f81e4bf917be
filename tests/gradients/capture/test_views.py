"""Views and copies of parameters keep the cheap form of their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.capture import views
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.capture.views import undo_of
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.forms.per_example import Explicit, Outer, PerExample
from privet.mechanism.clipping import Threshold
from privet.mechanism.sums import ClippedSum
from tests.gradients.reference import layout_of, loop_clipped_sum, relative_error, trainable
from tests.gradients.zoo import squared
from tests.gradients.zoo_layers import Attending, Formula, TiedModules

PARAMETERS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "transpose": (lambda x, w: x @ w.t(), (4, 6)),
    "T": (lambda x, w: x @ w.T, (4, 6)),
    "mT": (lambda x, w: x @ w.mT, (4, 6)),
    "swapped": (lambda x, w: x @ w.transpose(0, 1), (4, 6)),
    "contiguous transpose": (lambda x, w: functional.linear(x, w.t().contiguous()), (6, 4)),
    "view": (lambda x, w: functional.linear(x, w.view(4, 6)), (2, 2, 6)),
    "flattened": (lambda x, w: functional.linear(x, w.flatten(1)), (4, 2, 3)),
    "squeezed": (lambda x, w: functional.linear(x, w.squeeze(-1)), (4, 6, 1)),
    "cast": (lambda x, w: functional.linear(x, w.to(x.dtype).clone()), (4, 6)),
    "rows": (lambda x, w: functional.linear(x, w[1:4]) + functional.linear(x * x, w[:3]), (5, 6)),
    "einsum": (lambda x, w: torch.einsum("btd,dhk->bthk", x, w), (6, 2, 3)),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_of_a_large_view_are_never_written_out(name: str) -> None:
    torch.manual_seed(0)
    formula, shape = PARAMETERS[name]
    model, inputs = Formula(formula, shape).double(), torch.randn(5, 3, 6, dtype=torch.float64)
    layout, rule = layout_of(model), Threshold(norm=0.3).for_groups(1)
    running = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    flat = torch.zeros(layout.num_coordinates, dtype=torch.float64)
    running.begin(5)
    mark_batch([inputs])
    into = ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity)
    running.add_clipped(squared(model, inputs), rule, into)
    running.close()
    assert relative_error(flat, loop_clipped_sum(model, squared, inputs, Threshold(norm=0.3))) <= 1e-9
    assert Outer in {kind for kind, _ in running.planner.chosen}


@pytest.mark.parametrize("build", [lambda: Attending(batch_first=True), TiedModules], ids=["attention", "tied"])
def test_shared_weights_of_attention_and_of_tied_tables_are_never_written_out(
    build: Callable[[], torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = build()
    inputs = torch.randn(5, 4, 6) if isinstance(model, Attending) else torch.randint(0, 9, (5, 6))
    layout, rule = layout_of(model), Threshold(norm=0.3).for_groups(1)
    running = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    pulled: list[Tensor] = []
    grad = torch.autograd.grad

    def counting(*args: object, **kwargs: object) -> object:
        if kwargs.get("is_grads_batched"):
            pulled.append(torch.empty(0))
        return grad(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "grad", counting)
    running.begin(5)
    mark_batch([inputs])
    into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
    running.add_clipped(squared(model, inputs), rule, into)
    running.close()
    assert not pulled


@pytest.mark.parametrize("most_choices", [1 << 24, 0], ids=["few rows", "many rows"])
@pytest.mark.parametrize(
    "look_up", [lambda table, index: table[index], lambda table, index: functional.embedding(index, table)]
)
def test_a_table_of_relative_positions_is_carried_back_without_a_pass_for_each_example(
    look_up: Callable[[Tensor, Tensor], Tensor], most_choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    index = torch.randint(0, 9, (25,))
    monkeypatch.setattr(views, "_MOST_CHOICES", most_choices)

    def formula(x: Tensor, table: Tensor) -> Tensor:
        bias = look_up(table, index).view(5, 5, 2).permute(2, 0, 1).contiguous().unsqueeze(0)
        return (x @ x.mT).unsqueeze(1) + bias

    model, inputs = Formula(formula, (9, 2)).double(), torch.randn(4, 5, 3, dtype=torch.float64)
    monkeypatch.setattr("privet.gradients.engines.prepared.WayBack", None)  # autograd is not asked
    layout, rule = layout_of(model), Threshold(norm=0.3).for_groups(1)
    running = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    flat = torch.zeros(layout.num_coordinates, dtype=torch.float64)
    running.begin(4)
    mark_batch([inputs])
    running.add_clipped(
        squared(model, inputs), rule, ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity)
    )
    running.close()
    assert relative_error(flat, loop_clipped_sum(model, squared, inputs, Threshold(norm=0.3))) <= 1e-9


def parts(rows: int, columns: int) -> list[PerExample]:
    return [
        Explicit(gradients=torch.randn(3, rows, columns)),
        Outer(inputs=torch.randn(3, 2, columns), out_grads=torch.randn(3, 2, rows)),
    ]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (Tensor.t, ()),
        (Tensor.view, (2, 12)),
        (Tensor.reshape, (3, 2, 4)),
        (Tensor.unsqueeze, (0,)),
        (Tensor.contiguous, ()),
        (Tensor.narrow, (0, 1, 3)),
        (Tensor.narrow, (1, 1, 3)),
        (Tensor.permute, (1, 0)),
        (Tensor.permute, (0, 1)),
        (Tensor.view, (torch.int32,)),
        (Tensor.__getitem__, (torch.tensor([2, 0, 2, 3, 1]),)),
        (Tensor.__getitem__, ((slice(None), torch.tensor([5, 5, 0])),)),
        (Tensor.index_select, (1, torch.tensor([4, 4, 1]))),
        (Tensor.transpose, (0, 1)),
        (Tensor.expand, (2, 4, 6)),
        (Tensor.repeat, (2, 1)),
        (Tensor.roll, (1, 1)),
        (Tensor.flip, (0,)),
    ],
    ids=str,
)
def test_a_view_is_undone_as_autograd_would_or_left_to_autograd(
    function: Callable[..., Tensor], args: tuple[object, ...]
) -> None:
    torch.manual_seed(0)
    old = torch.randn(4, 6, requires_grad=True)
    new = function(old, *args)
    undo = undo_of(function, lambda other: function(other, *args), old, new)
    if undo is None:
        return
    assert new.is_floating_point()
    for part in parts(*new.shape) if new.dim() == 2 else [Explicit(gradients=torch.randn(3, *new.shape))]:
        found = undo(part)
        if found is None:  # a form that would have to be written out
            assert not isinstance(part, Explicit)
            continue
        (expected,) = torch.autograd.grad(new, old, part.in_full(), is_grads_batched=True, retain_graph=True)
        torch.testing.assert_close(found.in_full(), expected)
