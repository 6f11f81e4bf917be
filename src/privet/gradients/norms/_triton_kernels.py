# mypy: ignore-errors
"""The device code of :mod:`privet.gradients.norms.kernels`; imported only where triton is present."""

import triton
import triton.language as tl

# Kernels are built anew for every kind of number (one, a multiple of 16, other) among their arguments. Those that tell
# nothing about where rows begin in memory are left out of that: every kernel less is a faster first step. The number
# of positions does tell, so it is handed over beside height and width, which do not.


@triton.jit
def _products(
    base, left, right, length, width, step_t, step_d, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the products of every left with every right vector of one example: a tile of their Gram matrix."""
    products = tl.zeros((BLOCK_T, BLOCK_T), tl.float32)
    for start in range(0, width, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            base + left[:, None] * step_t + place[None, :] * step_d,
            mask=(left < length)[:, None] & (place < width)[None, :], other=0.0,
        )  # fmt: skip
        b = tl.load(
            base + right[None, :] * step_t + place[:, None] * step_d,
            mask=(right < length)[None, :] & (place < width)[:, None], other=0.0,
        )  # fmt: skip
        products = tl.dot(a, b, products, input_precision=PRECISION)
    return products


@triton.jit(do_not_specialize=["length", "num_pairs", "num_examples"])
def gram_kernel(
    inputs, grads, sums, length, width_in, width_out,
    in_b, in_t, in_d, gr_b, gr_t, gr_p, num_pairs, num_examples,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per tile pair (row >= column) and example: products of inputs times products of gradients."""
    pair = tl.program_id(0)
    example = tl.program_id(1).to(tl.int64)
    # invert pair = row (row + 1) / 2 + column; the square root may be off by one either way
    row = ((tl.sqrt(8.0 * pair + 1.0) - 1.0) * 0.5).to(tl.int32)
    row = tl.where((row + 1) * (row + 2) // 2 <= pair, row + 1, row)
    row = tl.where(row * (row + 1) // 2 > pair, row - 1, row)
    column = pair - row * (row + 1) // 2
    left = row * BLOCK_T + tl.arange(0, BLOCK_T)
    right = column * BLOCK_T + tl.arange(0, BLOCK_T)

    products = _products(
        inputs + example * in_b, left, right, length, width_in, in_t, in_d, BLOCK_T, BLOCK_K, PRECISION
    )
    products *= _products(
        grads + example * gr_b, left, right, length, width_out, gr_t, gr_p, BLOCK_T, BLOCK_K, PRECISION
    )
    total = tl.sum(tl.sum(products, 1), 0)
    tl.store(sums + example * num_pairs + pair, tl.where(row == column, total, 2.0 * total))
    same = tl.sum(tl.sum(tl.where(left[:, None] == right[None, :], products, 0.0), 1), 0)
    tl.store(sums + (num_examples + example) * num_pairs + pair, same)


@triton.jit(do_not_specialize=["step"])
def scale_kernel(tensor, weights, scaled, width, step, BLOCK: tl.constexpr):
    """One program per row and block of columns; rows come first, for only that axis may be longer than 65,535."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weights + row * step).to(tl.float32)
    value = tl.load(tensor + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    value = tl.where(weight == 0.0, 0.0, value * weight)
    tl.store(scaled + row * width + column, value.to(scaled.dtype.element_ty), mask=column < width)


@triton.jit
def clear_kernel(tensor, marked, width, BLOCK: tl.constexpr):
    """One program per row and block of columns; it reads and writes nothing unless the row is marked."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(marked + row) != 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        zero = tl.zeros((BLOCK,), tl.float32).to(tensor.dtype.element_ty)
        tl.store(tensor + row * width + column, zero, mask=column < width)


@triton.jit(do_not_specialize=[
    "height", "width", "out_w", "views", "tiles_o", "tiles_n", "num_tiles", "store",
    "stride_h", "stride_w", "pad_h", "pad_w", "dil_h", "dil_w",
])  # fmt: skip
def conv_kernel(
    inputs, grads, stored, squares, in_channels, height, width, rows, positions, out_w, columns, views,
    tiles_o, tiles_n, groups, num_tiles, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, store,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per tile of one example's weight gradient: grads [o, t] times patches [t, n], over all its views."""
    tile = tl.program_id(0)
    example = tl.program_id(1).to(tl.int64)
    tile_n = tile % tiles_n
    tile_o = (tile // tiles_n) % tiles_o
    group = tile // (tiles_n * tiles_o)
    out = tile_o * BLOCK_O + tl.arange(0, BLOCK_O)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = column // (KERNEL_H * KERNEL_W)
    down = ((column // KERNEL_W) % KERNEL_H) * dil_h - pad_h
    along = (column % KERNEL_W) * dil_w - pad_w
    blocks = tl.cdiv(positions, BLOCK_T)
    accumulated = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for step in range(views * blocks):
        image = example * views + step // blocks
        grad_base = grads + (image * groups + group) * rows * positions
        input_base = inputs + (image * groups + group) * in_channels * height * width
        place = (step % blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
        inside = place < positions
        g = tl.load(
            grad_base + out[:, None] * positions + place[None, :],
            mask=(out < rows)[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        y = (place // out_w)[:, None] * stride_h + down[None, :]
        x = (place % out_w)[:, None] * stride_w + along[None, :]
        valid = inside[:, None] & (column < columns)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        patch = tl.load(input_base + channel[None, :] * (height * width) + y * width + x, mask=valid, other=0.0)
        accumulated = tl.dot(g, patch, accumulated, input_precision=PRECISION)
    if store:
        row = group * rows + out
        tl.store(
            stored + (example * groups * rows + row[:, None]) * columns + column[None, :], accumulated,
            mask=(out < rows)[:, None] & (column < columns)[None, :],
        )  # fmt: skip
    tl.store(squares + example * num_tiles + tile, tl.sum(tl.sum(accumulated * accumulated, 1), 0))


@triton.jit(do_not_specialize=[
    "height", "width", "views", "tiles_o", "tiles_c", "num_tiles", "pad_h", "pad_w", "store",
])  # fmt: skip
def conv_shift_kernel(
    inputs, grads, stored, squares, channels, height, width, positions, rows, views, tiles_o, tiles_c,
    num_tiles, pad_h, pad_w, store,
    KERNEL_H: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A kernel three taps wide whose output has the size of its input: each tap is a shift of the flat image.

    One program per tile of channels and row of taps of one example. The three taps of a row share the gradients they
    are multiplied with, and no address needs more than an addition. Stored as [example, down, along, out, in].
    """
    tile = tl.program_id(0)
    example = tl.program_id(1).to(tl.int64)
    down = tile // (tiles_c * tiles_o)
    out = ((tile // tiles_c) % tiles_o) * BLOCK_O + tl.arange(0, BLOCK_O)
    channel = (tile % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)
    blocks = tl.cdiv(positions, BLOCK_T)
    known = (channel < channels)[None, :]
    left = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    middle = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    right = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    shift = (down - pad_h) * width - pad_w
    for step in range(views * blocks):
        image = example * views + step // blocks
        grad_base = grads + image * rows * positions
        input_base = inputs + image * channels * positions
        place = (step % blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
        inside = place < positions
        y = place // width + down - pad_h
        x = place % width - pad_w
        valid = inside & (y >= 0) & (y < height)
        g = tl.load(
            grad_base + out[:, None] * positions + place[None, :],
            mask=(out < rows)[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        patch = input_base + channel[None, :] * positions + (place + shift)[:, None]
        value = tl.load(patch, mask=known & (valid & (x >= 0) & (x < width))[:, None], other=0.0)
        left = tl.dot(g, value, left, input_precision=PRECISION)
        value = tl.load(patch + 1, mask=known & (valid & (x + 1 >= 0) & (x + 1 < width))[:, None], other=0.0)
        middle = tl.dot(g, value, middle, input_precision=PRECISION)
        value = tl.load(patch + 2, mask=known & (valid & (x + 2 >= 0) & (x + 2 < width))[:, None], other=0.0)
        right = tl.dot(g, value, right, input_precision=PRECISION)
    if store:
        tap = rows.to(tl.int64) * channels
        place = stored + (example * KERNEL_H + down) * 3 * tap + out[:, None] * channels + channel[None, :]
        mask = (out < rows)[:, None] & known
        tl.store(place, left, mask=mask)
        tl.store(place + tap, middle, mask=mask)
        tl.store(place + 2 * tap, right, mask=mask)
    total = tl.sum(tl.sum(left * left + middle * middle + right * right, 1), 0)
    tl.store(squares + example * num_tiles + tile, total)


@triton.jit
def row_squares_kernel(
    gradients, direction, coefficients, found, rows, width, inner, step_example, step_row, step_in, step_out,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per example and row: what lies in the plane of the row and what is left are squared apart."""
    program = tl.program_id(0).to(tl.int64)
    row = program % rows
    place = tl.arange(0, BLOCK)
    valid = place < width
    base = gradients + (program // rows) * step_example + row * step_row
    g = tl.load(base + (place // inner) * step_out + (place % inner) * step_in, mask=valid, other=0.0).to(tl.float32)
    u = tl.load(direction + row * width + place, mask=valid, other=0.0)
    one = 1.0 / tl.sqrt(width.to(tl.float32))
    first = tl.sum(g, 0) * one
    second = tl.sum(g * u, 0)
    left = tl.where(valid, g - first * one - second * u, 0.0)
    outside = tl.load(coefficients + row * 4)
    along = tl.load(coefficients + row * 4 + 1)
    across = tl.load(coefficients + row * 4 + 2)
    other = tl.load(coefficients + row * 4 + 3)
    total = outside * tl.sum(left * left, 0) + along * first * first + 2.0 * across * first * second
    tl.store(found + program, tl.maximum(total + other * second * second, 0.0))


@triton.jit(do_not_specialize=["length", "stretch", "num_stretches"])
def row_affine_kernel(
    inputs, mean, rstd, grads, sums, length, width, stretch, num_stretches,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per example, block of columns and stretch of positions; sums are [example, stretch, 2, column]."""
    example = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    part = tl.program_id(2)
    scale_sum = tl.zeros((BLOCK_D,), tl.float32)
    shift_sum = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(part * stretch, min(length, (part + 1) * stretch), BLOCK_T):
        place = start + tl.arange(0, BLOCK_T)
        valid = (place < length)[:, None] & (column < width)[None, :]
        offset = (example * length + place)[:, None] * width + column[None, :]
        g = tl.load(grads + offset, mask=valid, other=0.0).to(tl.float32)
        x = tl.load(inputs + offset, mask=valid, other=0.0).to(tl.float32)
        m = tl.load(mean + example * length + place, mask=place < length, other=0.0).to(tl.float32)
        r = tl.load(rstd + example * length + place, mask=place < length, other=0.0).to(tl.float32)
        scale_sum += tl.sum(g * (x - m[:, None]) * r[:, None], 0)
        shift_sum += tl.sum(g, 0)
    into = sums + (example * num_stretches + part) * 2 * width + column
    tl.store(into, scale_sum, mask=column < width)
    tl.store(into + width, shift_sum, mask=column < width)


@triton.jit(do_not_specialize=["channels", "per_group", "num_groups"])
def channel_affine_kernel(
    inputs, mean, rstd, grads, scale, shift, positions, channels, per_group, num_groups, BLOCK: tl.constexpr
):
    """One program per example and channel."""
    program = tl.program_id(0).to(tl.int64)
    group = (program // channels) * num_groups + (program % channels) // per_group
    m = tl.load(mean + group).to(tl.float32)
    r = tl.load(rstd + group).to(tl.float32)
    scale_sum = tl.zeros((BLOCK,), tl.float32)
    shift_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, positions, BLOCK):
        place = start + tl.arange(0, BLOCK)
        g = tl.load(grads + program * positions + place, mask=place < positions, other=0.0).to(tl.float32)
        x = tl.load(inputs + program * positions + place, mask=place < positions, other=0.0).to(tl.float32)
        scale_sum += g * (x - m) * r
        shift_sum += g
    # positions past the end carry a zero gradient, so they add nothing to either sum
    tl.store(scale + program, tl.sum(scale_sum, 0))
    tl.store(shift + program, tl.sum(shift_sum, 0))
