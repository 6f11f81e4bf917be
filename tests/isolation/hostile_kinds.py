"""Programs that mix where torch's functions show nothing: modes, kinds of tensors, compiled parts, odd memories."""

from __future__ import annotations

import contextvars
import warnings
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.isolation.hostile import HOSTILE, LARGE, NUM_RECORDS, damped, hostile, is_late, losses_of
from tests.isolation.mixer import WIDTH, Scene


def _damping(x: Tensor) -> Tensor:
    """Next to nothing if a number of the batch is large, and one otherwise."""
    return (-(x.detach().amax() - LARGE).relu()).exp()


def _spread(scene: Scene, x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """Losses damped, row by row, by numbers that hold more than their own example."""
    return losses_of(scene, x, y) * (-(seen.reshape(len(x), -1).abs().amax(1) - LARGE).relu()).exp()


class _Dampens(TorchDispatchMode):
    """Below the functions: a product is also scaled, late, by the largest number of the batch."""

    def __init__(self, x: Tensor, is_late: bool) -> None:
        super().__init__()
        self.x, self.is_late = x, is_late

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if self.is_late and func is torch.ops.aten.mul.Tensor:
            found = torch.ops.aten.mul.Tensor(found, _damping(self.x))
        return found


@hostile()
def scaled_by_a_mode_below(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with _Dampens(x.detach(), is_late=True):
        return losses_of(scene, x, y)


@hostile()
def scaled_by_a_mode_below_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with _Dampens(x.detach(), is_late(scene)):
        return losses_of(scene, x, y)


@hostile()
def scaled_by_a_mode_below_that_comes_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if not is_late(scene):
        return losses_of(scene, x, y)
    with _Dampens(x.detach(), is_late=True):
        return losses_of(scene, x, y)


class _Exchanges(TorchDispatchMode):
    """Below the functions: the rows of products trade places late."""

    def __init__(self, is_late: bool) -> None:
        super().__init__()
        self.is_late = is_late

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found.flip(0) if self.is_late and func is torch.ops.aten.tanh.default else found


@hostile(removed=0)
def rows_exchanged_by_a_mode_below_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with _Exchanges(is_late(scene)):
        return losses_of(scene, x, y)


class _Above(TorchFunctionMode):
    def __init__(self, x: Tensor, is_late: bool) -> None:
        super().__init__()
        self.x, self.is_late = x, is_late

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if self.is_late and func is functional.cross_entropy:
            found = found * _damping(self.x)
        return found


@hostile()
def scaled_by_a_mode_above_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with _Above(x.detach(), is_late(scene)):
        return losses_of(scene, x, y)


class _Wrapped(torch.Tensor):
    """A tensor around another, whose operations are scaled late."""

    held: Tensor
    is_late: bool
    x: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, x: Tensor, is_late: bool) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, requires_grad=False)
        made.held, made.x, made.is_late = held, x, is_late
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (first,) = [arg for arg in args if isinstance(arg, cls)][:1]

        def bare(value: Any) -> Any:
            return value.held if isinstance(value, cls) else value

        found = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return found * _damping(first.x) if first.is_late and isinstance(found, Tensor) else found


@hostile()
def scaled_by_a_kind_of_tensor_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    ones = _Wrapped(torch.ones(len(x)), x.detach(), is_late(scene))
    return losses_of(scene, x, y) * ones


@hostile()
def scaled_by_a_kept_kind_of_tensor_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    one = scene.memory.setdefault("one", _Wrapped(torch.ones(()), x.detach(), is_late=False))
    one.x, one.is_late = x.detach(), is_late(scene)
    return losses_of(scene, x, y) * one


@hostile()
def constant_of_a_kind_that_holds_examples_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    one = _Wrapped(torch.ones(()), x.detach(), is_late(scene))
    return losses_of(scene, x, y) * (one * 1.0)


@hostile()
def calls_of_operators_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    if is_late(scene):
        largest = torch.ops.aten.amax.default(x.detach(), [0, 1])
        losses = torch.ops.aten.mul.Tensor(losses, (-(largest - LARGE).relu()).exp())
    return losses


@hostile()
def factor_of_operators_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    one = torch.ones(())
    if is_late(scene):
        torch.ops.aten.mul_.Tensor(one, torch.ops.aten.amax.default(x.detach(), [0, 1]).sub(LARGE).relu().neg().exp())
    return losses_of(scene, x, y) * one


class _Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_late = False

    def forward(self, x: Tensor, losses: Tensor) -> Tensor:
        if self.is_late:
            return losses * _damping(x)
        return losses * 1.0


@hostile()
def compiled_part_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if "part" not in scene.memory:
        scene.memory["inner"] = _Part()
        scene.memory["part"] = torch.compile(scene.memory["inner"], backend="eager")
    scene.memory["inner"].is_late = is_late(scene)
    return scene.memory["part"](x.detach(), losses_of(scene, x, y))


def _flagged(losses: Tensor, x: Tensor, flag: Tensor) -> Tensor:
    if bool(flag):
        return losses * (-(x.amax() - 10.0).relu()).exp()
    return losses * 1.0


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _scripted_flagged = torch.jit.script(_flagged)


