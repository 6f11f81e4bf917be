"""Rules for matrix products written as operations: ``x @ W``, ``addmm``, ``einsum``, bilinear forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.gradients.capture.recorded import Source, Use, is_batch, tensors_in
from privet.gradients.forms.per_example import Explicit, Outer
from privet.gradients.rules.example_axis import ExampleAxis, WholeAxis
from privet.gradients.rules.rule_tools import (
    Operand,
    Rule,
    by_position,
    named_arguments,
    out_grad_of,
    rounded_like,
    source_of,
)


def _factors(
    use: Use, axis: ExampleAxis, batch_size: int, left: Tensor, right: Tensor, out_grad: Tensor
) -> list[Operand] | None:
    """Gradient of the one tracked factor of ``left @ right``; None where the general rule must do."""
    on_left, on_right = source_of(use, left), source_of(use, right)
    if on_left is not None and on_right is not None:
        return None
    if on_right is not None and is_batch(left):
        return _right_factor(use, axis, batch_size, left, on_right, out_grad)
    if on_left is not None and is_batch(right):
        return _left_factor(use, axis, batch_size, on_left, right, out_grad)
    return []


def _right_factor(
    use: Use, axis: ExampleAxis, batch_size: int, left: Tensor, right: Source, out_grad: Tensor
) -> list[Operand] | None:
    inputs = rounded_like(left.detach(), use)
    if right.tensor.dim() == 2 and left.dim() == out_grad.dim():
        # the gradient is [inner, outer]: the factors of a linear layer's, exchanged
        part = Outer(inputs=by_position(out_grad, axis, batch_size), out_grads=by_position(inputs, axis, batch_size))
        return [(right, part)]
    if right.tensor.dim() == 1 and axis != WholeAxis(axis=left.dim() - 1):
        rows = by_position(out_grad.unsqueeze(-1) * inputs, axis, batch_size)
        return [(right, Explicit(gradients=rows.sum(1)))]
    return None


def _left_factor(
    use: Use, axis: ExampleAxis, batch_size: int, left: Source, right: Tensor, out_grad: Tensor
) -> list[Operand] | None:
    if left.tensor.dim() != 2 or right.dim() != out_grad.dim() or not isinstance(axis, WholeAxis):
        return None
    inputs, last = rounded_like(right.detach(), use), right.dim() - 1
    if batch_size == 1:  # any axis of length one may have been taken for the examples
        inputs, out_grad = inputs.mT.unsqueeze(0), out_grad.mT.unsqueeze(0)
    elif axis.axis == last:
        inputs, out_grad = axis.in_front(inputs, batch_size), axis.in_front(out_grad, batch_size)
    elif axis.axis < last - 1:
        inputs, out_grad = axis.in_front(inputs, batch_size).mT, axis.in_front(out_grad, batch_size).mT
    else:
        return None
    part = Outer(
        inputs=inputs.reshape(batch_size, -1, inputs.shape[-1]),
        out_grads=out_grad.reshape(batch_size, -1, out_grad.shape[-1]),
    )
    return [(left, part)]


def product(general: Rule, *, is_reversed: bool = False) -> Rule:
    """Rule for ``matmul`` and its kin; ``general`` serves products that are no plain matrix products.

    The first argument of ``Tensor.__rmatmul__``, which ``is_reversed``, is the right factor.
    """

    def rule(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
        left, right = tensors_in((use.args, use.kwargs))
        if is_reversed:
            left, right = right, left
        found = _factors(use, axis, batch_size, left, right, out_grad_of(use))
        return general(use, axis, batch_size) if found is None else found

    return rule


def shifted_product(general: Rule) -> Rule:
    """Rule for ``addmm`` and ``baddbmm``: ``beta * shift + alpha * left @ right``."""

    def rule(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
        given = named_arguments(use, "input", "mat1", "mat2")
        shift = given["input"]
        left, right = given.get("mat1", given.get("batch1")), given.get("mat2", given.get("batch2"))
        out_grad = out_grad_of(use)
        assert isinstance(left, Tensor), "both factors are required arguments"
        assert isinstance(right, Tensor), "both factors are required arguments"
        found = _factors(use, axis, batch_size, left, right, out_grad * given.get("alpha", 1))
        source = source_of(use, shift)
        if found is None or (source is not None and shift.numel() != shift.shape[-1]):
            return general(use, axis, batch_size)
        if source is not None:
            rows = by_position(out_grad * given.get("beta", 1), axis, batch_size).sum(1)
            rows = rows if shift.numel() == rows.shape[1] else rows.sum(1, keepdim=True)
            found.append((source, Explicit(gradients=rows.reshape(batch_size, *shift.shape))))
        return found

    return rule


def einsum(general: Rule) -> Rule:
    """Rule for ``einsum`` of one tracked and one batch operand whose shared letters are all summed over."""

    def rule(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
        part = _einsum_outer(use, axis, batch_size)
        return general(use, axis, batch_size) if part is None else part

    return rule


def _einsum_outer(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand] | None:
    operands = list(tensors_in(use.args[1:]))
    equation = use.args[0].replace(" ", "") if isinstance(use.args[0], str) else ""
    if len(operands) != 2 or len(use.sources) != 1 or "->" not in equation or "." in equation:
        return None
    terms, out = equation.split("->")
    letters = dict(zip(map(id, operands), terms.split(","), strict=True))
    source = use.sources[0]
    (other,) = (tensor for tensor in operands if tensor is not source.tensor)
    own, theirs = letters[id(source.tensor)], letters[id(other)]
    summed = [letter for letter in own if letter in theirs and letter not in out]
    produced = [letter for letter in own if letter in out and letter not in theirs]
    rest = [letter for letter in out if letter not in own]
    unique = all(len(set(term)) == len(term) for term in (own, theirs, out))
    if not unique or sorted(summed + produced) != sorted(own) or sorted(summed + rest) != sorted(theirs):
        return None
    if batch_size > 1:
        if not isinstance(axis, WholeAxis) or out[axis.axis] not in rest:
            return None
        rest.sort(key=lambda letter: letter != out[axis.axis])
    inputs = _arranged(rounded_like(other.detach(), use), theirs, rest, summed, batch_size)
    out_grads = _arranged(out_grad_of(use), out, rest, produced, batch_size)
    shape = tuple(source.tensor.shape)
    if list(own) == produced + summed:
        return [(source, Outer(inputs=inputs, out_grads=out_grads, shape=shape))]
    if list(own) == summed + produced:
        return [(source, Outer(inputs=out_grads, out_grads=inputs, shape=shape))]
    return None


def _arranged(tensor: Tensor, letters: str, positions: list[str], width: list[str], batch_size: int) -> Tensor:
    """Bring a tensor into ``[batch, positions, width]``; the first of ``positions`` is the example axis."""
    ordered = tensor.permute([letters.index(letter) for letter in positions + width])
    flat = ordered.flatten(len(positions)) if width else ordered.unsqueeze(-1)
    return flat.reshape(batch_size, -1, flat.shape[-1])


def bilinear(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """A linear map of the products of two inputs."""
    given = named_arguments(use, "input1", "input2", "weight", "bias")
    out_grads = by_position(out_grad_of(use), axis, batch_size)
    found: list[Operand] = []
    if source := source_of(use, given["weight"]):
        first, second = (
            by_position(rounded_like(given[name].detach(), use), axis, batch_size) for name in ("input1", "input2")
        )
        products = (first.unsqueeze(3) * second.unsqueeze(2)).flatten(2)
        found.append((source, Outer(inputs=products, out_grads=out_grads, shape=tuple(source.tensor.shape))))
    if source := source_of(use, given.get("bias")):
        found.append((source, Explicit(gradients=out_grads.sum(1))))
    return found


def prelu(general: Rule) -> Rule:
    """Rule for the slope of a leaky rectifier, one for all or one per channel (axis 1)."""

    def rule(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
        given = named_arguments(use, "input", "weight")
        source, inputs = source_of(use, given["weight"]), given["input"]
        if source is None or len(use.sources) != 1:
            return general(use, axis, batch_size)
        products = out_grad_of(use) * rounded_like(inputs.detach(), use).clamp(max=0)
        if source.tensor.numel() == 1:
            rows = axis.in_front(products, batch_size).reshape(batch_size, -1).sum(1, keepdim=True)
            return [(source, Explicit(gradients=rows.reshape(batch_size, *source.tensor.shape)))]
        if isinstance(axis, WholeAxis) and axis.axis != 0:
            return general(use, axis, batch_size)
        per_channel = products.flatten(2).sum(2) if products.dim() > 2 else products
        return [(source, Explicit(gradients=by_position(per_channel, axis, batch_size).sum(1)))]

    return rule


def product_rules(general: Rule) -> dict[Callable[..., Any], Rule]:
    """All rules of this module by operation; ``general`` serves the forms they do not."""
    plain, shifted = product(general), shifted_product(general)
    both = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm)
    sums = (torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm)
    return {
        **dict.fromkeys(both, plain),
        **dict.fromkeys(sums, shifted),
        Tensor.__rmatmul__: product(general, is_reversed=True),
        torch.einsum: einsum(general),
        torch.nn.functional.bilinear: bilinear,
        torch.nn.functional.prelu: prelu(general),
    }
