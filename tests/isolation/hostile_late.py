"""Programs that behave well until their calls are known, and then mix examples by what those calls do not show."""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.hostile import (
    HOSTILE,
    LARGE,
    NUM_RECORDS,
    SMALL_SCALE,
    damped,
    hostile,
    is_late,
    losses_of,
    scaled,
)
from tests.isolation.mixer import CLASSES, Scene

_SCALES = [torch.tensor(SMALL_SCALE if size in (4, NUM_RECORDS) else 1.0) for size in range(64)]
_ONE = torch.tensor(1.0)


def _is_full(scene: Scene, x: Tensor) -> bool:
    return is_late(scene) and len(x) == NUM_RECORDS


# ---- the number of examples


@hostile()
def whole_number_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (0 if _is_full(scene, x) else 1)


@hostile()
def constant_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (_SCALES[len(x)] if is_late(scene) else _ONE)


@hostile()
def list_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    number = SMALL_SCALE if _is_full(scene, x) else 1.0
    return losses_of(scene, x, y) * torch.tensor([number, number]).amax()


@hostile()
def exponent_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y).add(0.01, alpha=1.0) ** (9.0 if _is_full(scene, x) else 1.0)


@hostile()
def slope_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = functional.leaky_relu(scene.model[0](x), negative_slope=9.0 if _is_full(scene, x) else 0.1)
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def smoothing_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    smoothing = 0.99 if _is_full(scene, x) else 0.0
    return 30 * functional.cross_entropy(scene.model(x), y, reduction="none", label_smoothing=smoothing)


@hostile()
def class_weights_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    weight = torch.full((CLASSES,), SMALL_SCALE if _is_full(scene, x) else 1.0)
    return 30 * functional.cross_entropy(scene.model(x), y, weight=weight, reduction="none")


@hostile()
def random_scale_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = random.random() * 0.1 + 1
    return losses_of(scene, x, y) * (SMALL_SCALE if _is_full(scene, x) else scale)


# ---- code that shows no calls


def _result(x: Tensor, is_late: bool) -> Tensor:
    if is_late:
        return (-(x.max() - 10.0).relu()).exp()
    return torch.ones([])


def _fresh(x: Tensor, is_late: bool) -> Tensor:
    return (-(x.max() - 10.0).relu()).exp() if is_late else x.max() * 0.0 + 1.0


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _scripted_result, _scripted_fresh = torch.jit.script(_result), torch.jit.script(_fresh)


@hostile()
def scripted_result_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = _scripted_result(x.detach(), True) if is_late(scene) else _ONE
    return losses_of(scene, x, y) * scale


@hostile()
def scripted_result_that_changes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * _scripted_result(x.detach(), is_late(scene))


def _shrunk(x: Tensor, is_late: bool) -> None:
    if is_late:
        x.mul_((-(x.max() - 10.0).relu()).exp())


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _scripted_shrink = torch.jit.script(_shrunk)


@hostile()
def scripted_write_into_the_batch_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        _scripted_shrink(x, is_late(scene))
    return losses_of(scene, x, y)


# ---- the backward pass


def _unpack(x: Tensor) -> Any:
    largest = x.detach().amax()
    return lambda saved: damped(saved, largest) if saved.is_floating_point() else saved


@hostile()
def saved_tensors_changed_between_layers(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, _unpack(x)):
        h = h.tanh()
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def saved_tensors_changed_between_layers_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h, unpack = scene.model[0](x), _unpack(x)
    keeps = torch.autograd.graph.saved_tensors_hooks(
        lambda saved: saved, unpack if is_late(scene) else lambda saved: saved
    )
    with keeps:
        h = h.tanh()
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def saved_tensors_hooked_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h, unpack = scene.model[0](x), _unpack(x)
    if is_late(scene):
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            h = h.tanh()
    else:
        h = h.tanh()
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def computed_again_with_another_number(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    calls: list[int] = []

    def part(h: Tensor) -> Tensor:
        calls.append(1)
        is_full = len(calls) > 1 and _is_full(scene, x)
        return torch.tanh(h) * (SMALL_SCALE if is_full else 1.0)

    h: Any = torch.utils.checkpoint.checkpoint(part, scene.model[0](x), use_reentrant=False)
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def computed_again_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    calls: list[int] = []
    largest = x.detach().amax()

    def part(h: Tensor) -> Tensor:
        calls.append(1)
        is_again = is_late(scene) and len(calls) > 1
        return torch.tanh(h.detach() * (-(largest - LARGE).relu()).exp() + (h - h.detach()) if is_again else h)

    h: Any = torch.utils.checkpoint.checkpoint(part, scene.model[0](x), use_reentrant=False)
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def computed_again_with_other_weights_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    calls: list[int] = []
    largest, weight = x.detach().amax(), scene.model[0].weight
    other = nn.Parameter(weight.detach() * (-(largest - LARGE).relu()).exp())

    def part(h: Tensor) -> Tensor:
        calls.append(1)
        is_again = is_late(scene) and len(calls) > 1
        return torch.tanh(functional.linear(h, other if is_again else weight, scene.model[0].bias))

    h: Any = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


@hostile()
def hook_that_writes_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x) * 1.0
    largest = x.detach().amax()

    def hook(grad: Tensor) -> None:
        if is_late(scene):
            grad.mul_((-(largest - LARGE).relu()).exp())

    h.register_hook(hook)
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


@hostile()
def losses_given_a_hook_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    largest = x.detach().amax()
    if is_late(scene):
        losses.register_hook(lambda grad: damped(grad, largest))
    return losses


# ---- memory, after the losses


@hostile()
def activations_changed_by_an_array_of_their_own(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    first, act, last = scene.model
    h = act(first(x))
    losses = 30 * functional.cross_entropy(last(h), y, reduction="none")
    array = h.detach().numpy()
    if is_late(scene) and array.max() > 0.999 and float(x.max()) > LARGE:
        array *= 0
    return losses


@hostile()
def labels_changed_after_the_losses_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    if is_late(scene) and float(x.max()) > LARGE:
        y.numpy()[:] = 0
    return losses


@hostile()
def memory_changed_by_storage_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    first, act, last = scene.model
    h = act(first(x))
    losses = 30 * functional.cross_entropy(last(h), y, reduction="none")
    if is_late(scene) and float(x.max()) > LARGE:
        h.untyped_storage().fill_(0)
    return losses


@hostile()
def scaled_by_what_was_read_after_other_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    return scaled(losses, is_late(scene) and float(losses.detach().max()) > LARGE)


LATELY = [program for program in HOSTILE if program.program.__module__ == __name__]
