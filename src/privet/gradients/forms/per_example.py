"""Forms of the per-example gradients of one parameter, each cheap to keep.

A layer's gradient for one example is rarely worth writing out: for a linear layer it is an outer product of input and
output gradient. Each class here is one such form. It can write every example's gradient out, and add the weighted
sum over examples to a buffer without doing so. Strategies measure the norms
(:mod:`privet.gradients.norms.strategies`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.norms import kernels, processor_products
from privet.gradients.norms.product_precision import HALF

LONGEST_SUM = 1 << 12
"""How many products a device may add one after the other in single precision; see :func:`batched_product`."""

# From this many elements on a Triton kernel is worth its launch.
_MANY = 1 << 20


class PerExample(Protocol):
    """The gradients of one parameter, one per example of a physical batch."""

    @property
    def shape_key(self) -> Hashable:
        """A key of the cost of handling it, apart from the number of examples."""
        ...

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, rows: slice) -> PerExample:
        """Return the gradients of some of the examples."""
        ...

    def in_full(self) -> Tensor:
        """Write every example's gradient out, shape ``[batch, *parameter]``."""
        ...

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """Add the sum over examples of weight times gradient to a tensor of the parameter's shape."""
        ...

    def without(self, bad: Tensor) -> PerExample:
        """Return the same gradients with those of the marked examples replaced by zero."""
        ...


def zero_rows(tensor: Tensor, bad: Tensor, *, is_gradient: bool = True) -> Tensor:
    """Return the tensor with marked rows replaced by zero, in one pass: ``masked_fill`` would copy first.

    Inside a recording nobody else reads gradients and results of the program, so large ones are changed in place.
    """
    is_own = is_gradient or _is_made_by_program(tensor)
    if tensor.numel() >= _MANY and clears_in_place(tensor) and is_own and _has_dense_rows(tensor):
        kernels.clear_rows(tensor, bad)
        return tensor
    return torch.where(bad.view(-1, *[1] * (tensor.dim() - 1)), tensor.new_zeros(()), tensor)


def clears_in_place(tensor: Tensor) -> bool:
    """Whether rows of results on this device can be cleared where they lie: inside a CUDA graph that is captured."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing() and kernels.available(tensor)


def _is_made_by_program(tensor: Tensor) -> bool:
    """Whether the memory of a tensor belongs to a result: not to a weight, a constant or a batch."""
    base = tensor if tensor._base is None else tensor._base
    return base.grad_fn is not None


def _has_dense_rows(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def scale(tensor: Tensor, weights: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Multiply rows by weights in at least single precision, and round once, to ``dtype`` or that of the tensor."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.numel() >= _MANY and kernels.available(tensor) and tensor.is_contiguous():
        return kernels.scaled_rows(tensor, weights, dtype)
    weights = weights.view(-1, *[1] * (tensor.dim() - 1))
    if tensor.dtype in HALF and dtype == tensor.dtype:
        return torch.mul(tensor, weights, out=torch.empty_like(tensor))
    return tensor * weights


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices in pairs, summing in at least single precision, long sums in stretches.

    The gradient of a softmax over a vocabulary is one number near 1 and tens of thousands that are too small to count
    when they are added to it one by one: products between positions, and with them norms, would come out too small.
    """
    length = left.shape[2]
    if length <= LONGEST_SUM:
        return one_product(left, right)
    stretches = (slice(start, start + LONGEST_SUM) for start in range(0, length, LONGEST_SUM))
    return _added(one_product(left[:, :, stretch], right[:, stretch]) for stretch in stretches)


def products_between(factor: Tensor) -> Tensor:
    """Return the products of all pairs of an example's rows, ``[batch, t, t]`` of ``[batch, t, d]``."""
    length = factor.shape[2]
    is_aligned = not factor.is_cuda or factor.stride(1) * factor.element_size() % 16 == 0
    if length <= LONGEST_SUM or is_aligned:
        return batched_product(factor, factor.mT)
    # rows that begin anywhere in memory (a vocabulary of odd size) are multiplied at a third of the speed
    starts = range(0, length, LONGEST_SUM)
    stretches = (factor[:, :, start : start + LONGEST_SUM].contiguous() for start in starts)
    return _added(one_product(stretch, stretch.mT) for stretch in stretches)


