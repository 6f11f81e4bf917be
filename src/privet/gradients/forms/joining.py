"""Parameters that are used several times: all their uses as one form, before norms are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from privet.gradients.forms.per_example import Explicit, Lookup, Outer, PerExample, TiedTable


def joined(parts: Sequence[PerExample]) -> PerExample:
    """Return the gradients of a parameter that is used several times as one form.

    The uses must be joined before norms are taken: adding their norms would forget the products between them.
    """
    outers = [part for part in parts if isinstance(part, Outer)]
    lookups = [part for part in parts if isinstance(part, Lookup)]
    alike = len({(part.inputs.shape[2], part.out_grads.shape[2], part.shape) for part in outers}) == 1
    if len(outers) == len(parts) and alike:
        return _joined_outers(outers)
    if len(lookups) == len(parts):
        return _joined_lookups(lookups)
    if len(outers) + len(lookups) == len(parts) and alike and outers[0].shape is None:
        return TiedTable(lookup=_joined_lookups(lookups), outer=_joined_outers(outers))
    total = parts[0].in_full().clone()
    for part in parts[1:]:
        total += part.in_full()
    return Explicit(gradients=total)


def _joined_outers(parts: Sequence[Outer]) -> Outer:
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        inputs=torch.cat([part.inputs for part in parts], 1),
        out_grads=torch.cat([part.out_grads for part in parts], 1),
    )


def _joined_lookups(parts: Sequence[Lookup]) -> Lookup:
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        ids=torch.cat([part.ids for part in parts], 1),
        out_grads=torch.cat([part.out_grads for part in parts], 1),
    )