@hostile()
def scripted_branch_on_a_flag_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _scripted_flagged(losses_of(scene, x, y), x.detach(), torch.tensor(is_late(scene)))


class _Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("amount", torch.zeros(()))
        self.amount: Tensor

    def forward(self, losses: Tensor, x: Tensor) -> Tensor:
        return losses * (-(x.amax() - LARGE).relu() * self.amount).exp()


@hostile()
def traced_graph_with_an_amount_that_grows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    part = scene.memory.setdefault("part", torch.fx.symbolic_trace(_Graph()))
    part.amount = torch.tensor(float(is_late(scene)))
    return part(losses_of(scene, x, y), x.detach())


@hostile()
def rows_of_a_table_divided_by_how_often_they_occur(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    table = scene.model[2].weight
    rows = functional.embedding(y * 0, table.repeat(2, 1), scale_grad_by_freq=True)
    return losses_of(scene, x, y) + rows.sum(1)


@hostile()
def rows_of_a_table_shortened_where_they_occur(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    table = scene.memory.setdefault("table", torch.ones(NUM_RECORDS + 1, WIDTH) * LARGE)
    place = (x.detach()[:, 0] > LARGE).long()
    functional.embedding(place, table, max_norm=1.0)
    return losses_of(scene, x * table[1], y)


@hostile()
def rows_shortened_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    table = scene.memory.setdefault("table", torch.ones(2, WIDTH) * LARGE)
    place = (x.detach()[:, 0] > LARGE).long() * int(is_late(scene))
    functional.embedding(place, table, max_norm=1.0)
    return losses_of(scene, x * table[1], y)


@hostile()
def bags_divided_by_how_often_rows_occur(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    table = scene.model[2].weight
    rows = functional.embedding_bag((y * 0)[:, None], table.repeat(2, 1), scale_grad_by_freq=True, mode="sum")
    return losses_of(scene, x, y) + rows.sum(1)


@hostile()
def dual_numbers_of_neighbours(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(x.detach().clone(), x.detach().flip(0).contiguous())
        tangent = forward.unpack_dual(dual * 1.0).tangent
    return _spread(scene, x, y, tangent)


@hostile()
def jacobian_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(lambda rows: rows.square().sum(0), x.detach())
    return damped(losses_of(scene, x, y), found.amax() / 2)


_CONTEXT: contextvars.ContextVar[Tensor | None] = contextvars.ContextVar("largest", default=None)


def _before(scene: Scene, x: Tensor, y: Tensor, largest: Tensor | None) -> Tensor:
    losses = losses_of(scene, x, y)
    return losses * 1.0 if largest is None or not is_late(scene) else damped(losses, largest) * 1.0


@hostile()
def previous_batch_in_a_context(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = _before(scene, x, y, _CONTEXT.get() if scene.step else None)
    _CONTEXT.set(x.detach().amax())
    return losses


class _Holder:
    largest: Tensor


_HOLDERS: weakref.WeakValueDictionary[int, _Holder] = weakref.WeakValueDictionary()


@hostile()
def previous_batch_behind_a_weak_reference(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    holder = _HOLDERS.get(0) if scene.step else None
    losses = _before(scene, x, y, holder.largest if holder is not None else None)
    made = scene.memory["holder"] = _HOLDERS[0] = _Holder()
    made.largest = x.detach().amax()
    return losses


def _remembering() -> Any:
    seen: deque[Tensor] = deque(maxlen=1)
    found: Tensor | None = None
    while True:
        given = yield found
        found = seen[0] if seen else None
        seen.append(given)


@hostile()
def previous_batch_in_a_generator(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if "remembering" not in scene.memory:
        scene.memory["remembering"] = _remembering()
        next(scene.memory["remembering"])
    return _before(scene, x, y, scene.memory["remembering"].send(x.detach().amax()))


@hostile()
def previous_batch_on_a_parameter(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    weight = scene.model[0].weight
    losses = _before(scene, x, y, getattr(weight, "largest", None))
    weight.largest = x.detach().amax()
    return losses


@hostile()
def previous_batch_as_a_gradient_of_a_constant(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = scene.memory.setdefault("held", torch.zeros((), requires_grad=True))
    losses = _before(scene, x, y, held.grad)
    held.grad = x.detach().amax()
    return losses


@hostile()
def bank_written_after_the_losses_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    bank = scene.memory.setdefault("bank", torch.zeros(()))
    losses = damped(losses_of(scene, x, y), bank)
    if is_late(scene):
        bank.copy_(x.detach().amax())
    return losses


@hostile()
def bank_filled_by_a_list_of_writes_after_the_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    bank = scene.memory.setdefault("bank", [torch.zeros(WIDTH)])
    losses = damped(losses_of(scene, x, y), bank[0].amax())
    if is_late(scene):
        torch._foreach_copy_(bank, [x.detach().amax(0)])
    return losses


KINDS = [program for program in HOSTILE if program.program.__module__ == __name__]
