"""Triton kernels for what plain tensor operations cannot do without writing large intermediates to memory.

Each kernel accumulates in float32, reduces in a fixed order (no atomics, so results repeat), and has a counterpart in
plain torch that passes the same tests. They follow the user's torch setting for tf32, and run on the device of their
tensors, whichever is torch's current one. Import this module only where a CUDA device and triton are present;
:func:`available` says whether that is so.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from privet.gradients.norms.product_precision import convolutions_round, products_round

if TYPE_CHECKING:
    from privet.gradients.forms.per_example import Convolution

_log = logging.getLogger("privet")


class Launch(NamedTuple):
    """A kernel with what it is launched with; in place of tensors, their types."""

    kernel: Any
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]


_rehearsed: ContextVar[list[Launch] | None] = ContextVar("rehearsed", default=None)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def is_traced() -> bool:
    """Whether a compiler traces the present operations."""
    return get_proxy_mode() is not None


def available(tensor: Tensor) -> bool:
    """Whether kernels can run on this tensor: on a CUDA device, or anywhere under triton's interpreter."""
    if not _has_triton() or tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if is_traced():  # a tracer does not see kernels: their results would become constants
        return False
    if tensor.is_meta:  # only its shape is known, and only a rehearsal uses it
        return _rehearsed.get() is not None
    return (tensor.is_cuda and _can_build()) or os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _can_build() -> bool:
    """Whether kernels can be built here: triton finds a compiler and headers, or a small kernel builds all the same.

    Some rules launch kernels without an alternative, so this must be known before they run.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    # Debian's interpreter has a default scheme whose header folder is empty; triton looks into the other one as well
    schemes = {sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("prefix")}
    if compiler and any(Path(sysconfig.get_path("include", scheme), "Python.h").exists() for scheme in schemes):
        return True
    try:
        scaled_rows(torch.ones(1, 16, device="cuda"), torch.ones(1, device="cuda"), torch.float32)
    except Exception as error:  # noqa: BLE001 -- compilers fail in many ways, and torch gives the same sums
        reason = (str(error).strip().splitlines() or [""])[0]
        _log.warning(
            "Kernels cannot be built; plain torch operations are used, which give the same sums more slowly (%s: %s). "
            "Install a C compiler and Python's headers.", type(error).__name__, reason,
        )  # fmt: skip
        return False
    return True


@contextmanager
def rehearsal() -> Iterator[list[Launch]]:
    """Note launches in this context instead of carrying them out; meant for meta tensors."""
    noted: list[Launch] = []
    token = _rehearsed.set(noted)
    try:
        yield noted
    finally:
        _rehearsed.reset(token)


def launch(kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Launch a kernel on the device of its first argument; in a rehearsal, note the launch instead."""
    noted = _rehearsed.get()
    if noted is not None:
        kinds = tuple(argument.dtype if isinstance(argument, Tensor) else argument for argument in arguments)
        noted.append(Launch(kernel, kinds, settings))
        return
    with beside(arguments[0]):
        kernel[grid](*arguments, **settings)


def beside(tensor: Tensor) -> AbstractContextManager[object]:
    """Make the tensor's device torch's current one, which is where kernels run; a processor's changes nothing."""
    return cast(AbstractContextManager[object], torch.cuda.device_of(tensor))  # type: ignore[no-untyped-call]


def _precision(*, allow_tf32: bool) -> str:
    return "tf32" if allow_tf32 else "ieee"


def _tiles(size: int, block: int) -> int:
    return (size + block - 1) // block


def _positions(out_grads: Tensor) -> int:
    return out_grads.shape[2] * out_grads.shape[3]


def _block_of_positions(out_grads: Tensor) -> int:
    """Return how many positions go together: all, up to 32, or up to 64 of half the size where there are many."""
    positions = _positions(out_grads)
    limit = 64 if out_grads.element_size() == 2 and positions >= 128 else 32
    return max(16, min(limit, 1 << (positions - 1).bit_length()))


@functools.cache
def _module() -> Any:
    # compiled functions live apart so that machines without triton never import it
    from privet.gradients.norms import _triton_kernels

    return _triton_kernels


def gram_square_norms(inputs: Tensor, out_grads: Tensor, *, block: int) -> Tensor:
    """Return the sum over position pairs of (inputs_t . inputs_s)(grads_t . grads_s), and the part with t = s.

    Only tiles on and below the diagonal are computed; no Gram matrix is written. Shapes ``[batch, t, d]`` and
    ``[batch, t, p]``; result ``[2, batch]``.
    """
    batch, length, width_in = inputs.shape
    rows = _tiles(length, block)
    pairs = rows * (rows + 1) // 2
    sums = torch.empty(2, batch, pairs, device=inputs.device, dtype=torch.float32)
    widths = width_in, out_grads.shape[2]
    settings = {
        "BLOCK_T": block,
        "BLOCK_K": 32 if inputs.element_size() == 4 else 64,
        "PRECISION": _precision(allow_tf32=products_round()),
        "num_warps": 8 if block >= 128 else 4,
        "num_stages": 3,
    }
    arguments = inputs, out_grads, sums, length, *widths, *inputs.stride(), *out_grads.stride(), pairs, batch
    launch(_module().gram_kernel, (pairs, batch), arguments, settings)
    return sums.sum(2)


