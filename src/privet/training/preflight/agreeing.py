"""Whether two results of one program are the same up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Rows of a batch do not know each other's values, so nothing but rounding may differ; another batch size may be
# computed by another kernel. A device adds gradients up in no fixed order, which shows where one is the small
# difference of large numbers, as that of a trained network is; and some of its kernels round factors to tf32.
_SAME_SHAPE = {torch.float64: 1e-9, torch.float32: 1e-6}
_OTHER_SHAPE = {torch.float64: 1e-8, torch.float32: 1e-4}
_ADDED_UP_ON_DEVICE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OTHER_SHAPE_ON_DEVICE = {torch.float64: 1e-8, torch.float32: 2e-2}
_HALF_PRECISION = 2e-2


def _tolerances(device: torch.device, *, same_shape: bool, added_up: bool) -> dict[torch.dtype, float]:
    """How far two results may lie apart, as a share of the largest number, by their precision."""
    if device.type == "cpu":
        return _SAME_SHAPE if same_shape else _OTHER_SHAPE
    if not same_shape:
        return _OTHER_SHAPE_ON_DEVICE
    return _ADDED_UP_ON_DEVICE if added_up else _SAME_SHAPE


def agree(one: Tensor, other: Tensor, *, same_shape: bool = True, added_up: bool = False) -> bool:
    """Whether two results are the same up to rounding; what is not finite must be so in both.

    Args:
        one: Losses, or a gradient.
        other: The same, found in another way.
        same_shape: Whether both come from batches of one size.
        added_up: Whether they are gradients, which are sums over examples and places.
    """
    tolerances = _tolerances(one.device, same_shape=same_shape, added_up=added_up)
    tolerance = tolerances.get(one.dtype, _HALF_PRECISION)
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    finite = one.isfinite()
    one, other = one[finite], other[finite]
    return one.numel() == 0 or bool((one - other).abs().max() <= tolerance * one.abs().max())


def gradients_agree(one: Sequence[Tensor | None], other: Sequence[Tensor | None], *, same_shape: bool = True) -> bool:
    """Whether two gradients are the same up to rounding, as a share of the largest number of all parameters."""
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
        if not bool(moved.isfinite() & sizes.isfinite()):  # what is not finite must be so in both
            whole = (torch.cat([part.reshape(-1) for part in side]) for side in (lefts, rights))
            if not agree(*whole, same_shape=same_shape, added_up=True):
                return False
            continue
        tolerances = _tolerances(device, same_shape=same_shape, added_up=True)
        apart.append((float(moved), tolerances.get(dtype, _HALF_PRECISION)))
        largest = max(largest, float(sizes))
    return all(moved <= tolerance * largest for moved, tolerance in apart)
