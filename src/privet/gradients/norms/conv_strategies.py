"""Strategies that measure the norms of a convolution's per-example weight gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import mul

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.forms.per_example import Convolution, Explicit, Outer, PerExample, batched_product
from privet.gradients.norms import kernels, processor_products
from privet.gradients.norms.strategies import (
    MAX_STORED,
    Gram,
    NormOnly,
    Squares,
    Store,
    Strategy,
    hedged,
    in_pieces,
    square_sums,
    sums_and_sizes,
)


@dataclass(frozen=True, kw_only=True)
class GroupedStore(Store):
    """:class:`Store` of a convolution, whose gradients come from one grouped convolution: quick on CPUs."""

    def fits(self, part: PerExample) -> bool:
        """Not where a kernel does better: grouped convolutions are slow on accelerators, and slow to tune."""
        return super().fits(part) and not _has_conv_kernel(part)


@dataclass(frozen=True, kw_only=True)
class GroupedNormOnly(NormOnly):
    """:class:`NormOnly` of a convolution by grouped convolutions."""

    def fits(self, part: PerExample) -> bool:
        """Not where a kernel does better."""
        return not _has_conv_kernel(part)

    def hedged(self, squares: Tensor, part: Convolution) -> Squares:
        """Leave room for the rounding of a convolution's gradients."""
        return _hedged(squares, part)


# Beyond this many output channels a grouped convolution is at its best.
_FEW_CHANNELS = 16
# Copying a line of at most this many pixels is faster than computing its address.
_SHORT_LINE = 8
# So few numbers side by side are copied one by one.
_SHORT_RUN = 12
# So many numbers are multiplied at once.
_LANES = 8
# This many numbers stay in a core's cache between the copy that writes them and the product that reads them.
_CACHED = 1 << 18
_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _hedged(squares: Tensor, part: Convolution) -> Squares:
    geometry = part.geometry
    kernel = geometry.weight_shape[2:]
    pixels = _pixel_sizes(part.inputs)
    ones = pixels.new_ones(1, 1, *kernel)
    # squared length of the patch behind each position, over all channels: an upper bound where there are groups
    patches = _CONVOLVE[len(kernel)](pixels, ones, None, geometry.stride, geometry.padding, geometry.dilation)
    out_sizes = _pixel_sizes(part.out_grads)
    sizes = (patches * out_sizes).reshape(len(part), -1).sum(1)
    return hedged(squares, sizes, part.views * out_sizes[0].numel(), part.inputs, convolves=True)


