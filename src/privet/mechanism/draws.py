"""Exact draws from Gamma, Laplace and radial distributions, built from normal draws: all noise has one random source.

A sum of squares of normal numbers has a Gamma distribution, and a normal vector has a uniform direction. A large vector
is drawn in chunks: first the share of each chunk in the squared length, then the direction of each chunk.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privet import checks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from privet.mechanism.sums import NormalSource

# Coordinates per chunk on a CPU fit into its cache. A device gets a sixteenth of the vector, because each chunk costs
# several kernel launches. The extra memory stays below one vector, except for small vectors.
CHUNK = 1 << 18
_DEVICE_CHUNK = 1 << 16
_MOST_PIECES = 16
_FEW_SQUARES = 64
_TRIES = 8


def _piece_size(like: Tensor, size: int) -> int:
    return CHUNK if like.device.type == "cpu" else max(_DEVICE_CHUNK, -(-size // _MOST_PIECES))


def _length(drawn: Tensor) -> Tensor:
    """Return the l2 norm in double precision as a tensor; a Python number would synchronise with the device."""
    length: Tensor = drawn.norm(dtype=drawn.new_empty(0).double().dtype)
    return length


def normals(like: Tensor, source: NormalSource, *shape: int) -> Tensor:
    """Return fresh standard normal numbers on the device of ``like``, rounded to its precision."""
    drawn = like.new_zeros(math.prod(shape))
    source.add_normal(drawn, 1.0)
    return drawn.view(shape)


def gamma_of_squares(num_squares: int, like: Tensor, source: NormalSource) -> float:
    """Draw half the sum of this many squared normal numbers: Gamma of shape ``num_squares / 2``, scale 1.

    Guarantee: exact for every number of squares. A few squares are drawn and summed; for many, the method of Marsaglia
    and Tsang (2000) accepts or rejects a transformed normal number, with an exponential draw for the logarithm of the
    uniform one.
    Edge cases: fewer than one square is refused.
    """
    checks.count("num_squares", num_squares)
    like = like.new_empty(0).double()
    if num_squares <= _FEW_SQUARES:
        return float(normals(like, source, num_squares).square().sum()) / 2
    shape = num_squares / 2 - 1 / 3
    width = 1 / math.sqrt(9 * shape)
    while True:
        for x, first, second in normals(like, source, _TRIES, 3).tolist():
            cubed = (1 + width * x) ** 3
            if cubed > 0:
                limit = x * x / 2 + shape * (1 - cubed + math.log(cubed))
                if -(first * first + second * second) / 2 < limit:
                    return float(shape * cubed)


def add_radial(flat: Tensor, *, scale: float, source: NormalSource, keep: Tensor | None) -> None:
    """Add noise with the density ``exp(-length / scale)`` to the kept coordinates of ``flat``, in place.

    Guarantee: the length has the distribution Gamma(number of kept coordinates) times ``scale``, drawn in double
    precision; given the length, the direction is uniform, up to the rounding of the sum itself. The extra memory is one
    chunk. Without a kept coordinate nothing is added.
    """
    step = _piece_size(flat, flat.numel())
    pieces = [slice(start, start + step) for start in range(0, flat.numel(), step)]
    sizes = [flat[piece].numel() if keep is None else int(keep[piece].sum()) for piece in pieces]
    if sum(sizes) == 0:
        return
    length = scale * gamma_of_squares(2 * sum(sizes), flat, source)
    shares = [gamma_of_squares(size, flat, source) if size else 0.0 for size in sizes] if len(sizes) > 1 else [1.0]
    for piece, size, share in zip(pieces, sizes, shares, strict=True):
        if size == 0:
            continue
        drawn = normals(flat, source, flat[piece].numel())
        if keep is not None:
            drawn.masked_fill_(keep[piece].logical_not(), 0.0)
        drawn.mul_(length * math.sqrt(share / math.fsum(shares)) / _length(drawn))
        flat[piece].add_(drawn)


def add_radial_at(flat: Tensor, places: NDArray[np.int64], *, scale: float, source: NormalSource) -> None:
    """Add noise with the density ``exp(-length / scale)`` to the coordinates of ``flat`` with the given indices.

    Guarantee: as in :func:`add_radial`, for the coordinates in ``places``, which must be distinct. Noise is kept in
    double precision until it is added. The extra memory is one chunk.
    """
    if len(places) == 0:
        return
    step = max(1, _piece_size(flat, len(places)) // 2)  # the indices take as much memory as the noise
    pieces = [places[start : start + step] for start in range(0, len(places), step)]
    like = flat.new_empty(0).double()
    length = scale * gamma_of_squares(2 * len(places), like, source)
    shares = [gamma_of_squares(len(piece), like, source) for piece in pieces] if len(pieces) > 1 else [1.0]
    for piece, share in zip(pieces, shares, strict=True):
        drawn = normals(like, source, len(piece))
        drawn.mul_(length * math.sqrt(share / math.fsum(shares)) / _length(drawn))
        flat.index_add_(0, like.long().new_tensor(piece), drawn.to(flat.dtype))


def add_two_sided(
    flat: Tensor, *, scales: NDArray[np.float64] | float, source: NormalSource, keep: Tensor | None
) -> None:
    """Add independent Laplace noise of the given scales to the kept coordinates of ``flat``, in place.

    Guarantee: half the sum of two squared normal numbers is an exponential draw; a third normal number gives the sign.
    The normal numbers have the range of double precision, so the tail is not cut at the 17 scales that
    single-precision logarithms reach.
    """
    step = _piece_size(flat, flat.numel())
    for start in range(0, flat.numel(), step):
        piece = slice(start, start + step)
        first, second, sign = normals(flat, source, 3, flat[piece].numel())
        size = first.square_().add_(second.square_()).mul_(0.5).copysign_(sign)
        size.mul_(scales if isinstance(scales, float) else size.double().new_tensor(scales[piece]))
        if keep is not None:
            size.masked_fill_(keep[piece].logical_not(), 0.0)
        flat[piece].add_(size)
