"""How each operation's use of a parameter turns into per-example gradients.

A rule is a pure function of one recorded use and the gradient that came back to its output. It returns, for each
tracked operand, that operand's per-example gradients in the cheapest exact form. Operations without a rule go through
:func:`by_vmap`, which is exact for anything that treats its first axis example by example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture import recurrent_layers
from privet.gradients.capture.in_place import Function
from privet.gradients.capture.recorded import Use, is_batch, tensors_in
from privet.gradients.engines.support import quiet_vmap
from privet.gradients.forms.per_example import ConvGeometry, Convolution, Explicit, Lookup, Outer
from privet.gradients.norms import kernels
from privet.gradients.rules import recurrent_rules
from privet.gradients.rules.bag_rules import embedding_bag
from privet.gradients.rules.example_axis import FRONT, ExampleAxis, InnerAxis, WholeAxis
from privet.gradients.rules.norm_rules import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from privet.gradients.rules.product_rules import product_rules
from privet.gradients.rules.rule_tools import (
    Operand,
    Rule,
    by_position,
    check_held,
    exact,
    factors_of,
    named_arguments,
    out_grad_of,
    rounded_like,
    source_of,
    summed,
    summed_to,
)


def linear(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Weight: outer products. Bias: output gradients summed over positions."""
    given = named_arguments(use, "input", "weight", "bias")
    inputs, out_grads = factors_of(use, given["input"])
    out_grads = by_position(out_grads, axis, batch_size)
    found: list[Operand] = []
    if weight := source_of(use, given["weight"]):
        found.append((weight, Outer(inputs=by_position(inputs, axis, batch_size), out_grads=out_grads)))
    if bias := source_of(use, given.get("bias")):
        sums = exact(out_grads.squeeze(1)) if out_grads.shape[1] == 1 else summed(out_grads, 1)
        found.append((bias, Explicit(gradients=sums)))
    return found


