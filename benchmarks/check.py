"""Correctness of the clipped sums of contenders, against a loop in double precision."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    """

    clip_norm: float
    sums: Mapping[str, Tensor]


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
    # A second pass instead of a list of gradients: an example of the largest model has a gigabyte of them.
    for norm, gradients in zip(norms, _gradients(double, batch), strict=True):
        factor = min(1.0, clip_norm / norm) if norm > 0 else 1.0
        for name, gradient in zip(names, gradients, strict=True):
            sums[name] = sums[name].add_(gradient, alpha=factor) if name in sums else gradient * factor
    return Truth(clip_norm=clip_norm, sums=sums)


def _gradients(model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, ...]]:
    inputs, labels = batch
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    parameters = [value for value in model.parameters() if value.requires_grad]
    for index in range(len(inputs)):
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
    difference = total = 0.0
    for name, expected in truth.sums.items():
        value = torch.zeros_like(expected) if name in missing else found[name].detach().double()
        difference += float((value - expected).square().sum())
        total += float(expected.square().sum())
    return Verdict(relative_error=(difference / total) ** 0.5, missing_parameters=len(missing))
