"""How each operation's use of a parameter turns into per-example gradients.

A rule is a pure function of one recorded use and the gradient that came back to its output. It returns, for each
tracked operand, that operand's per-example gradients in the cheapest exact form. Operations without a rule go through
:func:`by_vmap`, which is exact for anything that treats its first axis example by example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.errors import UnsupportedModel
from privet.gradients.capture import Function, Source, Use, is_batch, tensors_in
from privet.gradients.example_axis import ExampleAxis, WholeAxis
from privet.gradients.per_example import ConvGeometry, Convolution, Explicit, Lookup, Outer, PerExample
from privet.gradients.support import quiet_vmap

Operand = tuple[Source, PerExample]
Rule = Callable[[Use, ExampleAxis, int], list[Operand]]


def _operands(use: Use, *names: str) -> dict[str, Any]:
    """Name the positional arguments of a use."""
    bound = dict(zip(names, use.args, strict=False))
    return {**bound, **use.kwargs}


def _source(use: Use, tensor: Tensor | None) -> Source | None:
    return next((source for source in use.sources if source.tensor is tensor), None)


def _grad(use: Use) -> Tensor:
    assert use.out_grad is not None, "a rule is asked only for uses that gradients reached"
    return _exact(use.out_grad)


def _exact(tensor: Tensor) -> Tensor:
    # half-precision products would round norms and sums by up to half a percent: more than the bound allows
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _rounded_like(tensor: Tensor, use: Use) -> Tensor:
    # under autocast the operation itself saw a rounded copy of this input; the gradient belongs to that copy
    assert use.out_grad is not None
    return _exact(tensor.to(use.out_grad.dtype)) if tensor.is_floating_point() else tensor


def _positions(tensor: Tensor, axis: ExampleAxis, batch_size: int) -> Tensor:
    """Bring ``[..., width]`` into ``[batch, positions, width]``."""
    return axis.in_front(tensor, batch_size).reshape(batch_size, -1, tensor.shape[-1])


def _summed_to(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Undo broadcasting: sum ``[batch, ...]`` down to ``[batch, *shape]``."""
    extra = gradient.dim() - 1 - len(shape)
    summed = gradient.flatten(1, extra).sum(1) if extra > 0 else gradient
    axes = [i + 1 for i, size in enumerate(shape) if size == 1 and summed.shape[i + 1] != 1]
    return summed.sum(axes, keepdim=True) if axes else summed


