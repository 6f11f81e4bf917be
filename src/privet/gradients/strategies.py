"""How the norm of each example's gradient is measured, and which way is fastest for a layer on this machine.

Every strategy is exact; they differ in time and memory only. The planner times the ones that fit a layer's shape once,
on the first physical batch, and keeps the fastest. Nothing about the data enters the choice but its shape.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.per_example import Convolution, Explicit, Lookup, Outer, PerExample

# Largest number of elements written at once while norms are measured, and kept per layer until factors are known.
_MAX_SCRATCH = 1 << 24
_MAX_STORED = 1 << 26


class Strategy(Protocol):
    """One way to measure norms."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    def fits(self, part: Any) -> bool:
        """Whether it can be used for gradients of this shape within the memory limits."""
        ...

    def measure(self, part: Any) -> tuple[Tensor, PerExample]:
        """Return squared norms ``[batch]`` and what to keep for the weighted sum."""
        ...


def _sum_of_products(products: Tensor) -> Tensor:
    """Add up a matrix of inner products per example into a squared norm that rounding cannot make too small.

    When contributions of different positions cancel, their sum is rounding error around zero, and a norm that comes out
    too small would let too much through. The floor is that error's size; it is reached only by near-total cancellation.
    """
    sizes = products.diagonal(dim1=1, dim2=2).sum(1)
    floor = sizes * (16 * torch.finfo(products.dtype).eps * products.shape[1])
    return products.sum((1, 2)).maximum(floor)