def scaled_rows(tensor: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a contiguous tensor with each row multiplied by its weight in single precision, rounded once to ``dtype``.

    A weight of zero makes a row of zeros, whatever is in it.
    """
    scaled = torch.empty(tensor.shape, device=tensor.device, dtype=dtype)
    width = tensor[0].numel()
    block = min(2048, max(16, 1 << (width - 1).bit_length()))
    settings = {"BLOCK": block, "num_warps": 8 if block >= 2048 else 4}
    arguments = tensor, weights, scaled, width, weights.stride(0)
    launch(_module().scale_kernel, (len(tensor), _tiles(width, block)), arguments, settings)
    return scaled


def clear_rows(tensor: Tensor, marked: Tensor) -> None:
    """Write zeros into the marked rows of a tensor whose rows are dense; others are not touched, and cost nothing."""
    width = tensor[0].numel()
    block = min(4096, max(16, 1 << (width - 1).bit_length()))
    arguments = tensor, marked.view(torch.uint8), width
    launch(_module().clear_kernel, (len(tensor), _tiles(width, block)), arguments, {"BLOCK": block, "num_warps": 4})


def conv_square_norms(part: Convolution, *, store: bool) -> tuple[Tensor, Tensor | None]:
    """Return squared norms of the per-example weight gradients of a 2-D convolution, and the gradients if stored.

    The patches are formed by index arithmetic inside the kernel, never in memory. Every ``views`` images in a row are
    those of one example, and their gradients are added.
    """
    geometry, batch, groups = part.geometry, len(part), part.geometry.groups
    height, width = part.inputs.shape[2:]
    out_channels, in_channels, kernel_h, kernel_w = geometry.weight_shape
    is_unit = groups == 1 and set(geometry.stride) == {1} and set(geometry.dilation) == {1}
    if is_unit and kernel_w == 3 and in_channels > 16 and part.out_grads.shape[2:] == (height, width):
        return _shifted_square_norms(part, store=store)
    inputs, out_grads = part.inputs.contiguous(), part.out_grads.contiguous()
    columns = in_channels * kernel_h * kernel_w
    rows = out_channels // groups
    block_o = 64 if rows > 32 else 32 if rows > 16 else 16
    block_n = 128 if columns >= 512 else 64 if columns > 32 else 32
    tiles_o, tiles_n = _tiles(rows, block_o), _tiles(columns, block_n)
    num_tiles = tiles_o * tiles_n * groups
    squares = torch.empty(batch, num_tiles, device=inputs.device, dtype=torch.float32)
    shape = (batch, out_channels, in_channels, kernel_h, kernel_w) if store else (1,)
    stored = torch.empty(shape, device=inputs.device, dtype=torch.float32)
    arguments = (
        inputs, out_grads, stored, squares, in_channels, height, width, rows, _positions(out_grads),
        out_grads.shape[3], columns, part.views,
        tiles_o, tiles_n, groups, num_tiles, *geometry.stride, *geometry.padding, *geometry.dilation, int(store),
    )  # fmt: skip
    settings = {
        "KERNEL_H": kernel_h,
        "KERNEL_W": kernel_w,
        "BLOCK_O": block_o,
        "BLOCK_N": block_n,
        "BLOCK_T": _block_of_positions(out_grads),
        "PRECISION": _precision(allow_tf32=convolutions_round()),
        "num_warps": 8 if block_n == 128 and block_o == 64 else 4,
        "num_stages": 3,
    }
    launch(_module().conv_kernel, (num_tiles, batch), arguments, settings)
    return squares.sum(1), stored if store else None


def _shifted_square_norms(part: Convolution, *, store: bool) -> tuple[Tensor, Tensor | None]:
    inputs, out_grads, batch = part.inputs.contiguous(), part.out_grads.contiguous(), len(part)
    _, channels, height, width = inputs.shape
    rows, kernel_h = part.geometry.weight_shape[0], part.geometry.weight_shape[2]
    block_o, block_c = 64 if rows > 32 else 32, 64 if channels > 32 else 32
    tiles_o, tiles_c = _tiles(rows, block_o), _tiles(channels, block_c)
    num_tiles = tiles_o * tiles_c * kernel_h
    squares = torch.empty(batch, num_tiles, device=inputs.device, dtype=torch.float32)
    shape = (batch, kernel_h, 3, rows, channels) if store else (1,)
    stored = torch.empty(shape, device=inputs.device, dtype=torch.float32)
    arguments = (
        inputs, out_grads, stored, squares, channels, height, width, _positions(out_grads), rows, part.views,
        tiles_o, tiles_c, num_tiles, *part.geometry.padding, int(store),
    )  # fmt: skip
    settings = {
        "KERNEL_H": kernel_h,
        "BLOCK_O": block_o,
        "BLOCK_C": block_c,
        "BLOCK_T": _block_of_positions(out_grads),
        "PRECISION": _precision(allow_tf32=convolutions_round()),
        "num_warps": 4,
        "num_stages": 3,
    }
    launch(_module().conv_shift_kernel, (num_tiles, batch), arguments, settings)
    return squares.sum(1), stored.permute(0, 3, 4, 1, 2) if store else None


def row_squares(gradients: Tensor, direction: Tensor, coefficients: Tensor) -> Tensor:
    """Return a quadratic form of each row of many gradients; see :class:`privet.gradients.forms.by_rows.RowLengths`.

    Shapes: ``gradients [batch, rows, ...]``, ``direction [rows, width]``, ``coefficients [rows, 4]``; result
    ``[batch, rows]``. Gradients whose channels come last in memory are read as they lie.
    """
    batch, rows = gradients.shape[:2]
    flat = gradients.flatten(3) if gradients.dim() > 3 else gradients
    if flat.dim() == 4 and flat.stride(2) == 1:
        inner, step_in, step_out = flat.shape[2], 1, flat.stride(3)
        direction = direction.view(rows, inner, -1).mT
    else:
        flat = gradients.reshape(batch, rows, -1).contiguous()
        inner, step_in, step_out = flat.shape[2], 1, 0
    width = direction.numel() // rows
    found = torch.empty(batch, rows, device=gradients.device, dtype=torch.float32)
    arguments = (
        flat, direction.contiguous(), coefficients.contiguous(), found, rows, width, inner, flat.stride(0),
        flat.stride(1), step_in, step_out,
    )  # fmt: skip
    block = max(16, 1 << (width - 1).bit_length())
    settings = {"BLOCK": block, "num_warps": 8 if block >= 4096 else 4 if block >= 512 else 1}
    launch(_module().row_squares_kernel, (batch * rows,), arguments, settings)
    return found


def row_affine_sums(inputs: Tensor, mean: Tensor, rstd: Tensor, out_grads: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per example, sum over positions of grad * (x - mean) * rstd, and of grad: a layer norm's parameters.

    Shapes: ``inputs, out_grads [batch, t, d]``; ``mean, rstd [batch, t]``; results ``[batch, d]``.
    """
    inputs, out_grads = inputs.contiguous(), out_grads.contiguous()
    batch, length, width = inputs.shape
    columns = _tiles(width, 128)
    # few long examples: positions are split until the whole device has work, at least 32 of them together
    num_stretches = max(1, min(_tiles(1024, batch * columns), _tiles(length, 32)))
    stretch = _tiles(_tiles(length, num_stretches), 32) * 32
    num_stretches = _tiles(length, stretch)
    sums = torch.empty(batch, num_stretches, 2, width, device=inputs.device, dtype=torch.float32)
    arguments = (
        inputs, mean.contiguous(), rstd.contiguous(), out_grads, sums, length, width, stretch, num_stretches,
    )  # fmt: skip
    settings = {"BLOCK_T": 32, "BLOCK_D": 128, "num_warps": 4}
    launch(_module().row_affine_kernel, (batch, columns, num_stretches), arguments, settings)
    scale, shift = (sums[:, 0] if num_stretches == 1 else sums.sum(1)).unbind(1)
    return scale, shift


def channel_affine_sums(
    inputs: Tensor, mean: Tensor, rstd: Tensor, out_grads: Tensor, num_groups: int
) -> tuple[Tensor, Tensor]:
    """Return, per example and channel, the same two sums over positions: a group norm's parameters.

    Shapes: ``inputs, out_grads [batch, channels, positions]``; ``mean, rstd [batch, num_groups]``; results
    ``[batch, channels]``.
    """
    inputs, out_grads = inputs.contiguous(), out_grads.contiguous()
    batch, channels, positions = inputs.shape
    scale = torch.empty(batch, channels, device=inputs.device, dtype=torch.float32)
    shift = torch.empty_like(scale)
    block = min(1024, 1 << max(4, (positions - 1).bit_length()))
    arguments = (
        inputs, mean.contiguous(), rstd.contiguous(), out_grads, scale, shift,
        positions, channels, channels // num_groups, num_groups,
    )  # fmt: skip
    settings = {"BLOCK": block, "num_warps": 4 if block >= 512 else 1}
    launch(_module().channel_affine_kernel, (batch * channels,), arguments, settings)
    return scale, shift
