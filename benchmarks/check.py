"""Correctness of the clipped sums of contenders, against a loop in double precision."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.contenders import Contender, Settings
from benchmarks.models import Batch, losses_of

# Five digits: Opacus divides by the norm plus 1e-6, and long sums in float32 lose a digit.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The clipped sum of one batch and its clipping bound.

    Attributes:
        clip_norm: The median norm, so that about half of the examples are clipped.
        sums: Clipped sum by parameter name, in float64.
        factors: Clipping factor of each example.
    """

    clip_norm: float
    sums: Mapping[str, Tensor]
    factors: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The error of a contender's clipped sum.

    Attributes:
        relative_error: Norm of the difference over the norm of the truth, over all parameters together; a parameter
            that the contender leaves out counts as zero.
        missing_parameters: Number of parameters that the contender leaves out.
    """

    relative_error: float
    missing_parameters: int


def true_clipped_sum(model: nn.Module, batch: Batch) -> Truth:
    """Clip and sum one example after another in float64; the model is not changed."""
    double = copy.deepcopy(model).double()
    names = [name for name, value in double.named_parameters() if value.requires_grad]
    norms = [float(_flat(gradients).norm()) for gradients in _gradients(double, batch)]
    clip_norm = statistics.median(norms)
    sums: dict[str, Tensor] = {}
    factors = tuple(min(1.0, clip_norm / norm) if norm > 0 else 1.0 for norm in norms)
    # A second pass instead of a list of gradients: an example of the largest model has a gigabyte of them.
    for factor, gradients in zip(factors, _gradients(double, batch), strict=True):
        for name, gradient in zip(names, gradients, strict=True):
            sums[name] = sums[name].add_(gradient, alpha=factor) if name in sums else gradient * factor
    return Truth(clip_norm=clip_norm, sums=sums, factors=factors)


def plain_error(model: nn.Module, batch: Batch, truth: Truth) -> float:
    """Return the error of one backward pass of torch through the losses times their exact clipping factors."""
    copied = copy.deepcopy(model)
    named = [(name, value) for name, value in copied.named_parameters() if value.requires_grad]
    losses = losses_of(copied(batch[0]), batch[1])
    weighted = (losses * torch.tensor(truth.factors, dtype=losses.dtype, device=losses.device)).sum()
    values = [value for _, value in named]
    found: tuple[Tensor | None, ...] = torch.autograd.grad(weighted, values, allow_unused=True)
    pairs = zip(named, found, strict=True)
    return _distance({name: value for (name, _), value in pairs if value is not None}, truth)


def _gradients(model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, ...]]:
    inputs, labels = batch
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    parameters = [value for value in model.parameters() if value.requires_grad]
    for index in range(len(inputs)):
        with _StayDouble():
            loss = losses_of(model(inputs[index : index + 1]), labels[index : index + 1]).sum()
        found: tuple[Tensor | None, ...] = torch.autograd.grad(loss, parameters, allow_unused=True)
        yield tuple(
            torch.zeros_like(value) if gradient is None else gradient
            for value, gradient in zip(parameters, found, strict=True)
        )


def _flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def judge(contender: Contender, model: nn.Module, batch: Batch, truth: Truth) -> Verdict:
    """Compare a contender's clipped sum on a copy of the model with the truth.

    Raises:
        Exception: any error of the contender; the caller turns it into a row.
    """
    settings = Settings(logical_batch=len(batch[0]), clip_norm=truth.clip_norm, noise_multiplier=0.0)
    running = contender.setup(copy.deepcopy(model), settings)
    try:
        found = running.clipped_sum(batch)
    finally:
        running.close()
    missing = [name for name in truth.sums if name not in found]
    return Verdict(relative_error=_distance(found, truth), missing_parameters=len(missing))


def _distance(found: Mapping[str, Tensor], truth: Truth) -> float:
    """Return the relative error over all parameters together; a parameter that was not found counts as zero."""
    difference = total = 0.0
    for name, expected in truth.sums.items():
        value = found[name].detach().double() if name in found else torch.zeros_like(expected)
        difference += float((value - expected).square().sum())
        total += float(expected.square().sum())
    return float((difference / total) ** 0.5)


class _StayDouble(TorchFunctionMode):
    """Lets models that ask for float32 inside, as many normalisations do, stay in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype is torch.float64:
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
            kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
        return func(*args, **kwargs)