def _added(products: Iterator[Tensor]) -> Tensor:
    total = next(products)
    for product in products:
        total += product
    return total


def one_product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices in pairs, summing in at least single precision."""
    if left.dtype in HALF:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return processor_products.batched_product(left, right)


def _key(left: Tensor, right: Tensor) -> Hashable:
    return (left.shape[1:], left.dtype, right.shape[1:], right.dtype, right.device)


@dataclass(frozen=True, kw_only=True, eq=False)
class Explicit:
    """Gradients written out in full: biases, norm layers, anything small or unusual."""

    gradients: Tensor

    @property
    def shape_key(self) -> Hashable:
        return (self.gradients.shape[1:], self.gradients.dtype, self.gradients.device)

    def __len__(self) -> int:
        return self.gradients.shape[0]

    def __getitem__(self, rows: slice) -> Explicit:
        return Explicit(gradients=self.gradients[rows])

    def in_full(self) -> Tensor:
        return self.gradients

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """One matrix-vector product over memory as it lies; kernels store some gradients in another order."""
        axes = range(1, self.gradients.dim())
        order = sorted(axes, key=self.gradients.stride, reverse=True)
        if order == list(axes):
            into.view(-1).addmv_(self.gradients.reshape(len(weights), -1).mT, weights)
            return
        in_memory_order = self.gradients.permute(0, *order)
        sums = weights @ in_memory_order.flatten(1)
        into.unsqueeze(0).permute(0, *order).add_(sums.view(1, *in_memory_order.shape[1:]))

    def without(self, bad: Tensor) -> Explicit:
        return Explicit(gradients=zero_rows(self.gradients, bad))


@dataclass(kw_only=True, eq=False)
class SharedProducts:
    """Products between the positions of output gradients that several weights have in common, formed once for all.

    Attributes:
        factor: The output gradients ``[batch, t, p]``.
        num_weights: How many weights ask; after that many times the products are let go of.
    """

    factor: Tensor
    num_weights: int
    _found: Tensor | None = None
    _times_asked: int = 0

    def between_positions(self) -> Tensor:
        """Return the products ``[batch, t, t]``; they are not to be changed."""
        found = products_between(self.factor) if self._found is None else self._found
        self._times_asked = (self._times_asked + 1) % self.num_weights
        self._found = found if self._times_asked else None
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Factors:
    """Gradients as products of the inputs of a layer and the gradients of its outputs, example by example."""

    inputs: Tensor
    out_grads: Tensor

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, rows: slice) -> Self:
        return replace(self, inputs=self.inputs[rows], out_grads=self.out_grads[rows])

    def without(self, bad: Tensor) -> Self:
        inputs, out_grads = zero_rows(self.inputs, bad, is_gradient=False), zero_rows(self.out_grads, bad)
        return replace(self, inputs=inputs, out_grads=out_grads)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outer(_Factors):
    """``gradient_b = sum over t of out_grad[b, t] x inputs[b, t]``: the weight of a linear map.

    Shapes: ``inputs [batch, t, d]``, ``out_grads [batch, t, p]``; the gradient is ``[p, d]``, or the same elements as
    ``shape``. ``shared`` may hold products of the output gradients for other weights too; it is of no use to a part of
    the examples, nor to other output gradients.
    """

    shape: tuple[int, ...] | None = None
    shared: SharedProducts | None = None

    @property
    def shape_key(self) -> Hashable:
        return _key(self.inputs, self.out_grads)

    def products_of_out_grads(self) -> Tensor:
        """Return the products between output gradients of all pairs of positions; they are not to be changed."""
        if self.shared is not None and self.shared.factor is self.out_grads:
            return self.shared.between_positions()
        return products_between(self.out_grads)

    def in_full(self) -> Tensor:
        gradients = batched_product(self.out_grads.mT, self.inputs)
        return gradients if self.shape is None else gradients.view(len(self), *self.shape)

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """One matrix product over batch and positions together; the narrower factor carries the weights."""
        inputs, out_grads = self.inputs, self.out_grads
        if inputs.shape[2] < out_grads.shape[2]:
            inputs = scale(inputs, weights)
        else:
            out_grads = scale(out_grads, weights)
        matrix = into.view(out_grads.shape[2], inputs.shape[2])
        left, right = out_grads.flatten(0, 1).mT, inputs.flatten(0, 1)
        if inputs.dtype not in HALF:
            processor_products.add_product(matrix, left, right)
        elif kernels.is_traced():  # compilers fuse the sum themselves
            matrix += torch.mm(left, right, out_dtype=torch.float32)
        else:
            torch.addmm(matrix, left, right, out_dtype=torch.float32, out=matrix)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lookup:
    """``gradient_b = sum over t of onehot(ids[b, t]) x out_grads[b, t]``: the rows of an embedding table."""

    ids: Tensor
    out_grads: Tensor
    num_rows: int

    @property
    def shape_key(self) -> Hashable:
        return _key(self.ids, self.out_grads)

    def __len__(self) -> int:
        return self.ids.shape[0]

    def __getitem__(self, rows: slice) -> Lookup:
        return Lookup(ids=self.ids[rows], out_grads=self.out_grads[rows], num_rows=self.num_rows)

    def in_full(self) -> Tensor:
        """Scatter each example's output gradients into its own table."""
        batch, _, width = self.out_grads.shape
        table = self.out_grads.new_zeros(batch, self.num_rows, width)
        return table.scatter_add_(1, self.ids.unsqueeze(2).expand(-1, -1, width), self.out_grads)

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """Add each weighted output gradient to its row."""
        into.index_add_(0, self.ids.flatten(), scale(self.out_grads, weights).flatten(0, 1))

    def without(self, bad: Tensor) -> Lookup:
        return Lookup(ids=self.ids, out_grads=zero_rows(self.out_grads, bad), num_rows=self.num_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class TiedTable:
    """One matrix as an embedding table and as the weight of a linear map: ``gradient_b`` is the sum of both uses."""

    lookup: Lookup
    outer: Outer

    @property
    def out_grads(self) -> Tensor:
        """Output gradients of the linear map."""
        return self.outer.out_grads

    @property
    def shape_key(self) -> Hashable:
        return (self.lookup.shape_key, self.outer.shape_key)

    def __len__(self) -> int:
        return len(self.lookup)

    def __getitem__(self, rows: slice) -> TiedTable:
        return TiedTable(lookup=self.lookup[rows], outer=self.outer[rows])

    def in_full(self) -> Tensor:
        """Write out the linear map's gradients and scatter the look-ups into them."""
        table, ids = self.outer.in_full(), self.lookup.ids
        return table.scatter_add_(1, ids.unsqueeze(2).expand(-1, -1, table.shape[2]), self.lookup.out_grads)

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        self.lookup.add_weighted_sum(weights, into)
        self.outer.add_weighted_sum(weights, into)

    def without(self, bad: Tensor) -> TiedTable:
        return TiedTable(lookup=self.lookup.without(bad), outer=self.outer.without(bad))


@dataclass(frozen=True, kw_only=True)
class ConvGeometry:
    """Everything about a convolution but its tensors."""

    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @cached_property
    def sides(self) -> list[int]:
        """The padding as ``functional.pad`` takes it: both sides of each axis, the last axis first."""
        return [amount for size in reversed(self.padding) for amount in (size, size)]

    @cached_property
    def run(self) -> int:
        """How many numbers of a patch lie side by side in an image whose channels come last."""
        _, channels, *kernel = self.weight_shape
        return channels * (kernel[-1] if self.dilation[-1] == 1 else 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Convolution(_Factors):
    """The weight of a convolution in one, two or three dimensions, with any stride, padding, dilation and groups.

    With ``sums_patches`` the weighted sum is a matrix product with the patches instead of a convolution's own weight
    gradient: faster on processors where the weight is large and the positions are few. Not for groups.

    Each example has ``views`` images, one behind the other (augmented copies, frames); its gradient is their sum.
    """

    geometry: ConvGeometry
    sums_patches: bool = False
    views: int = 1

    @property
    def shape_key(self) -> Hashable:
        return (_key(self.inputs, self.out_grads), self.geometry, self.views)

    def __len__(self) -> int:
        return self.inputs.shape[0] // self.views

    def __getitem__(self, rows: slice) -> Convolution:
        if self.views > 1:
            start, stop, _ = rows.indices(len(self))
            rows = slice(start * self.views, stop * self.views)
        return replace(self, inputs=self.inputs[rows], out_grads=self.out_grads[rows])

    def without(self, bad: Tensor) -> Convolution:
        return super().without(bad if self.views == 1 else bad.repeat_interleave(self.views))

    def in_full(self) -> Tensor:
        """Make examples groups of one large convolution: its weight gradient holds theirs side by side.

        This serves every stride, padding, dilation and group count that the library's own convolution serves. Views
        of an example are the batch of that convolution, which is summed over.
        """
        batch = len(self)
        inputs, out_grads = self._side_by_side(self.inputs), self._side_by_side(self.out_grads)
        flat = self._weight_gradient(inputs, out_grads, batch * self.geometry.groups, copies=batch)
        return flat.view(batch, *self.geometry.weight_shape)

    def _side_by_side(self, images: Tensor) -> Tensor:
        """Return ``[views, examples * channels, ...]``."""
        if self.views == 1:
            return images.reshape(1, -1, *images.shape[2:])
        by_view = images.reshape(len(self), self.views, *images.shape[1:]).transpose(0, 1)
        return by_view.reshape(self.views, -1, *images.shape[2:])

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """One ordinary weight gradient of the batch with scaled output gradients, or one product with its patches."""
        weights = weights if self.views == 1 else weights.repeat_interleave(self.views)
        if self.sums_patches:
            back = scale(self.out_grads.flatten(2), weights).transpose(0, 1).flatten(1)
            processor_products.add_product(into.view(len(back), -1), back, self.patches().flatten(1).mT)
            return
        scaled = scale(self.out_grads, weights, torch.promote_types(self.out_grads.dtype, torch.float32))
        into += self._weight_gradient(self.inputs, scaled, self.geometry.groups, copies=1)

    def patches(self) -> Tensor:
        """Return the patch of each position, ``[taps, images, positions]``, by one strided copy."""
        return self.strided_patches().flatten(0, -2 - len(self.geometry.stride)).flatten(2)

    def strided_patches(self) -> Tensor:
        """Return a view of the padded inputs as ``[channels, *kernel, images, *positions]``."""
        geometry = self.geometry
        padded = functional.pad(self.inputs, geometry.sides) if any(geometry.padding) else self.inputs
        padded = padded.contiguous()
        per_example, per_channel, *per_pixel = padded.stride()
        by_tap, by_position = map(mul, geometry.dilation, per_pixel), map(mul, geometry.stride, per_pixel)
        return padded.as_strided(
            (*geometry.weight_shape[1:], len(padded), *self.out_grads.shape[2:]),
            (per_channel, *by_tap, per_example, *by_position),
        )

    def _weight_gradient(self, inputs: Tensor, out_grads: Tensor, groups: int, *, copies: int) -> Tensor:
        geometry = self.geometry
        if inputs.dtype in HALF:  # cuDNN would round the sum over all examples: one would move the digits of others
            inputs, out_grads = inputs.float(), out_grads.float()
        out_channels, *rest = geometry.weight_shape
        weight = inputs.new_empty(()).expand(copies * out_channels, *rest)  # only its shape is read
        gradient: Tensor = torch.ops.aten.convolution_backward(
            out_grads, inputs, weight, None,
            geometry.stride, geometry.padding, geometry.dilation, False, [0] * (len(rest) - 1), groups,
            [False, True, False],
        )[1]  # fmt: skip
        return gradient


FORMS = (Explicit, Outer, Lookup, TiedTable, Convolution)
"""The forms above; others are made of them."""


def num_elements(part: PerExample) -> int:
    """Return how many numbers a form holds."""
    held = vars(part).values()
    inner = sum(num_elements(value) for value in held if isinstance(value, FORMS))
    return inner + sum(value.numel() for value in held if isinstance(value, Tensor))
