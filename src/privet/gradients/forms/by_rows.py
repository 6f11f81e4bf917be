"""Weights of which each row is computed from the same row of one parameter, by sums and multiples of it.

A standardised, centred, scaled or normalised weight has rows ``a v + b 1``, where ``v`` is the parameter's row and the
numbers ``a`` and ``b`` depend on that row and on parameters with one number per row. The way back from a gradient of
such a row is then, whatever the formula, a multiple of it outside of the plane of ``1`` and ``v``, and some linear map
within that plane. Four numbers per row say all about lengths: no gradient of an example is sent back to be measured.

Whether a weight is of this kind is read from the autograd graph, operation by operation; numbers play no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.gradients.capture.autograd_graph import Node
from privet.gradients.norms import kernels

_LEAF = "torch::autograd::AccumulateGrad"
# Results with the numbers of their argument in the same order.
_RESHAPING = frozenset(
    [
        "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0", "SqueezeBackward0",
        "SqueezeBackward1", "SqueezeBackward2", "AliasBackward0", "CloneBackward0",
    ]
)  # fmt: skip
# One number for each row, from all of the row's numbers.
_REDUCING = frozenset(
    [
        "VarMeanBackward0", "VarBackward0", "StdMeanBackward0", "StdBackward0", "MeanBackward1", "SumBackward1",
        "LinalgVectorNormBackward0",
    ]
)  # fmt: skip
# From one number of each row to another, each by itself.
_ELEMENTWISE = frozenset(
    [
        "MulBackward0", "DivBackward0", "AddBackward0", "SubBackward0", "RsubBackward0", "RsqrtBackward0",
        "SqrtBackward0", "PowBackward0", "ExpBackward0", "LogBackward0", "ReciprocalBackward0", "NegBackward0",
        "ClampBackward0", "ClampBackward1", "ClampMinBackward0", "MaximumBackward0", "AbsBackward0",
        "SigmoidBackward0", "SoftplusBackward0", "TanhBackward0",
    ]
)  # fmt: skip
_NORMALISING = frozenset(["NativeBatchNormBackward0", "CudnnBatchNormBackward0"])
# Fewer numbers than this need no such care, and leave nothing outside of the plane.
_SHORTEST = 8
_LONGEST = 8192  # of a row that one kernel holds


class _OtherKind(Exception):
    """The weight is not of this kind."""


def full_parameter(tensor: Tensor) -> Tensor | None:
    """Return the parameter whose rows become those of a tensor, if that is all there is to it; None otherwise.

    Guarantee:
        If it is not None, every row of the tensor is ``a v + b 1`` with the row ``v`` of that parameter, and ``a`` and
        ``b`` depend on ``v`` through its sum and its length only, and on one number of the row of other parameters.
        Operations that are not known to keep to this are taken not to.
    """
    if tensor.dim() < 2 or tensor.shape[0] < 1 or tensor.numel() < _SHORTEST * tensor.shape[0]:
        return None
    try:
        return _Reading(tensor).result
    except _OtherKind:
        return None


class _Reading:
    """One reading of the graph behind a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._num_rows, self._numel = tensor.shape[0], tensor.numel()
        self._leaves: dict[int, Tensor] = {}
        seen: set[tuple[Node, int]] = set()
        queue: list[tuple[Node, int]] = [(tensor.grad_fn, tensor.output_nr)]
        while queue:
            at = queue.pop()
            if at in seen:
                continue
            seen.add(at)
            queue += self._behind(*at)
        if len(self._leaves) != 1:
            raise _OtherKind
        (self.result,) = self._leaves.values()

    def _behind(self, node: Node, number: int) -> Iterator[tuple[Node, int]]:
        """Yield the arguments of a result, if it is made row by row."""
        name, shape = node.name(), _shape(node, number)
        edges: Sequence[tuple[Node, int]] = [edge for edge in node.next_functions if edge[0] is not None]
        if name == _LEAF:
            self._note(node.variable)
        elif self._is_full(shape):
            self._check_full(node, name, shape)
        elif math.prod(shape) == self._num_rows:
            self._check_row(node, name, shape)
        else:
            raise _OtherKind
        yield from edges

    def _note(self, parameter: Tensor) -> None:
        if self._is_full(tuple(parameter.shape)):
            self._leaves[id(parameter)] = parameter
        elif parameter.numel() != self._num_rows:
            raise _OtherKind

    def _is_full(self, shape: tuple[int, ...]) -> bool:
        return math.prod(shape) == self._numel

    def _split(self, shape: tuple[int, ...]) -> int:
        """Return how many of the first axes hold the rows."""
        total = 1
        for place, length in enumerate(shape):
            total *= length
            if total == self._num_rows and math.prod(shape[place + 1 :]) * total == self._numel:
                return place + 1
        raise _OtherKind

    def _is_beside(self, other: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a tensor has one number for each row of another, or one for all, when both are broadcast."""
        padded = (1,) * (len(shape) - len(other)) + other
        split = self._split(shape)
        return math.prod(other) == 1 or padded == shape[:split] + (1,) * (len(shape) - split)

    def _check_full(self, node: Node, name: str, shape: tuple[int, ...]) -> None:
        split = self._split(shape)
        if name in _RESHAPING:
            ok = self._is_full(_operand(node, 0))
        elif name == "MulBackward0":
            sizes = _operand(node, 0), _operand(node, 1)
            ok = any(
                sizes[one] == shape
                and node.next_functions[one][0] is not None
                and self._is_beside(sizes[1 - one], shape)
                for one in (0, 1)
            )
        elif name == "DivBackward0":
            ok = _operand(node, 0) == shape and self._is_beside(_operand(node, 1), shape)
        elif name in ("AddBackward0", "SubBackward0"):
            sizes = _operand(node, 0), _operand(node, 1)
            ok = all(size == shape or self._is_beside(size, shape) for size in sizes)
        elif name == "ExpandBackward0":
            ok = math.prod(_operand(node, 0)) == self._num_rows and self._is_beside(_operand(node, 0), shape)
        elif name in _NORMALISING:  # each row is a channel of a batch of one
            ok = shape[0] == 1 and split == 2 and shape == _operand(node, 0) and node._saved_training
        elif name == "WeightNormInterfaceBackward0":
            ok = node._saved_dim == 0 and split == 1 and shape == _operand(node, 0)
        else:
            ok = False
        if not ok:
            raise _OtherKind

    def _check_row(self, node: Node, name: str, shape: tuple[int, ...]) -> None:
        if name in _REDUCING:
            given = _operand(node, 0)
            split = self._split(given) if self._is_full(given) else 0
            axes = node._saved_dim
            axes = [axes] if isinstance(axes, int) else axes
            places = sorted((axis - (1 << 64) if axis >= 1 << 63 else axis) % len(given) for axis in axes or ())
            ok = split > 0 and places == list(range(split, len(given)))
            if name == "LinalgVectorNormBackward0":
                ok = ok and node._saved_ord == 2
        elif name == "WeightNormInterfaceBackward0":
            ok = False  # the lengths that it hands out beside the weight
        else:
            bare = [length for length in shape if length != 1]
            children = [_shape(*edge) for edge in node.next_functions if edge[0] is not None]
            alike = all([length for length in child if length != 1] == bare for child in children)
            ok = name in _ELEMENTWISE | _RESHAPING | {"ExpandBackward0"} and alike
        if not ok:
            raise _OtherKind


def _shape(node: Node, number: int) -> tuple[int, ...]:
    if node.name() == _LEAF:
        return tuple(node.variable.shape)
    return tuple(node._input_metadata[number].shape)


def _operand(node: Node, place: int) -> tuple[int, ...]:
    """Return the shape of an argument, from its node or from the saved tensor."""
    if place < len(node.next_functions) and node.next_functions[place][0] is not None:
        child, number = node.next_functions[place]
        # numbers that are written out for all of a row are still one for each
        return _operand(child, 0) if child.name() == "ExpandBackward0" else _shape(child, number)
    saved = getattr(node, ("_saved_self", "_saved_other")[place], None) if place < 2 else None
    if not isinstance(saved, Tensor):
        raise _OtherKind
    return tuple(saved.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLengths:
    """The change of the lengths of a gradient's rows on the way back.

    Attributes:
        direction: For each row the unit vector of the plane that is at right angles to ``1``; ``[rows, width]``.
        coefficients: For each row the growth of squares outside of the plane, and the quadratic form within it: along
            ``1``, across, and along ``direction``; ``[rows, 4]``.
    """

    direction: Tensor
    coefficients: Tensor

    @property
    def gain(self) -> Tensor:
        """How many times as large a square becomes at most."""
        outside, along, across, other = self.coefficients.unbind(1)
        within = (along + other) / 2 + torch.hypot((along - other) / 2, across)
        return torch.maximum(outside, within).amax()

    def square_sums(self, gradients: Tensor) -> Tensor:
        """Return the squared lengths of gradients ``[batch, *tensor]`` after they were sent back."""
        num_rows, width = self.direction.shape
        if kernels.available(gradients) and width <= _LONGEST:
            return kernels.row_squares(gradients, self.direction, self.coefficients).sum(1)
        rows = gradients.reshape(len(gradients), num_rows, width)
        first = rows.sum(2) / math.sqrt(width)
        second = torch.einsum("brw,rw->br", rows, self.direction)
        # the remainder is squared, not the part that is taken away: nothing cancels
        left = rows - first.unsqueeze(2) / math.sqrt(width)
        left -= second.unsqueeze(2) * self.direction
        outside, along, across, other = self.coefficients.unbind(1)
        squares = outside * left.square().sum(2) + along * first.square() + other * second.square()
        return (squares + 2 * across * first * second).sum(1).clamp_min(0)


def unit_directions(parameter: Tensor, num_rows: int) -> Tensor:
    """Return for each row the direction of its numbers less their mean; zeros where they are all equal."""
    rows = parameter.detach().reshape(num_rows, -1)
    rows = rows - rows.mean(1, keepdim=True)
    return torch.nn.functional.normalize(rows, dim=1)