def _pixel_sizes(images: Tensor) -> Tensor:
    dtype = torch.promote_types(images.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(images, dim=1, keepdim=True, dtype=dtype)
    return lengths.square_()


def _has_conv_kernel(part: PerExample) -> bool:
    return isinstance(part, Convolution) and part.inputs.dim() == 4 and kernels.available(part.inputs)


@dataclass(frozen=True, kw_only=True)
class Unfolded:
    """A convolution as a linear map over its patches, measured by another strategy."""

    by: Strategy
    keeps_convolution: bool

    @property
    def name(self) -> str:
        return f"unfold, {self.by.name}"

    def fits(self, part: Convolution) -> bool:
        """Ungrouped, while the patches fit the memory limit."""
        if part.geometry.groups != 1:
            return False
        patches = math.prod(part.out_grads.shape[2:]) * math.prod(part.geometry.weight_shape[1:])
        if len(part.inputs) * patches > MAX_STORED:
            return False
        return self.by.fits(patches_of(part[:1], shape_only=True))

    def measure(self, part: Convolution) -> tuple[Squares, PerExample]:
        """Unfold and measure; keep the convolution itself where its own weight gradient is the better sum."""
        by_pixel = _is_copied_by_pixel(part)
        if by_pixel and not self.keeps_convolution:
            written, gradients = _gradients_by_pixel(part)
            return Squares(sums=square_sums(written)), Explicit(gradients=gradients)
        squares, kept = self.by.measure(_pixel_patches_of(part) if by_pixel else patches_of(part))
        if self.keeps_convolution:
            return squares, part
        assert isinstance(kept, Explicit), "only stored gradients replace the convolution"
        return squares, Explicit(gradients=kept.gradients.view(-1, *part.geometry.weight_shape))


def patches_of(part: Convolution, *, shape_only: bool = False) -> Outer:
    """Return a convolution's gradients as those of a linear map over its patches."""
    geometry = part.geometry
    out_grads = _positions_of(part)
    if shape_only:
        width = math.prod(geometry.weight_shape[1:])
        return Outer(inputs=out_grads.new_empty(1).expand(*out_grads.shape[:2], width), out_grads=out_grads)
    columns = _columns(part).mT
    return Outer(inputs=columns.reshape(*out_grads.shape[:2], columns.shape[2]), out_grads=out_grads)


def _positions_of(part: Convolution) -> Tensor:
    """Return output gradients ``[batch, positions, channels]``; those of all views of an example."""
    out_grads = part.out_grads.flatten(2).mT
    return out_grads if part.views == 1 else out_grads.reshape(len(part), -1, out_grads.shape[2])


def _columns(part: Convolution) -> Tensor:
    """Return the patches ``[images, taps, positions]`` by one strided copy.

    The library's own unfolding goes through the examples one by one, which on an accelerator is a launch for each.
    """
    taps, positions = math.prod(part.geometry.weight_shape[1:]), math.prod(part.out_grads.shape[2:])
    patches = part.strided_patches()
    return patches.movedim(patches.dim() - 1 - len(part.geometry.stride), 0).reshape(-1, taps, positions)


def _is_copied_by_pixel(part: Convolution) -> bool:
    """Whether patches are better copied pixel by pixel, all channels of each, than line by line.

    On a processor, where lines of an image are short or the places that a tap visits do not lie side by side, and where
    a tap has so few neighbours that numbers are best copied one by one.
    """
    if part.inputs.is_cuda:
        return False
    geometry = part.geometry
    return geometry.stride[-1] > 1 or part.out_grads.shape[-1] <= _SHORT_LINE or geometry.run <= _SHORT_RUN


def _pixel_patches_of(part: Convolution) -> Outer:
    """Return gradients as those of a linear map over patches whose channels come last."""
    patches = _PixelPatches(part)
    rows = patches.view.new_empty(patches.view.shape)
    patches.copy(slice(None), rows)
    out_grads = _positions_of(part)
    return Outer(inputs=rows.view(*out_grads.shape[:2], -1), out_grads=out_grads)


def _gradients_by_pixel(part: Convolution) -> tuple[Tensor, Tensor]:
    """Write gradients out, channels last, for as many examples at a time as have their patches in the cache.

    Returns:
        The gradients as they lie in memory, and in the order of the weight.
    """
    patches, back = _PixelPatches(part), part.out_grads.flatten(2)
    if part.views > 1:
        back = back.reshape(len(part), part.views, *back.shape[1:]).transpose(1, 2).flatten(2)
    shape = (part.views, *patches.view.shape[1:])
    rows = max(1, min(len(part), _CACHED // max(1, math.prod(shape))))
    scratch = patches.view.new_empty(rows * part.views, *shape[1:])
    out_channels, in_channels, *kernel = part.geometry.weight_shape
    taps = math.prod(kernel) * in_channels
    # products whose rows do not fill the processor's registers are slow: then those rows become columns
    taps_first = taps % _LANES != 0 and out_channels % _LANES == 0
    written = back.new_empty(len(part), *((taps, out_channels) if taps_first else (out_channels, taps)))
    for start in range(0, len(part), rows):
        some, into = back[start : start + rows], written[start : start + rows]
        here = scratch[: some.shape[0] * part.views]
        patches.copy(slice(start * part.views, (start + rows) * part.views), here)
        flat = here.view(some.shape[0], back.shape[2], taps)
        factors = (flat.mT, some.mT) if taps_first else (some, flat)
        processor_products.batched_product(*factors, into)
    by_channel = written.mT if taps_first else written
    return written, by_channel.view(len(part), out_channels, *kernel, in_channels).movedim(-1, 2)


class _PixelPatches:
    """The patches of a convolution's inputs whose channels come last: ``[batch, *positions, *kernel, channels]``."""

    def __init__(self, part: Convolution) -> None:
        """Turn and pad the images; ``view`` are the patches, of which nothing is copied yet."""
        geometry = part.geometry
        images = part.inputs.movedim(1, -1)
        padded = functional.pad(images, [0, 0, *geometry.sides]) if any(geometry.padding) else images
        padded = padded.contiguous()
        per_example, *per_pixel, per_channel = padded.stride()
        by_position, by_tap = map(mul, geometry.stride, per_pixel), map(mul, geometry.dilation, per_pixel)
        positions, (_, channels, *kernel) = part.out_grads.shape[2:], geometry.weight_shape
        self.view = padded.as_strided(
            (len(padded), *positions, *kernel, channels), (per_example, *by_position, *by_tap, per_channel)
        )
        self._images, self._places = padded.flatten(1), None
        if geometry.run <= _SHORT_RUN:
            numbers = torch.arange(self._images.shape[1], device=padded.device)
            self._places = numbers.as_strided(self.view.shape[1:], self.view.stride()[1:]).reshape(-1)

    def copy(self, examples: slice, into: Tensor) -> None:
        """Copy the patches of some examples."""
        if self._places is None:
            into.copy_(self.view[examples])
        else:
            torch.index_select(self._images[examples], 1, self._places, out=into.view(into.shape[0], -1))


def _may_sum_patches(part: Convolution) -> bool:
    """Whether a product with patches may beat the library's weight gradient: few positions for the size of a weight."""
    if part.inputs.is_cuda or part.geometry.groups != 1 or part.views > 1:
        return False
    width_out, width_in = part.geometry.weight_shape[0], math.prod(part.geometry.weight_shape[1:])
    positions = len(part) * math.prod(part.out_grads.shape[2:])
    return positions <= max(width_in, width_out) and positions * width_in <= MAX_STORED


@dataclass(frozen=True, kw_only=True)
class PatchGram:
    """Ghost norm of a convolution from products between patches, which are kept: the sum multiplies them again."""

    name: str = "patch gram"

    def fits(self, part: Convolution) -> bool:
        """Few positions and a large weight, on a processor."""
        return _may_sum_patches(part) and Gram().fits(patches_of(part[:1], shape_only=True))

    def measure(self, part: Convolution) -> tuple[Squares, PerExample]:
        """Measure a linear map over the patches and keep it."""
        # taps first: the sum over all examples then reads both factors as they lie
        inputs, shape = part.patches().permute(1, 2, 0), part.geometry.weight_shape
        return Gram().measure(Outer(inputs=inputs, out_grads=part.out_grads.flatten(2).mT, shape=shape))


@dataclass(frozen=True, kw_only=True)
class PixelGram:
    """Ghost norm of a convolution from products between pixels.

    The products between patches are sums, over the taps of the kernel, of shifted products between pixels, so the large
    patches are never formed. Best for many channels and few pixels.

    Attributes:
        sums_patches: Whether the weighted sum forms them after all; see :class:`Convolution`.
    """

    sums_patches: bool = False

    @property
    def name(self) -> str:
        return "pixel gram, patches" if self.sums_patches else "pixel gram"

    def fits(self, part: Convolution) -> bool:
        """Two-dimensional, ungrouped, undilated, of one view, and cheaper than a few weight gradients."""
        geometry = part.geometry
        if self.sums_patches and not _may_sum_patches(part):
            return False
        if part.inputs.dim() != 4 or geometry.groups != 1 or set(geometry.dilation) != {1} or part.views > 1:
            return False
        out_channels, in_channels, *kernel = geometry.weight_shape
        positions = math.prod(part.out_grads.shape[2:])
        pixels = _padded_pixels(part)
        work = pixels**2 * in_channels + positions**2 * (out_channels + math.prod(kernel))
        return work <= 4 * positions * math.prod(geometry.weight_shape) and pixels <= 4096

    def measure(self, part: Convolution) -> tuple[Squares, PerExample]:
        """Sum the elementwise product of the two Gram matrices between output positions."""
        found = in_pieces(part, 2 * _padded_pixels(part) ** 2, self._pairs)
        positions = math.prod(part.out_grads.shape[2:])
        kept = replace(part, sums_patches=True) if self.sums_patches else part
        return hedged(found[0], found[1], positions, part.inputs, convolves=True), kept

    def _pairs(self, part: Convolution) -> Tensor:
        geometry = part.geometry
        rows, columns = geometry.padding
        padded = functional.pad(part.inputs, (columns, columns, rows, rows))
        batch, _, height, width = padded.shape
        flat = padded.flatten(2)
        pixels = batched_product(flat.mT, flat).view(batch, height, width, height, width)
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
        products = batched_product(grads.mT, grads)
        return sums_and_sizes(products.mul_(patches.view_as(products)))


@dataclass(frozen=True, kw_only=True)
class ShiftedStore:
    """Gradients of a convolution with few output channels, tap by tap: products with shifted images, nothing unfolded.

    In an image with its padding, written row after row, a shift of the kernel is a shift along the line. Best where a
    mask has left few channels, for which patches would cost more to copy than to use.
    """

    name: str = "shifted store"

    def fits(self, part: Convolution) -> bool:
        """Two-dimensional, ungrouped, of stride one and one view, with few output channels, on a processor."""
        geometry = part.geometry
        if part.inputs.dim() != 4 or part.inputs.is_cuda or geometry.groups != 1 or part.views > 1:
            return False
        if set(geometry.stride) != {1}:
            return False
        return geometry.weight_shape[0] <= _FEW_CHANNELS and Store().fits(part)

    def measure(self, part: Convolution) -> tuple[Squares, PerExample]:
        """Write the gradients out and keep them."""
        geometry = part.geometry
        out_channels, in_channels, tall, wide = geometry.weight_shape
        rows, columns = geometry.padding
        padded = functional.pad(part.inputs, (columns, columns, rows, rows))
        width, out_width = padded.shape[3], part.out_grads.shape[3]
        # output gradients in lines as long as the image's; what would hang over at the end is zero and left out
        lines = functional.pad(part.out_grads, (0, width - out_width)).flatten(2)[..., : out_width - width or None]
        images, length = padded.flatten(2), lines.shape[2]
        taps = lines.new_empty(len(part), tall * wide, out_channels, in_channels)
        for tap in range(tall * wide):
            start = tap // wide * geometry.dilation[0] * width + tap % wide * geometry.dilation[1]
            taps[:, tap] = torch.bmm(lines, images[:, :, start : start + length].mT)
        gradients = taps.permute(0, 2, 3, 1).reshape(len(part), *geometry.weight_shape)
        return Squares(sums=square_sums(gradients)), Explicit(gradients=gradients)


@dataclass(frozen=True, kw_only=True)
class ConvKernel:
    """Per-example weight gradients of a 2-D convolution by implicit matrix products, stored or only measured."""

    store: bool

    @property
    def name(self) -> str:
        return "conv kernel, store" if self.store else "conv kernel, norm only"

    def fits(self, part: Convolution) -> bool:
        """Two-dimensional, on a device that runs kernels, within the memory limit if stored."""
        if part.inputs.dim() != 4 or not kernels.available(part.inputs):
            return False
        return not self.store or Store().fits(part)

    def measure(self, part: Convolution) -> tuple[Squares, PerExample]:
        squares, stored = kernels.conv_square_norms(part, store=self.store)
        if stored is not None:
            return Squares(sums=squares), Explicit(gradients=stored)
        return _hedged(squares, part), part


def _padded_pixels(part: Convolution) -> int:
    sizes = zip(part.inputs.shape[2:], part.geometry.padding, strict=True)
    return math.prod(size + 2 * padding for size, padding in sizes)