def convolution(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Weight: correlation of input and output gradient per example. Bias: output gradients summed over positions."""
    given = named_arguments(use, "input", "weight", "bias", "stride", "padding", "dilation", "groups")
    inputs, out_grads = factors_of(use, given["input"])
    geometry, sides = geometry_of(use, given)
    if sides:  # "same" may pad one side more than the other, so it is done by hand
        inputs = functional.pad(inputs, sides)
    part = Convolution(inputs=inputs, out_grads=out_grads, geometry=geometry)
    return _convolution_operands(use, given, part, out_grads, axis, batch_size)


def transposed_convolution(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A convolution run backwards: its input and its output gradient have exchanged their roles."""
    given = named_arguments(use, "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    weight, out_grads = given["weight"], out_grad_of(use)
    geometry, _ = geometry_of(use, given)
    inputs, sides = rounded_like(given["input"], use), []
    for place in reversed(range(weight.dim() - 2)):
        # more output padding than a stride: the convolution would look at places that no input had
        reach = out_grads.shape[2 + place] + 2 * geometry.padding[place]
        reach -= geometry.dilation[place] * (weight.shape[2 + place] - 1) + 1
        sides += [0, reach // geometry.stride[place] + 1 - inputs.shape[2 + place]]
    inputs = functional.pad(inputs, sides) if any(sides) else inputs
    part = Convolution(inputs=out_grads, out_grads=inputs, geometry=geometry)
    return _convolution_operands(use, given, part, out_grads, axis, batch_size)


def _convolution_operands(
    use: Use, given: Mapping[str, Any], part: Convolution, out_grads: Tensor, axis: ExampleAxis, batch_size: int
) -> list[Operand]:
    found: list[Operand] = []
    if source := source_of(use, given["weight"]):
        found.append((source, _with_views(part, axis, batch_size)))
    if source := source_of(use, given.get("bias")):
        sums = summed(out_grads.flatten(2), 2)
        sums = sums if axis == FRONT else axis.in_front(sums, batch_size)
        found.append((source, Explicit(gradients=sums.reshape(batch_size, -1, sums.shape[-1]).sum(1))))
    return found


def _with_views(part: Convolution, axis: ExampleAxis, batch_size: int) -> Convolution:
    """Gather the images of each example, one behind the other, where it has several."""
    if axis == FRONT:
        return part
    if isinstance(axis, WholeAxis) or (isinstance(axis, InnerAxis) and axis.axis != 0):
        raise NoExampleRule("The examples of a convolution are not on the first axis of its input.")
    inputs, out_grads = (axis.in_front(images, batch_size) for images in (part.inputs, part.out_grads))
    return replace(part, inputs=inputs.flatten(0, 1), out_grads=out_grads.flatten(0, 1), views=inputs.shape[1])


def geometry_of(use: Use, given: Mapping[str, Any]) -> tuple[ConvGeometry, tuple[int, ...]]:
    """Return a convolution's geometry, and by how much its input must be padded first."""
    weight = given["weight"]
    if given["input"].dim() != weight.dim():
        raise NoExampleRule(
            f"A convolution ({use.name}) was called on an input without an example axis. Add one with unsqueeze(0)."
        )
    options = [given.get("stride", 1), given.get("padding", 0), given.get("dilation", 1)]
    for place, value in enumerate(options):
        options[place] = tuple(value) if isinstance(value, list) else value
    return _geometry(weight.shape, *options, given.get("groups", 1))


@lru_cache(maxsize=4096)
def _geometry(
    weight_shape: torch.Size, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[ConvGeometry, tuple[int, ...]]:
    spatial, sides = len(weight_shape) - 2, list[int]()
    dilation = _per_dimension(dilation, spatial)
    if padding == "same":
        for size, step in zip(reversed(weight_shape[2:]), reversed(dilation), strict=True):
            total = step * (size - 1)
            sides += [total // 2, total - total // 2]
    geometry = ConvGeometry(
        weight_shape=tuple(weight_shape),
        stride=_per_dimension(stride, spatial),
        padding=(0,) * spatial if isinstance(padding, str) else _per_dimension(padding, spatial),
        dilation=dilation,
        groups=groups,
    )
    return geometry, tuple(sides)


def _per_dimension(value: Any, spatial: int) -> tuple[int, ...]:
    items = (value,) if isinstance(value, int) else tuple(int(item) for item in value)
    return items * spatial if len(items) == 1 else items


def embedding(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Rows of the table, one output gradient per look-up."""
    given = named_arguments(
        use, "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"
    )
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        raise UnsupportedModel(
            "An embedding with max_norm or scale_grad_by_freq rescales rows by what the whole batch looks up, so one "
            "example changes another's gradient. Set max_norm=None and scale_grad_by_freq=False."
        )
    ids, weight = given["input"], given["weight"]
    source = source_of(use, weight)
    if source is None:
        return []
    out_grads = by_position(out_grad_of(use), axis, batch_size)
    rows = axis.in_front(ids, batch_size).reshape(batch_size, -1)
    padding = given.get("padding_idx")
    if padding is not None:
        ignored = rows == (padding if padding >= 0 else weight.shape[0] + padding)
        out_grads = out_grads.masked_fill(ignored.unsqueeze(2), 0)
    return [(source, Lookup(ids=rows, out_grads=out_grads, num_rows=weight.shape[0]))]


def broadcast_sum(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A parameter added to, or copied for, every example: its gradient is the output's, summed over broadcasting."""
    if len(use.sources) != 1 or use.kwargs.get("alpha", 1) != 1:
        return by_vmap(use, axis, batch_size)
    return _broadcast(use, out_grad_of(use), axis, batch_size)


def scaling(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A parameter that multiplies every example: the output's gradient times the other factor, summed likewise.

    Unlike :func:`by_vmap` it does without the numbers of the parameter.
    """
    others = [value for value in use.args if isinstance(value, Tensor) and is_batch(value)]
    if len(use.sources) != 1 or len(others) != 1 or len(use.args) != 2 or use.kwargs:
        return by_vmap(use, axis, batch_size)
    return _broadcast(use, out_grad_of(use) * rounded_like(others[0].detach(), use), axis, batch_size)


def _broadcast(use: Use, gradients: Tensor, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Sum gradients in the shape of an output down to the operand that was broadcast to it, for each example."""
    gradients = axis.in_front(gradients, batch_size)
    source = use.sources[0]
    if not isinstance(axis, WholeAxis) and not _is_outside(source.tensor, axis, len(use.output_shape)):
        return by_vmap(use, axis, batch_size)
    if source.tensor.dim() == len(use.output_shape) and isinstance(axis, WholeAxis):
        # the operand has an example axis of its own, which must be of length one
        shape = list(source.tensor.shape)
        if shape.pop(axis.axis) != 1:
            return by_vmap(use, axis, batch_size)
        summed = summed_to(gradients, torch.Size(shape))
        return [(source, Explicit(gradients=summed.reshape(batch_size, *source.tensor.shape)))]
    return [(source, Explicit(gradients=summed_to(gradients, source.tensor.shape)))]


def broadcast_product(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A parameter that multiplies every example, as the scale of a norm written out: gradient times other factor."""
    is_plain = len(use.sources) == 1 and len(use.args) == 2 and not use.kwargs and axis == WholeAxis(axis=0)
    if not is_plain or not all(isinstance(factor, Tensor) for factor in use.args):
        return by_vmap(use, axis, batch_size)
    source = use.sources[0]
    scale, inputs = use.args if use.args[0] is source.tensor else use.args[::-1]
    # the parameter has no axis of the examples, and the other factor is not broadcast
    out_grads = out_grad_of(use)
    if scale is not source.tensor or scale.dim() >= inputs.dim() or inputs.shape != out_grads.shape:
        return by_vmap(use, axis, batch_size)
    inputs = inputs.detach()
    if scale.dim() == 1 and inputs.dim() > 1 and scale.shape == inputs.shape[-1:] and kernels.available(inputs):
        rows = inputs.reshape(batch_size, -1, inputs.shape[-1])
        zeros = torch.zeros(rows.shape[:2], dtype=torch.float32, device=rows.device)
        found = kernels.row_affine_sums(rows, zeros, torch.ones_like(zeros), out_grads.reshape(rows.shape))[0]
    else:
        found = summed_to(out_grads * exact(inputs), scale.shape)
    return [(source, Explicit(gradients=found))]


def _is_outside(operand: Tensor, axis: ExampleAxis, num_axes: int) -> bool:
    """Whether examples that are folded with other lengths lie outside of an operand that is broadcast to an output."""
    place = axis.axis if isinstance(axis, InnerAxis) else 0
    own = place - (num_axes - operand.dim())
    return own < 0 or (place == 0 and operand.shape[0] == 1)


def repeat(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A parameter tiled once per example (and perhaps along its own axes): sum the copies within each example."""
    source = use.sources[0]
    own = [1] * (len(use.output_shape) - source.tensor.dim()) + list(source.tensor.shape)
    if not isinstance(axis, WholeAxis) or own.pop(axis.axis) != 1:
        return by_vmap(use, axis, batch_size)
    gradients = axis.in_front(out_grad_of(use), batch_size)
    split: list[int] = [batch_size]
    for total, size in zip(gradients.shape[1:], own, strict=True):
        split += [total // size, size]
    copies = list(range(1, len(split), 2))
    summed = gradients.reshape(split).sum(copies) if copies else gradients.reshape(split)
    return [(source, Explicit(gradients=summed.reshape(batch_size, *source.tensor.shape)))]


def by_vmap(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Redo the operation one example at a time under vmap and pull its output gradient back to each tracked operand.

    Exact for every operation that has its examples on the same axis of output and all batch operands and draws no
    randomness.
    """
    check_held(use)
    batch_operands = [tensor for tensor in tensors_in((use.args, use.kwargs)) if is_batch(tensor)]
    out_grad, operands = out_grad_of(use), [exact(tensor.detach()) for tensor in batch_operands]
    try:
        with quiet_vmap(), torch.autocast(out_grad.device.type, enabled=False):
            if batch_size == 1:  # there is nobody else in the batch
                alone = _pulled_back(use, batch_operands, out_grad, operands)
                gradients = tuple(found.unsqueeze(0) for found in alone)
            else:
                place = _common_axis(use, axis, batch_size, batch_operands)

                def one(gradient: Tensor, *examples: Tensor) -> tuple[Tensor, ...]:
                    rows = [example.unsqueeze(place) for example in examples]
                    return _pulled_back(use, batch_operands, gradient.unsqueeze(place), rows)

                gradients = torch.func.vmap(one, in_dims=place, randomness="error")(out_grad, *operands)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, UnsupportedModel):
            raise
        raise _no_rule(use, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    return [(source, Explicit(gradients=exact(g))) for source, g in zip(use.sources, gradients, strict=True)]


def _common_axis(use: Use, axis: ExampleAxis, batch_size: int, operands: Sequence[Tensor]) -> int:
    """Return the axis on which output and all operands hold their examples."""
    place = axis.axis if isinstance(axis, WholeAxis) else -1
    alike = place == 0 or all(operand.dim() == len(use.output_shape) for operand in operands)
    if place < 0 or not alike or any(operand.shape[place : place + 1] != (batch_size,) for operand in operands):
        raise _no_rule(use, "its examples are not on the same axis of output and operands")
    return place


def _pulled_back(
    use: Use, batch_operands: Sequence[Tensor], gradient: Tensor, examples: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of the tracked operands when ``examples`` stand in for the batch operands."""
    tracked = {id(source.tensor): index for index, source in enumerate(use.sources)}
    positions = {id(tensor): index for index, tensor in enumerate(batch_operands)}

    def forward(*parameters: Tensor) -> Tensor:
        def swap(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) in tracked:
                    return parameters[tracked[id(value)]]
                return examples[positions[id(value)]] if id(value) in positions else exact(value)
            if isinstance(value, list | tuple):
                return type(value)(swap(item) for item in value)
            return value

        result = use.function(*swap(use.args), **{key: swap(item) for key, item in use.kwargs.items()})
        return result if isinstance(result, Tensor) else list(tensors_in(result))[use.output_index]

    pull = torch.func.vjp(forward, *(exact(source.tensor.detach()) for source in use.sources))[1]
    return tuple(pull(gradient))


def _no_rule(use: Use, reason: str) -> NoExampleRule:
    shapes = [tuple(source.tensor.shape) for source in use.sources]
    return NoExampleRule(
        f"Operation '{use.name}' on parameters of shape {shapes} has no per-example rule, and the general rule (vmap) "
        f"failed: {reason}. Freeze those parameters, or give the engine a rule: BookKeeping(rules=...)."
    )


RULES: Mapping[Function, Rule] = {
    **product_rules(by_vmap),
    functional.linear: linear,
    functional.conv1d: convolution,
    functional.conv2d: convolution,
    functional.conv3d: convolution,
    functional.conv_transpose1d: transposed_convolution,
    functional.conv_transpose2d: transposed_convolution,
    functional.conv_transpose3d: transposed_convolution,
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
    functional.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    functional.group_norm: group_norm,
    functional.instance_norm: instance_norm,
    functional.batch_norm: batch_norm,
    recurrent_layers.summed_gates: recurrent_rules.summed_gates,
    recurrent_layers.reset_gates: recurrent_rules.reset_gates,
    torch.mul: broadcast_product,
    Tensor.mul: broadcast_product,
    Tensor.__mul__: broadcast_product,
    Tensor.__rmul__: broadcast_product,
    torch.add: broadcast_sum,
    Tensor.add: broadcast_sum,
    Tensor.__add__: broadcast_sum,
    Tensor.__radd__: broadcast_sum,
    Tensor.add_: broadcast_sum,
    Tensor.__iadd__: broadcast_sum,
    torch.mul: scaling,
    Tensor.mul: scaling,
    Tensor.__mul__: scaling,
    Tensor.__rmul__: scaling,
    torch.multiply: scaling,
    Tensor.multiply: scaling,
    Tensor.expand: broadcast_sum,
    Tensor.expand_as: broadcast_sum,
    torch.broadcast_to: broadcast_sum,
    Tensor.broadcast_to: broadcast_sum,
    Tensor.repeat: repeat,
    Tensor.tile: repeat,
    torch.tile: repeat,
}
"""Rules by operation. A session may extend a copy; this table never changes."""

ROW_WISE: frozenset[Rule] = frozenset([linear, convolution, layer_norm, rms_norm, group_norm, broadcast_product])
"""Rules that look at the rows of the examples and at shapes, never at the numbers of a parameter.

Uses of equal shape may be handed to such a rule as one use with more examples.
"""

OWN_RULES: frozenset[Rule] = frozenset([*RULES.values(), by_vmap])
"""Rules that say so, by :func:`check_held`, where they need the numbers of parameters."""
