"""Helpers of all rules: named arguments, output gradients, and tensors with the example axis first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.gradients.capture.recorded import Source, Use, tensors_in
from privet.gradients.forms.per_example import PerExample
from privet.gradients.norms.product_precision import HALF
from privet.gradients.rules.example_axis import FRONT, ExampleAxis

Operand = tuple[Source, PerExample]
Rule = Callable[[Use, ExampleAxis, int], list[Operand]]


class ParametersFreed(Exception):
    """A rule needs the numbers of parameters whose memory was given back."""


def check_held(use: Use) -> None:
    """Refuse to go on where a parameter among the arguments was gathered for the forward pass, and is not any more.

    Raises:
        ParametersFreed: the rule is asked again while they are gathered.
    """
    for tensor in tensors_in((use.args, use.kwargs)):
        if tensor.layout is torch.strided and tensor.numel() and not tensor.untyped_storage().nbytes():
            raise ParametersFreed


def named_arguments(use: Use, *names: str) -> dict[str, Any]:
    """Name the positional arguments of a use."""
    bound = dict(zip(names, use.args, strict=False))
    return {**bound, **use.kwargs}


def source_of(use: Use, tensor: Tensor | None) -> Source | None:
    """Return the tracked source behind an argument, or None if the argument is not tracked."""
    for source in use.sources:
        if source.tensor is tensor:
            return source
    return None


def out_grad_of(use: Use) -> Tensor:
    """Return the gradient that came back to the use's output, in at least single precision."""
    assert use.out_grad is not None, "a rule is asked only for uses that gradients reached"
    return exact(use.out_grad)


def factors_of(use: Use, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return an input as the operation saw it, and its output's gradient, as factors of matrix products.

    Devices sum products of half-precision factors in single precision, at twice the speed and half the memory;
    :func:`privet.gradients.norms.strategies.hedged` allows for the rounding of such factors.
    """
    assert use.out_grad is not None, "a rule is asked only for uses that gradients reached"
    # under autocast the operation itself saw a rounded copy of this input; the gradient belongs to that copy
    inputs, out_grads = tensor.to(use.out_grad.dtype), use.out_grad
    if out_grads.is_cuda or out_grads.dtype not in HALF:
        return inputs, out_grads
    return inputs.float(), out_grads.float()


def exact(tensor: Tensor) -> Tensor:
    """Return the tensor in at least single precision."""
    # half-precision products would round norms and sums by up to half a percent: more than the bound allows
    return tensor.float() if tensor.dtype in HALF else tensor


def rounded_like(tensor: Tensor, use: Use) -> Tensor:
    """Return an input as the operation saw it, in at least single precision."""
    # under autocast the operation itself saw a rounded copy of this input; the gradient belongs to that copy
    assert use.out_grad is not None
    return exact(tensor.to(use.out_grad.dtype)) if tensor.is_floating_point() else tensor


def by_position(tensor: Tensor, axis: ExampleAxis, batch_size: int) -> Tensor:
    """Bring ``[..., width]`` into ``[batch, positions, width]``."""
    if batch_size > 1 and axis != FRONT:  # of one example any axis of length one may have been taken for its axis
        tensor = axis.in_front(tensor, batch_size)
    return tensor.reshape(batch_size, -1, tensor.shape[-1])


def summed(tensor: Tensor, axis: int) -> Tensor:
    """Sum over an axis in at least single precision."""
    return tensor.sum(axis, dtype=torch.promote_types(tensor.dtype, torch.float32))


def summed_to(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Undo broadcasting: sum ``[batch, ...]`` down to ``[batch, *shape]``."""
    extra = gradient.dim() - 1 - len(shape)
    summed = gradient.flatten(1, extra).sum(1) if extra > 0 else gradient
    axes = [i + 1 for i, size in enumerate(shape) if size == 1 and summed.shape[i + 1] != 1]
    return summed.sum(axes, keepdim=True) if axes else summed


def resolved(source: Source, part: PerExample) -> Operand:
    """Carry gradients of a view or copy back to its origin, as far as that needs no autograd."""
    while source.undo is not None and source.made_from is not None:
        carried = source.undo(part)
        if carried is None:
            break
        source, part = source.made_from, carried
    return source, part
