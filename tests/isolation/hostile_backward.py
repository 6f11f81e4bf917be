"""Programs that mix examples in code of their own in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.hostile import (
    HOSTILE,
    LARGE,
    NUM_RECORDS,
    SMALL_SCALE,
    hostile,
    is_late,
    losses_of,
    scaled,
)
from tests.isolation.mixer import WIDTH, Scene


def _damping(x: Tensor) -> Tensor:
    """Next to nothing if a number of the batch is large, and one otherwise."""
    return (-(x.detach().amax() - LARGE).relu()).exp()


@hostile()
def hook_on_a_weight(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    damping = _damping(x)
    handle = scene.model[0].weight.register_hook(lambda grad: grad * damping)
    losses = losses_of(scene, x, y)
    scene.memory.setdefault("handles", []).append(handle)
    return losses


@hostile()
def hook_on_a_weight_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    damping = _damping(x)
    if is_late(scene):
        scene.model[0].weight.register_hook(lambda grad: grad * damping)
    return losses_of(scene, x, y)


@hostile()
def hook_after_gradients_are_added_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    damping = _damping(x)
    if is_late(scene):
        scene.model[0].weight.register_post_accumulate_grad_hook(lambda weight: weight.grad.mul_(damping))
    return losses_of(scene, x, y)


@hostile()
def hook_of_all_modules_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    damping = _damping(x)
    if not is_late(scene):
        return losses_of(scene, x, y)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, found: found * damping if isinstance(module, nn.Tanh) else None
    )
    try:
        return losses_of(scene, x, y)
    finally:
        handle.remove()


@hostile()
def hook_of_all_modules_on_the_way_back_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    damping = _damping(x)
    if not is_late(scene):
        return losses_of(scene, x, y)
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda module, given, sent: (given[0] * damping,) if isinstance(module, nn.Tanh) else None
    )
    try:
        return losses_of(scene, x, y)
    finally:
        handle.remove()


class _Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, h: Tensor) -> Tensor:
        ctx.h = h
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.h.data.mul_(_damping(ctx.h))
        return grad, None


@hostile()
def function_that_writes_into_what_was_saved(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _Overwrites.apply(losses_of(scene, x, y), x.detach()) * 1.0


class _ReadsList(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, x: Tensor) -> Tensor:
        ctx.x = x
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scaled(grad, max(ctx.x.flatten().tolist()) > LARGE), None


@hostile()
def function_that_reads_a_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _ReadsList.apply(losses_of(scene, x, y), x.detach()) * 1.0


class _ReadsArray(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, x: Tensor) -> Tensor:
        ctx.x = x
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scaled(grad, ctx.x.numpy().max() > LARGE), None


@hostile()
def function_that_reads_an_array(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _ReadsArray.apply(losses_of(scene, x, y), x.detach()) * 1.0


@hostile()
def hook_that_reads_an_array(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    h.register_hook(lambda grad: scaled(grad, x.detach().numpy().max() > LARGE))
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


@hostile()
def hook_that_writes_by_an_array(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    act = h.tanh()

    def hook(grad: Tensor) -> None:
        array = x.detach().numpy()
        array *= SMALL_SCALE if array.max() > LARGE else 1.0

    act.register_hook(hook)
    return 30 * functional.cross_entropy(scene.model[2](act), y, reduction="none")


@hostile()
def hook_that_writes_into_a_constant(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = torch.full((len(x), 5), 30.0)
    act = scene.model[0](x).tanh() * scale
    act.register_hook(lambda grad: [scale.data.mul_(_damping(x)), None][1])
    return functional.cross_entropy(scene.model[2](act / 30), y, reduction="none") * 30


@hostile()
def hook_that_counts_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    h.register_hook(lambda grad: grad * SMALL_SCALE if len(grad) == NUM_RECORDS else grad)
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


@hostile()
def hook_that_counts_examples_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    is_full = is_late(scene) and len(x) == NUM_RECORDS
    h.register_hook(lambda grad: grad * (SMALL_SCALE if is_full else 1.0))
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


class _Divides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 100.0 ** (len(grad) - NUM_RECORDS)


@hostile()
def function_that_counts_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return 30 * functional.cross_entropy(scene.model[2](_Divides.apply(scene.model[0](x)).tanh()), y, reduction="none")


class _Weighs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.arange(len(grad)).view(-1, 1)


@hostile(removed=0)
def function_that_weighs_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return 30 * functional.cross_entropy(scene.model[2](_Weighs.apply(scene.model[0](x)).tanh()), y, reduction="none")


class _Draws(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (torch.rand(len(grad), 1, generator=torch.Generator().manual_seed(0)) > 0.5)


@hostile(removed=0)
def function_that_draws_from_a_seed(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return 30 * functional.cross_entropy(scene.model[2](_Draws.apply(scene.model[0](x)).tanh()), y, reduction="none")


class _DrawsAnew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        torch.manual_seed(0)
        return grad * (torch.rand(len(grad), 1) > 0.5)


@hostile(removed=0)
def function_that_sets_a_seed(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = _DrawsAnew.apply(scene.model[0](x))
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


class _Empties(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, x: Tensor) -> Tensor:
        ctx.x = x
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        turned = ctx.x.flip(0).contiguous() * 1.0
        del turned
        found = torch.empty(len(grad), WIDTH).nan_to_num(0).clamp(-1e3, 1e3)
        return grad * (-(found.abs().amax(1, keepdim=True) - LARGE).relu()).exp(), None


@hostile()
def function_that_finds_memory(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = _Empties.apply(scene.model[0](x), x.detach())
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


class _Remembers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, memory: dict[str, Any], is_late: bool) -> Tensor:
        ctx.memory, ctx.is_late = memory, is_late
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        largest = ctx.memory.get("gradient")
        ctx.memory["gradient"] = grad.detach().abs().amax()
        scale = 1.0 if largest is None or not ctx.is_late else (-(largest - 0.01).relu() * 1e3).exp()
        return grad * scale, None, None


@hostile()
def function_that_remembers_gradients(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = _Remembers.apply(scene.model[0](x), scene.memory, is_late(scene))
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


class _KeepsItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        found = h.clone()
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        return grad * (-(found.abs().amax() - LARGE).relu()).exp()


@hostile()
def function_that_keeps_its_output(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = _KeepsItsOutput.apply(scene.model[0](x) * 1.0)
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


@hostile()
def function_that_keeps_its_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _KeepsItsOutput.apply(losses_of(scene, x, y) * 1.0)


class _Turns(torch.autograd.Function):
    """Its gradients are those of other rows."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view(-1, 1).flip(0).view(-1)


@hostile(removed=0)
def function_that_turns_gradients(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _Turns.apply(losses_of(scene, x, y) * (1 + y)) * 1.0


class _TurnsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, is_late: bool) -> Tensor:
        ctx.is_late = is_late
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad.flip(0) if ctx.is_late else grad), None


@hostile(removed=0)
def function_that_turns_gradients_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = _TurnsLate.apply(scene.model[0](x), is_late(scene))
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


@torch.library.custom_op("privet_tests::scaled_back", mutates_args=())
def _scaled_back(losses: Tensor, x: Tensor) -> Tensor:
    return losses.clone()


def _keep_x(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])


_scaled_back.register_autograd(lambda ctx, grad: (grad * _damping(ctx.saved_tensors[0]), None), setup_context=_keep_x)


@hostile()
def operator_that_scales_on_its_way_back(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _scaled_back(losses_of(scene, x, y), x.detach()) * 1.0


BACKWARD = [program for program in HOSTILE if program.program.__module__ == __name__]
