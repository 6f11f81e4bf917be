"""Comparison of two results of one program, up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# If the rows of a batch are independent, results differ by rounding only. Another batch size may select another
# kernel. A device sums gradients in no fixed order; the error is large relative to a gradient that is a small
# difference of large numbers, as in a trained network. Some device kernels round factors to tf32.
_SAME_SHAPE = {torch.float64: 1e-9, torch.float32: 1e-6}
_OTHER_SHAPE = {torch.float64: 1e-8, torch.float32: 1e-4}
_ADDED_UP_ON_DEVICE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OTHER_SHAPE_ON_DEVICE = {torch.float64: 1e-8, torch.float32: 2e-2}
_HALF_PRECISION = 2e-2


def _tolerances(device: torch.device, *, same_shape: bool, added_up: bool) -> dict[torch.dtype, float]:
    """Return the largest accepted difference relative to the largest number, by dtype."""
    if device.type == "cpu":
        return _SAME_SHAPE if same_shape else _OTHER_SHAPE
    if not same_shape:
        return _OTHER_SHAPE_ON_DEVICE
    return _ADDED_UP_ON_DEVICE if added_up else _SAME_SHAPE


def agree(one: Tensor, other: Tensor, *, same_shape: bool = True, added_up: bool = False) -> bool:
    """Return whether two results are equal up to rounding; their non-finite entries must coincide.

    Args:
        one: Losses, or a gradient.
        other: The same quantity, computed in another way.
        same_shape: Whether both batches have the same size.
        added_up: Whether the results are gradients, which are sums over examples and positions.
    """
    tolerances = _tolerances(one.device, same_shape=same_shape, added_up=added_up)
    tolerance = tolerances.get(one.dtype, _HALF_PRECISION)
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    finite = one.isfinite()
    one, other = one[finite], other[finite]
    return one.numel() == 0 or bool((one - other).abs().max() <= tolerance * one.abs().max())


def gradients_agree(
    one: Sequence[Tensor | None], other: Sequence[Tensor | None], *, is_half: bool, same_shape: bool = True
) -> bool:
    """Return whether two gradients are equal up to rounding, relative to the largest entry of all parameters.

    With ``is_half`` parts of the program ran in half precision, whatever the precision of the gradients.
    """
    pairs = [
        (torch.zeros_like(right) if left is None else left, torch.zeros_like(left) if right is None else right)  # type: ignore[arg-type]
        for left, right in zip(one, other, strict=True)
        if (left is not None and left.numel()) or (right is not None and right.numel())
    ]
    by_kind: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for left, right in pairs:
        by_kind.setdefault((left.device, left.dtype), []).append((left, right))
    largest, apart = 0.0, []
    for (device, dtype), found in by_kind.items():
        lefts, rights = (list(side) for side in zip(*found, strict=True))
        sizes = torch.stack(torch._foreach_norm(lefts, torch.inf)).max()
        moved = torch.stack(torch._foreach_norm(torch._foreach_sub(lefts, rights), torch.inf)).max()
        if not bool(moved.isfinite() & sizes.isfinite()):  # non-finite entries must coincide
            whole = (torch.cat([part.reshape(-1) for part in side]) for side in (lefts, rights))
            if not agree(*whole, same_shape=same_shape, added_up=True):
                return False
            continue
        tolerances = _tolerances(device, same_shape=same_shape, added_up=True)
        tolerance = tolerances.get(dtype, _HALF_PRECISION)
        apart.append((float(moved), max(tolerance, _HALF_PRECISION) if is_half else tolerance))
        largest = max(largest, float(sizes))
    return all(moved <= tolerance * largest for moved, tolerance in apart)
