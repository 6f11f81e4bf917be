"""Rules for normalisation layers: their scale and shift, after a normalisation that looks at one example at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.errors import UnsupportedModel
from privet.gradients.capture.recorded import Use
from privet.gradients.forms.per_example import Explicit
from privet.gradients.norms import kernels
from privet.gradients.rules.example_axis import ExampleAxis, FoldedAxis, WholeAxis
from privet.gradients.rules.rule_tools import Operand, exact, named_arguments, out_grad_of, source_of, summed_to


def layer_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of a layer norm."""
    given = named_arguments(use, "input", "normalized_shape", "weight", "bias", "eps")
    inputs, eps, axes = given["input"].detach(), given.get("eps", 1e-5), len(given["normalized_shape"])
    if _is_in_order(axis) and axes == 1 and inputs.dim() > 1 and kernels.available(inputs):
        flat = inputs.reshape(batch_size, -1, inputs.shape[-1])
        mean, rstd = use.statistics or _statistics(flat, eps)
        out_grads = out_grad_of(use).reshape(flat.shape)
        mean, rstd = mean.reshape(flat.shape[:2]), rstd.reshape(flat.shape[:2])
        return _found(use, given, kernels.row_affine_sums(flat, mean, rstd, out_grads))
    normalised = functional.layer_norm(exact(inputs), given["normalized_shape"], None, None, eps)
    return _elementwise(use, given, normalised, axis, batch_size)


def rms_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale of a root-mean-square norm."""
    given = named_arguments(use, "input", "normalized_shape", "weight", "eps")
    normalised = functional.rms_norm(exact(given["input"].detach()), given["normalized_shape"], None, given.get("eps"))
    return _elementwise(use, given, normalised, axis, batch_size)


def group_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of a group norm."""
    given = named_arguments(use, "input", "num_groups", "weight", "bias", "eps")
    inputs, groups, eps = given["input"].detach(), given["num_groups"], given.get("eps", 1e-5)
    if _has_rows(axis) and inputs.dim() > 2 and kernels.available(inputs):
        return _by_channel_kernel(use, given, inputs, groups, eps, axis, batch_size)
    if _has_rows(axis) and use.statistics is not None and not inputs.is_cuda:
        sums = _by_library(inputs, use.statistics, out_grad_of(use), groups)
        return _found(use, given, _added_up(sums, axis, batch_size))
    normalised = functional.group_norm(exact(inputs), groups, None, None, eps)
    return _channelwise(use, given, normalised, axis, batch_size)


def instance_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of an instance norm that keeps no running statistics."""
    given = named_arguments(
        use, "input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"
    )
    inputs, eps = given["input"].detach(), given.get("eps", 1e-5)
    if not given.get("use_input_stats", True):
        normalised = _by_constants(exact(inputs), given["running_mean"], given["running_var"], eps)
    elif _has_rows(axis) and kernels.available(inputs):
        return _by_channel_kernel(use, given, inputs, inputs.shape[1], eps, axis, batch_size)
    else:
        normalised = functional.instance_norm(exact(inputs), eps=eps)
    return _channelwise(use, given, normalised, axis, batch_size)


def batch_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of a batch norm in evaluation mode, which is an elementwise map by constants."""
    given = named_arguments(
        use, "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"
    )
    if given.get("training") or given.get("running_mean") is None:
        raise UnsupportedModel(
            "A batch norm in training mode mixes the examples of a batch, so no per-example gradient exists. "
            "Replace it with nn.GroupNorm, or put it into eval() mode."
        )
    inputs = exact(given["input"].detach())
    normalised = _by_constants(inputs, given["running_mean"], given["running_var"], given.get("eps", 1e-5))
    return _channelwise(use, given, normalised, axis, batch_size)


def _by_constants(inputs: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    shape = (1, -1) + (1,) * (inputs.dim() - 2)
    return (inputs - mean.view(shape)) * torch.rsqrt(variance.view(shape) + eps)


def _is_in_order(axis: ExampleAxis) -> bool:
    """Whether the first axis holds the examples, or all rows of each, one behind the other."""
    return axis == WholeAxis(axis=0) or axis == FoldedAxis(examples_first=True)


def _has_rows(axis: ExampleAxis) -> bool:
    """Whether the first axis holds the examples, or several rows of each."""
    return axis == WholeAxis(axis=0) or isinstance(axis, FoldedAxis)


def _added_up(sums: tuple[Tensor, Tensor], axis: ExampleAxis, batch_size: int) -> tuple[Tensor, Tensor]:
    """Add up the rows of each example."""
    if axis == WholeAxis(axis=0):
        return sums
    scale, shift = (axis.in_front(rows, batch_size).sum(1) for rows in sums)
    return scale, shift


def _by_channel_kernel(
    use: Use, given: dict[str, Any], inputs: Tensor, groups: int, eps: float, axis: ExampleAxis, batch_size: int
) -> list[Operand]:
    flat = inputs.flatten(2)
    mean, rstd = use.statistics or _statistics(flat.reshape(len(flat), groups, -1), eps)
    out_grads = out_grad_of(use).reshape(flat.shape)
    sums = kernels.channel_affine_sums(flat, mean, rstd, out_grads, groups)
    return _found(use, given, _added_up(sums, axis, batch_size))


def _by_library(
    inputs: Tensor, statistics: tuple[Tensor, Tensor], out_grads: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """Let torch sum over positions, in one pass over both tensors: its sums over the batch, of a batch of one.

    All examples' channels stand side by side, as those of a single example with so many times the groups.
    """
    examples, channels = inputs.shape[:2]
    side_by_side = (1, examples * channels, inputs[0, 0].numel())
    ones = inputs.new_ones(examples * channels)  # only its shape is read
    _, scale, shift = torch.ops.aten.native_group_norm_backward(
        out_grads.contiguous().view(side_by_side), inputs.view(side_by_side),
        *(each.view(1, -1) for each in statistics), ones, *side_by_side, examples * groups, [False, True, True],
    )  # fmt: skip
    return scale.view(examples, channels), shift.view(examples, channels)


def _statistics(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(rows.float(), dim=2, correction=0)
    return mean, torch.rsqrt(variance + eps)


def _elementwise(
    use: Use, given: dict[str, Any], normalised: Tensor, axis: ExampleAxis, batch_size: int
) -> list[Operand]:
    """Sum over all axes that the parameters do not have."""
    out_grads = out_grad_of(use)
    shape = torch.Size(given["normalized_shape"])
    scale = summed_to(axis.in_front(out_grads * normalised, batch_size), shape)
    shift = summed_to(axis.in_front(out_grads, batch_size), shape)
    return _found(use, given, (scale, shift))


def _channelwise(
    use: Use, given: dict[str, Any], normalised: Tensor, axis: ExampleAxis, batch_size: int
) -> list[Operand]:
    """Sum over positions: ``[examples, channels, positions...]`` to ``[examples, channels]``."""
    out_grads = out_grad_of(use)
    shape = out_grads.shape[1:2]

    def sums(product: Tensor) -> Tensor:
        product = product.flatten(2).sum(2) if product.dim() > 2 else product
        return summed_to(axis.in_front(product, batch_size), shape)

    return _found(use, given, (sums(out_grads * normalised), sums(out_grads)))


def _found(use: Use, given: dict[str, Any], sums: tuple[Tensor, Tensor]) -> list[Operand]:
    found: list[Operand] = []
    for name, gradients in zip(("weight", "bias"), sums, strict=True):
        if source := source_of(use, given.get(name)):
            found.append((source, Explicit(gradients=gradients)))
    return found