def _in_pieces(part: PerExample, elements_per_example: int, measure: Callable[[Any], Tensor]) -> Tensor:
    rows = max(1, _MAX_SCRATCH // max(1, elements_per_example))
    if len(part) <= rows:
        return measure(part)
    return torch.cat([measure(part[start : start + rows]) for start in range(0, len(part), rows)])


def _square_sums(gradients: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(gradients.flatten(1), dim=1)
    return norms.square_()


@dataclass(frozen=True, kw_only=True)
class Written:
    """The gradients are written out already."""

    name: str = "explicit"

    def fits(self, part: Explicit) -> bool:
        """Always."""
        return True

    def measure(self, part: Explicit) -> tuple[Tensor, PerExample]:
        """Sum their squares."""
        return _square_sums(part.gradients), part


@dataclass(frozen=True, kw_only=True)
class Store:
    """Write every gradient out, measure it and keep it: the weighted sum is then one cheap product."""

    name: str = "store"

    def fits(self, part: PerExample) -> bool:
        """While all gradients of the layer fit the memory limit."""
        return len(part) * _parameter_size(part) <= _MAX_STORED

    def measure(self, part: PerExample) -> tuple[Tensor, PerExample]:
        """Materialise and keep."""
        gradients = part.in_full()
        return _square_sums(gradients), Explicit(gradients=gradients)


@dataclass(frozen=True, kw_only=True)
class NormOnly:
    """Write gradients out some examples at a time, measure them and drop them."""

    name: str = "norm only"

    def fits(self, part: PerExample) -> bool:
        """Always; an embedding's table is the one thing too large to write out for nothing."""
        return not isinstance(part, Lookup)

    def measure(self, part: PerExample) -> tuple[Tensor, PerExample]:
        """Materialise in pieces."""
        size = _parameter_size(part)
        return _in_pieces(part, size, lambda piece: _square_sums(piece.in_full())), part


@dataclass(frozen=True, kw_only=True)
class RankOne:
    """A single position: the norm of an outer product is the product of two lengths."""

    name: str = "rank one"

    def fits(self, part: Outer) -> bool:
        """One position per example."""
        return part.inputs.shape[1] == 1

    def measure(self, part: Outer) -> tuple[Tensor, PerExample]:
        """Multiply the lengths."""
        return _square_sums(part.inputs) * _square_sums(part.out_grads), part


@dataclass(frozen=True, kw_only=True)
class Gram:
    """Ghost norm: products between positions, without ever forming a gradient (Li et al. 2022)."""

    name: str = "gram"

    def fits(self, part: Outer) -> bool:
        """While the products between positions are not far more work than the gradient itself."""
        length, width_in, width_out = part.inputs.shape[1], part.inputs.shape[2], part.out_grads.shape[2]
        return length > 1 and length * (width_in + width_out) < 8 * width_in * width_out and length <= 4096

    def measure(self, part: Outer) -> tuple[Tensor, PerExample]:
        """Sum the elementwise product of the two Gram matrices."""
        return _in_pieces(part, 2 * part.inputs.shape[1] ** 2, self._pairs), part

    def _pairs(self, part: Outer) -> Tensor:
        products = torch.bmm(part.inputs, part.inputs.mT)
        return _sum_of_products(products.mul_(torch.bmm(part.out_grads, part.out_grads.mT)))


@dataclass(frozen=True, kw_only=True)
class SameRow:
    """Embedding: products between positions that look up the same row."""

    name: str = "same row"

    def fits(self, part: Lookup) -> bool:
        """Always."""
        return True

    def measure(self, part: Lookup) -> tuple[Tensor, PerExample]:
        """Sum the products of output gradients with equal ids."""
        return _in_pieces(part, 2 * part.ids.shape[1] ** 2, self._pairs), part

    def _pairs(self, part: Lookup) -> Tensor:
        same = part.ids.unsqueeze(1) == part.ids.unsqueeze(2)
        return _sum_of_products(torch.bmm(part.out_grads, part.out_grads.mT).mul_(same))


@dataclass(frozen=True, kw_only=True)
class Unfolded:
    """A convolution as a linear map over its patches, measured by another strategy."""

    by: Strategy
    keeps_convolution: bool

    @property
    def name(self) -> str:
        """The strategy behind it."""
        return f"unfold, {self.by.name}"

    def fits(self, part: Convolution) -> bool:
        """Two-dimensional and ungrouped; on an accelerator only where unfolding is a reshape."""
        if part.inputs.dim() != 4 or part.geometry.groups != 1:
            return False
        if part.inputs.is_cuda and not _is_reshape(part):
            return False
        patches = math.prod(part.out_grads.shape[2:]) * math.prod(part.geometry.weight_shape[1:])
        if len(part) * patches > _MAX_STORED:
            return False
        return self.by.fits(_patches(part[:1], shape_only=True))

    def measure(self, part: Convolution) -> tuple[Tensor, PerExample]:
        """Unfold and measure; keep the convolution itself where its own weight gradient is the better sum."""
        squares, kept = self.by.measure(_patches(part))
        if self.keeps_convolution:
            return squares, part
        assert isinstance(kept, Explicit), "only stored gradients replace the convolution"
        return squares, Explicit(gradients=kept.gradients.view(-1, *part.geometry.weight_shape))


def _is_reshape(part: Convolution) -> bool:
    geometry = part.geometry
    kernel = geometry.weight_shape[2:]
    return set(geometry.padding) == {0} and (geometry.stride == tuple(kernel) or set(kernel) == {1})


def _patches(part: Convolution, *, shape_only: bool = False) -> Outer:
    geometry = part.geometry
    out_grads = part.out_grads.flatten(2).mT
    if shape_only:
        width = math.prod(geometry.weight_shape[1:])
        return Outer(inputs=out_grads.new_empty(1).expand(*out_grads.shape[:2], width), out_grads=out_grads)
    columns = functional.unfold(
        part.inputs, geometry.weight_shape[2:], geometry.dilation, geometry.padding, geometry.stride
    )
    return Outer(inputs=columns.mT, out_grads=out_grads)


@dataclass(frozen=True, kw_only=True)
class PixelGram:
    """Ghost norm of a convolution from products between pixels.

    The products between patches are sums, over the taps of the kernel, of shifted products between pixels, so the large
    patches are never formed. Best for many channels and few pixels.
    """

    name: str = "pixel gram"

    def fits(self, part: Convolution) -> bool:
        """Two-dimensional, ungrouped, undilated, and cheaper than a few weight gradients."""
        geometry = part.geometry
        if part.inputs.dim() != 4 or geometry.groups != 1 or set(geometry.dilation) != {1}:
            return False
        out_channels, in_channels, *kernel = geometry.weight_shape
        positions = math.prod(part.out_grads.shape[2:])
        pixels = _padded_pixels(part)
        work = pixels**2 * in_channels + positions**2 * (out_channels + math.prod(kernel))
        return work <= 4 * positions * math.prod(geometry.weight_shape) and pixels <= 4096

    def measure(self, part: Convolution) -> tuple[Tensor, PerExample]:
        """Sum the elementwise product of the two Gram matrices between output positions."""
        return _in_pieces(part, 2 * _padded_pixels(part) ** 2, self._pairs), part

    def _pairs(self, part: Convolution) -> Tensor:
        geometry = part.geometry
        rows, columns = geometry.padding
        padded = functional.pad(part.inputs, (columns, columns, rows, rows))
        batch, _, height, width = padded.shape
        flat = padded.flatten(2)
        pixels = torch.bmm(flat.mT, flat).view(batch, height, width, height, width)
        (out_h, out_w), (step_h, step_w) = part.out_grads.shape[2:], geometry.stride
        patches: Tensor | None = None
        for down in range(geometry.weight_shape[2]):
            tall = slice(down, down + step_h * (out_h - 1) + 1, step_h)
            for right in range(geometry.weight_shape[3]):
                wide = slice(right, right + step_w * (out_w - 1) + 1, step_w)
                shifted = pixels[:, tall, wide, tall, wide]
                patches = shifted.contiguous() if patches is None else patches.add_(shifted)
        assert patches is not None, "a kernel has at least one tap"
        grads = part.out_grads.flatten(2)
        products = torch.bmm(grads.mT, grads)
        return _sum_of_products(products.mul_(patches.view_as(products)))


def _padded_pixels(part: Convolution) -> int:
    sizes = zip(part.inputs.shape[2:], part.geometry.padding, strict=True)
    return math.prod(size + 2 * padding for size, padding in sizes)


def _parameter_size(part: PerExample) -> int:
    if isinstance(part, Outer):
        return part.inputs.shape[2] * part.out_grads.shape[2]
    if isinstance(part, Convolution):
        return math.prod(part.geometry.weight_shape)
    if isinstance(part, Lookup):
        return part.num_rows * part.out_grads.shape[2]
    return part.in_full()[0].numel()


STRATEGIES: Mapping[type, Sequence[Strategy]] = {
    Explicit: (Written(),),
    Outer: (RankOne(), Gram(), Store(), NormOnly()),
    Lookup: (SameRow(),),
    Convolution: (
        PixelGram(),
        Store(),
        NormOnly(),
        Unfolded(by=Store(), keeps_convolution=False),
        Unfolded(by=Gram(), keeps_convolution=True),
    ),
}
"""The ways to measure each form; where several fit, they are timed."""


@dataclass(kw_only=True)
class Planner:
    """Chooses a strategy per layer shape by timing, once."""

    strategies: Mapping[type, Sequence[Strategy]] = field(default_factory=lambda: STRATEGIES)
    chosen: dict[Hashable, Strategy] = field(default_factory=dict)
    _planned_for: dict[Hashable, int] = field(default_factory=dict)

    def measure(self, part: PerExample) -> tuple[Tensor, PerExample]:
        """Measure norms by the chosen strategy; choose one first if the shape is new or the batch much larger."""
        key = (type(part), part.shape_key)
        strategy = self.chosen.get(key)
        if strategy is None or len(part) > 2 * self._planned_for[key]:
            strategy = self.chosen[key] = self._choose(part)
            self._planned_for[key] = len(part)
        elif not strategy.fits(part):  # a larger batch than planned for, over a memory limit
            strategy = self.chosen[key] = self._choose(part)
        return strategy.measure(part)

    def _choose(self, part: PerExample) -> Strategy:
        options = [strategy for strategy in self.strategies[type(part)] if strategy.fits(part)]
        if len(options) == 1 or isinstance(options[0], RankOne):
            return options[0]
        best = math.inf
        winner = options[0]
        for strategy in options:
            seconds = _time(strategy, part, give_up_at=2 * best)
            if seconds < best:
                best, winner = seconds, strategy
        return winner


def _time(strategy: Strategy, part: PerExample, *, give_up_at: float) -> float:
    """Return the median seconds of norm plus weighted sum; a try that is already hopeless is not repeated."""
    first = strategy.measure(part)[1]
    weights = torch.ones(len(part), dtype=_dtype(part), device=_device(part))
    into = torch.zeros_like(first[:1].in_full()[0])
    taken: list[float] = []
    for _ in range(3):
        _wait(into)
        start = time.perf_counter()
        strategy.measure(part)[1].add_weighted_sum(weights, into)
        _wait(into)
        taken.append(time.perf_counter() - start)
        if taken[-1] > give_up_at:
            break
    return statistics.median(taken)


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _factor(part: PerExample) -> Tensor:
    return part.gradients if isinstance(part, Explicit) else part.out_grads  # type: ignore[attr-defined]


def _dtype(part: PerExample) -> torch.dtype:
    return _factor(part).dtype


def _device(part: PerExample) -> torch.device:
    return _factor(part).device
