"""Parameters that are used several times: all their uses as one form, before norms are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from privet.gradients.forms.per_example import Explicit, Lookup, Outer, PerExample, TiedTable

_Summed = TypeVar("_Summed", Outer, Lookup)


def joined(parts: Sequence[PerExample]) -> PerExample:
    """Return the gradients of a parameter that is used several times as one form.

    The uses must be joined before norms are taken: adding their norms would forget the products between them.
    """
    outers = [part for part in parts if isinstance(part, Outer)]
    lookups = [part for part in parts if isinstance(part, Lookup)]
    alike = len({(part.inputs.shape[2], part.out_grads.shape[2], part.shape) for part in outers}) == 1
    if len(outers) == len(parts) and alike:
        return _joined(outers, "inputs", "out_grads")
    if len(lookups) == len(parts):
        return _joined(lookups, "ids", "out_grads")
    if len(outers) + len(lookups) == len(parts) and alike and outers[0].shape is None:
        return TiedTable(lookup=_joined(lookups, "ids", "out_grads"), outer=_joined(outers, "inputs", "out_grads"))
    total = parts[0].in_full().clone()
    for part in parts[1:]:
        total += part.in_full()
    return Explicit(gradients=total)


def _joined(parts: Sequence[_Summed], *names: str) -> _Summed:
    """Concatenate the named tensors along the axis that a gradient sums over."""
    if len(parts) == 1:
        return parts[0]
    tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in names}
    return replace(parts[0], **tensors)
