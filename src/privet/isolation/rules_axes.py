"""Rules of operations along axes: reductions, sorting, shifting, padding, transforms, convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from privet.isolation.call import Call, Rule, broadcast, private
from privet.isolation.lines import is_within, user_line
from privet.isolation.place import Cause, Fault, Mixes, NoRule, Place, Spec, Verdict, met
from privet.isolation.rules_rows import can_sort, counts_of, sorted_rows

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


_PACKING = ("torch", "nn", "utils", "rnn.py")


def _axes(given: Any, ndim: int) -> set[int]:
    """Return the axes that an argument names; all of them for None or an empty list."""
    if given is None or given == [] or given == ():
        return set(range(ndim))
    names = given if isinstance(given, list | tuple) else [given]
    return {int(name) % max(ndim, 1) for name in names}


def reduction(call: Call) -> Sequence[Verdict]:
    """Sums, means, extremes and the like over some axes."""
    spec: Spec = call.args[0]
    place = spec.place
    if place is None:
        raise NoRule("its parameters depend on the examples")
    axes = _axes(call.arg("dim") if call.has("dim") else None, spec.ndim)
    return call.everywhere(_reduced(place, axes, call, spec))


def _reduced(place: Place, axes: set[int], call: Call, spec: Spec) -> Place:
    if place.is_single:
        return place
    if place.axis in axes:
        raise Mixes("it reduces over the examples")
    if len(call.shape) == spec.ndim:  # axes are kept
        return place
    return place.at(place.axis - sum(axis < place.axis for axis in axes))


def along(call: Call) -> Sequence[Verdict]:
    """Operations along one axis that keep every axis: cumulated sums, softmax, shifts, flips."""
    spec: Spec = call.args[0]
    name = "dims" if call.has("dims") else "dim"
    axes = _axes(call.arg(name), spec.ndim)
    places = [place for _, place in private(call.specs)]
    place = met(places)
    if not place.is_single and place.axis in axes:
        if call.out_specs[0].dtype in _WHOLE and call.name in ("cumsum", "cumsum_"):
            raise NoRule("it counts through the examples, as places in a flat list do")
        raise Mixes("it runs along the examples")
    return call.everywhere(place)


def renormed(call: Call) -> Sequence[Verdict]:
    """Every slice along one axis is scaled by its own norm, over all other axes."""
    spec, place = call.first()
    if not place.is_single and place.axis != int(call.arg("dim")) % spec.ndim:
        raise Mixes("it reduces over the examples")
    return call.everywhere(place)


def sorting(call: Call) -> Sequence[Verdict]:
    """Sorting along an axis; where the examples themselves are sorted, their rows travel."""
    spec, place = call.first()
    axis = int(call.arg("dim")) % max(spec.ndim, 1) if call.has("dim") else 0
    if not place.is_single and place.axis == axis:
        if is_within(_PACKING):
            raise NoRule("torch packs sequences in the order of their lengths, and unpacks them")
        if can_sort(call):
            return sorted_rows(call)
        # the numbers in order are statistics of the batch; their places may serve to bring rows back as they were
        values = Cause(Fault.MIXES, call.name, "it ranks examples by what is in them", user_line())
        places = Cause(Fault.NO_RULE, call.name, "the rows of examples travel by what is in them", user_line())
        return [places if out.dtype is torch.int64 and number else values for number, out in enumerate(call.out_specs)]
    if place.is_single:
        return call.everywhere(place)
    is_gone = len(call.shape) < spec.ndim
    return call.everywhere(place.at(place.axis - 1) if is_gone and place.axis > axis else place)


def counted(call: Call) -> Sequence[Verdict]:
    """Counts of numbers: over all examples, unless they serve to say where the rows of one key end."""
    found = counts_of(call.args[0], call) if len(call.specs) == 1 else None
    return reduction(call) if found is None else [found]


def _leading(num_last: int) -> Rule:
    """Return the rule of operations on the last few axes, each of all the leading ones for itself."""

    def rule(call: Call) -> Sequence[Verdict]:
        found = []
        for spec, place in private(call.specs):
            if not place.is_single and place.axis >= spec.ndim - num_last:
                raise Mixes("it computes across the axis of the examples")
            found.append(place)
        return call.everywhere(met(found))

    return rule


def _leading_aligned(num_last: int) -> Rule:
    """As :func:`_leading`, with leading axes that are broadcast against each other."""

    def rule(call: Call) -> Sequence[Verdict]:
        found = []
        ndim = max(spec.ndim for spec in call.specs)
        for spec, place in private(call.specs):
            if not place.is_single and place.axis >= spec.ndim - num_last:
                raise Mixes("it computes across the axis of the examples")
            found.append(place.at(place.axis + ndim - spec.ndim))
        return call.everywhere(met(found))

    return rule


def solved(call: Call) -> Sequence[Verdict]:
    """Solutions of linear equations, whose right-hand sides may be vectors: one for each matrix."""
    matrices, given = call.args[0], call.args[1]
    if tuple(given.shape) != tuple(matrices.shape[:-1]):
        return _ALIGNED(call)
    found = []
    for _, place in private(call.specs):
        if not place.is_single and place.axis >= matrices.ndim - 2:
            raise Mixes("it computes across the axis of the examples")
        found.append(place)
    return call.everywhere(met(found))


def crossed(call: Call) -> Sequence[Verdict]:
    """Products of vectors of three numbers along one axis, all others in step."""
    place = broadcast(call.specs, call.shape)
    if place is not None and not place.is_single and place.axis == int(call.arg("dim")) % len(call.shape):
        raise Mixes("it computes across the axis of the examples")
    return call.everywhere(place)


_ALIGNED = _leading_aligned(2)


def triangle(call: Call) -> Sequence[Verdict]:
    """Zeros above or below a diagonal, which is a matter of the last two axes."""
    spec, place = call.first()
    if not place.is_single and place.axis >= spec.ndim - 2:
        raise Mixes("what becomes of an example depends on its place in the batch")
    return call.everywhere(place)


def constant_pad(call: Call) -> Sequence[Verdict]:
    """Padding with a number, axis by axis from the last one on."""
    spec: Spec = call.args[0]
    pads = list(call.arg("pad"))
    place = met([place for _, place in private(call.specs)])
    touched = {spec.ndim - 1 - number // 2 for number, pad in enumerate(pads) if pad}
    if not place.is_single and place.axis in touched:
        raise Mixes("examples are added to the batch or taken from it")
    return call.everywhere(place)


def unfolded(call: Call) -> Sequence[Verdict]:
    """Windows along one axis, which become a new last axis."""
    spec, place = call.first()
    if not place.is_single and place.axis == int(call.arg("dimension")) % spec.ndim:
        raise Mixes("its windows hold several examples")
    return call.everywhere(place)


def distances(call: Call) -> Sequence[Verdict]:
    """Distances of all rows of one matrix to all rows of another, matrix by matrix."""
    one, other = call.args[0], call.args[1]
    ndim = len(call.shape)
    found = []
    for spec, place in private([one, other]):
        if not place.is_single and place.axis == spec.ndim - 1:
            raise Mixes("it sums over the examples")
        axis = place.axis + ndim - spec.ndim
        if not place.is_single and place.axis == spec.ndim - 2:
            axis = ndim - 2 if spec is one else ndim - 1
        found.append(place.at(axis))
    if len(found) == 2 and found[0].axis >= ndim - 2 and not found[0].is_single:
        raise Mixes("distances between examples")
    return call.everywhere(met(found))


def _spatial(call: Call) -> Sequence[Verdict]:
    name = call.name
    num = next((int(digit) for digit in "123" if f"{digit}d" in name), 2)
    return _leading(num)(call)


_REDUCTIONS = [
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "any",
    "all",
    "argmax",
    "argmin",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "logsumexp",
    "norm",
    "linalg_vector_norm",
    "nansum",
    "nanmean",
    "median",
    "nanmedian",
    "max",
    "min",
    "aminmax",
    "count_nonzero",
    "mode",
]
_ALONG = [
    "cumsum",
    "cumsum_",
    "cumprod",
    "cumprod_",
    "logcumsumexp",
    "cummax",
    "cummin",
    "_softmax",
    "_log_softmax",
    "softmax",
    "log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "_safe_softmax",
    "flip",
    "roll",
    "_fft_r2c",
    "_fft_c2c",
    "_fft_c2r",
    "glu",
    "diff",
    "rot90",
]
_FFT = ["_fft_r2c", "_fft_c2c", "_fft_c2r"]
_SORTING = ["sort", "topk", "argsort", "kthvalue", "msort"]
_SPATIAL = [
    "max_pool1d_with_indices",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "fractional_max_pool2d",
    "adaptive_avg_pool1d",
    "adaptive_max_pool1d",
    "max_pool2d",
    "max_unpool2d",
    "max_unpool3d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "mkldnn_max_pool2d",
    "mkldnn_adaptive_avg_pool2d",
]
_MATRICES = [
    "linalg_inv_ex",
    "inverse",
    "linalg_cholesky_ex",
    "cholesky",
    "_linalg_svd",
    "_linalg_eigh",
    "linalg_eig",
    "linalg_qr",
    "_linalg_det",
    "_linalg_slogdet",
    "linalg_lu_factor_ex",
    "linalg_lu",
    "linalg_matrix_exp",
    "matrix_exp",
    "cholesky_inverse",
    "linalg_householder_product",
    "linalg_ldl_factor_ex",
    "geqrf",
]
_SOLVES = [
    "linalg_solve_triangular",
    "cholesky_solve",
    "triangular_solve",
    "linalg_lu_solve",
    "ormqr",
]

RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, reduction),
    **dict.fromkeys(_ALONG, along),
    **dict.fromkeys(_SORTING, sorting),
    **dict.fromkeys(_SPATIAL, _spatial),
    **dict.fromkeys(_MATRICES, _leading(2)),
    **dict.fromkeys(_SOLVES, _ALIGNED),
    "_linalg_solve_ex": solved,
    "renorm": renormed,
    "linalg_cross": crossed,
    "tril": triangle,
    "triu": triangle,
    "tril_": triangle,
    "triu_": triangle,
    "constant_pad_nd": constant_pad,
    "unfold": unfolded,
    "im2col": _leading(2),
    "col2im": _leading(2),
    "pixel_shuffle": _leading(3),
    "pixel_unshuffle": _leading(3),
    "channel_shuffle": _leading(3),
    "native_channel_shuffle": _leading(3),
    "grid_sampler_2d": _leading(3),
    "grid_sampler_3d": _leading(4),
    "affine_grid_generator": _leading(2),
    "_cdist_forward": distances,
    "_euclidean_dist": distances,
    "histc": counted,
    "bincount": counted,
}