def linear(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Weight: outer products. Bias: output gradients summed over positions."""
    given = _operands(use, "input", "weight", "bias")
    out_grads = _positions(_grad(use), axis, batch_size)
    found: list[Operand] = []
    if weight := _source(use, given["weight"]):
        inputs = _positions(_rounded_like(given["input"], use), axis, batch_size)
        found.append((weight, Outer(inputs=inputs, out_grads=out_grads)))
    if bias := _source(use, given.get("bias")):
        sums = out_grads.squeeze(1) if out_grads.shape[1] == 1 else out_grads.sum(1)
        found.append((bias, Explicit(gradients=sums)))
    return found


def convolution(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Weight: correlation of input and output gradient per example. Bias: output gradients summed over positions."""
    given = _operands(use, "input", "weight", "bias", "stride", "padding", "dilation", "groups")
    weight, inputs, out_grads = given["weight"], given["input"], _grad(use)
    spatial = weight.dim() - 2
    if inputs.dim() != weight.dim():
        raise UnsupportedModel(
            f"A convolution ({use.name}) was called on an input without an example axis. Add one with unsqueeze(0)."
        )
    found: list[Operand] = []
    if source := _source(use, weight):
        inputs, padding = _padded(_rounded_like(inputs, use), weight, given, spatial)
        geometry = ConvGeometry(
            weight_shape=tuple(weight.shape),
            stride=_per_dimension(given.get("stride", 1), spatial),
            padding=padding,
            dilation=_per_dimension(given.get("dilation", 1), spatial),
            groups=given.get("groups", 1),
        )
        kernel: PerExample = Convolution(inputs=inputs, out_grads=out_grads, geometry=geometry)
        if axis != WholeAxis(axis=0):
            unfolded = axis.in_front(kernel.in_full(), batch_size)
            kernel = Explicit(gradients=unfolded.sum(1))
        found.append((source, kernel))
    if source := _source(use, given.get("bias")):
        sums = axis.in_front(out_grads.flatten(2).sum(2), batch_size)
        found.append((source, Explicit(gradients=sums.reshape(batch_size, -1, sums.shape[-1]).sum(1))))
    return found


def _per_dimension(value: Any, spatial: int) -> tuple[int, ...]:
    return (int(value),) * spatial if isinstance(value, int) else tuple(int(item) for item in value)


def _padded(inputs: Tensor, weight: Tensor, given: Mapping[str, Any], spatial: int) -> tuple[Tensor, tuple[int, ...]]:
    padding = given.get("padding", 0)
    if padding == "valid":
        return inputs, (0,) * spatial
    if padding != "same":
        return inputs, _per_dimension(padding, spatial)
    # "same" may pad one side more than the other, so it is done by hand
    dilation = _per_dimension(given.get("dilation", 1), spatial)
    sides: list[int] = []
    for size, step in zip(reversed(weight.shape[2:]), reversed(dilation), strict=True):
        total = step * (size - 1)
        sides += [total // 2, total - total // 2]
    return functional.pad(inputs, sides), (0,) * spatial


def embedding(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Rows of the table, one output gradient per look-up."""
    given = _operands(use, "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        raise UnsupportedModel(
            "An embedding with max_norm or scale_grad_by_freq rescales rows by what the whole batch looks up, so one "
            "example changes another's gradient. Set max_norm=None and scale_grad_by_freq=False."
        )
    ids, weight = given["input"], given["weight"]
    source = _source(use, weight)
    if source is None:
        return []
    out_grads = _positions(_grad(use), axis, batch_size)
    rows = axis.in_front(ids, batch_size).reshape(batch_size, -1)
    padding = given.get("padding_idx")
    if padding is not None:
        ignored = rows == (padding if padding >= 0 else weight.shape[0] + padding)
        out_grads = out_grads.masked_fill(ignored.unsqueeze(2), 0)
    return [(source, Lookup(ids=rows, out_grads=out_grads, num_rows=weight.shape[0]))]


def _affine(use: Use, given: Mapping[str, Any], normalised: Tensor, axis: ExampleAxis, batch_size: int,
            channel_axis: int | None) -> list[Operand]:  # fmt: skip
    """Gradients of an elementwise scale and shift after a per-example normalisation."""
    out_grads = _grad(use)
    found: list[Operand] = []
    for name, product in (("weight", out_grads * normalised), ("bias", out_grads)):
        source = _source(use, given.get(name))
        if source is None:
            continue
        if channel_axis is not None:  # [examples, channels, positions...] -> [examples, channels]
            product = product.flatten(2).sum(2) if product.dim() > 2 else product
        gradients = axis.in_front(product, batch_size)
        found.append((source, Explicit(gradients=_summed_to(gradients, source.tensor.shape))))
    return found


def layer_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of a layer norm."""
    given = _operands(use, "input", "normalized_shape", "weight", "bias", "eps")
    inputs = _exact(given["input"].detach())
    normalised = functional.layer_norm(inputs, given["normalized_shape"], None, None, given.get("eps", 1e-5))
    return _affine(use, given, normalised, axis, batch_size, None)


def rms_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale of a root-mean-square norm."""
    given = _operands(use, "input", "normalized_shape", "weight", "eps")
    normalised = functional.rms_norm(_exact(given["input"].detach()), given["normalized_shape"], None, given.get("eps"))
    return _affine(use, given, normalised, axis, batch_size, None)


def group_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of a group norm."""
    given = _operands(use, "input", "num_groups", "weight", "bias", "eps")
    inputs = _exact(given["input"].detach())
    normalised = functional.group_norm(inputs, given["num_groups"], None, None, given.get("eps", 1e-5))
    return _affine(use, given, normalised, axis, batch_size, 1)


def instance_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of an instance norm that keeps no running statistics."""
    given = _operands(
        use, "input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"
    )
    inputs, eps = _exact(given["input"].detach()), given.get("eps", 1e-5)
    if given.get("use_input_stats", True):
        normalised = functional.instance_norm(inputs, eps=eps)
    else:
        normalised = _by_constants(inputs, given["running_mean"], given["running_var"], eps)
    return _affine(use, given, normalised, axis, batch_size, 1)


def batch_norm(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Scale and shift of a batch norm in evaluation mode, which is an elementwise map by constants."""
    given = _operands(use, "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    if given.get("training") or given.get("running_mean") is None:
        raise UnsupportedModel(
            "A batch norm in training mode mixes the examples of a batch, so no per-example gradient exists. "
            "Replace it with nn.GroupNorm, or put it into eval() mode."
        )
    inputs = _exact(given["input"].detach())
    normalised = _by_constants(inputs, given["running_mean"], given["running_var"], given.get("eps", 1e-5))
    return _affine(use, given, normalised, axis, batch_size, 1)


def _by_constants(inputs: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    shape = (1, -1) + (1,) * (inputs.dim() - 2)
    return (inputs - mean.view(shape)) * torch.rsqrt(variance.view(shape) + eps)


def broadcast_sum(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A parameter added to, or copied for, every example: its gradient is what came back, summed over broadcasting."""
    if len(use.sources) != 1 or use.kwargs.get("alpha", 1) != 1:
        return by_vmap(use, axis, batch_size)
    gradients = axis.in_front(_grad(use), batch_size)
    source = use.sources[0]
    if source.tensor.dim() == len(use.output_shape) and isinstance(axis, WholeAxis):
        # the operand has an example axis of its own, which must be of length one
        shape = list(source.tensor.shape)
        if shape.pop(axis.axis) != 1:
            return by_vmap(use, axis, batch_size)
        summed = _summed_to(gradients, torch.Size(shape))
        return [(source, Explicit(gradients=summed.reshape(batch_size, *source.tensor.shape)))]
    return [(source, Explicit(gradients=_summed_to(gradients, source.tensor.shape)))]


def repeat(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A parameter tiled once per example (and perhaps along its own axes): sum the copies within each example."""
    source = use.sources[0]
    own = (1,) * (len(use.output_shape) - source.tensor.dim()) + tuple(source.tensor.shape)
    gradients = axis.in_front(_grad(use), batch_size)
    split: list[int] = [batch_size]
    for total, size in zip(use.output_shape[1:], own[1:], strict=True):
        split += [total // size, size]
    copies = list(range(1, len(split), 2))
    summed = gradients.reshape(split).sum(copies) if copies else gradients.reshape(split)
    return [(source, Explicit(gradients=summed.reshape(batch_size, *source.tensor.shape)))]


def by_vmap(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Redo the operation one example at a time under vmap and pull its output gradient back to each tracked operand.

    Exact for every operation that has its examples on the first axis of all batch operands and draws no randomness.
    """
    batch_operands = [tensor for tensor in tensors_in((use.args, use.kwargs)) if is_batch(tensor)]
    positions = {id(tensor): index for index, tensor in enumerate(batch_operands)}
    if axis != WholeAxis(axis=0) or any(t.dim() == 0 or t.shape[0] != batch_size for t in batch_operands):
        raise _no_rule(use, "its examples are not on the first axis of every operand")
    tracked = {id(source.tensor): index for index, source in enumerate(use.sources)}
    out_grad = use.out_grad
    assert out_grad is not None, "a rule is asked only for uses that gradients reached"

    def one(gradient: Tensor, *examples: Tensor) -> tuple[Tensor, ...]:
        def forward(*parameters: Tensor) -> Tensor:
            def swap(value: Any) -> Any:
                if isinstance(value, Tensor):
                    if id(value) in tracked:
                        return parameters[tracked[id(value)]]
                    return examples[positions[id(value)]].unsqueeze(0) if id(value) in positions else value
                if isinstance(value, list | tuple):
                    return type(value)(swap(item) for item in value)
                return value

            result = use.function(*swap(use.args), **{key: swap(item) for key, item in use.kwargs.items()})
            if isinstance(result, Tensor):
                return result
            return next(part for part in tensors_in(result) if part.shape[1:] == gradient.shape)

        pull = torch.func.vjp(forward, *(source.tensor.detach() for source in use.sources))[1]
        return tuple(pull(gradient.unsqueeze(0)))

    try:
        with quiet_vmap():
            gradients = torch.func.vmap(one, randomness="error")(
                out_grad, *(tensor.detach() for tensor in batch_operands)
            )
    except (RuntimeError, ValueError, StopIteration) as error:
        raise _no_rule(use, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    return [(source, Explicit(gradients=_exact(g))) for source, g in zip(use.sources, gradients, strict=True)]


def _no_rule(use: Use, reason: str) -> UnsupportedModel:
    shapes = [tuple(source.tensor.shape) for source in use.sources]
    return UnsupportedModel(
        f"Operation '{use.name}' on parameters of shape {shapes} has no per-example rule, and the general way failed: "
        f"{reason}. Freeze those parameters, or give the engine a rule: BookKeeping(rules=...)."
    )


RULES: Mapping[Function, Rule] = {
    functional.linear: linear,
    functional.conv1d: convolution,
    functional.conv2d: convolution,
    functional.conv3d: convolution,
    functional.embedding: embedding,
    functional.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    functional.group_norm: group_norm,
    functional.instance_norm: instance_norm,
    functional.batch_norm: batch_norm,
    torch.add: broadcast_sum,
    Tensor.add: broadcast_sum,
    Tensor.__add__: broadcast_sum,
    Tensor.__radd__: broadcast_sum,
    Tensor.add_: broadcast_sum,
    Tensor.__iadd__: broadcast_sum,
    Tensor.expand: broadcast_sum,
    Tensor.expand_as: broadcast_sum,
    torch.broadcast_to: broadcast_sum,
    Tensor.broadcast_to: broadcast_sum,
    Tensor.repeat: repeat,
    Tensor.tile: repeat,
    torch.tile: repeat,
}
"""Rules by operation. A session may extend its own copy; this table itself never changes."""
