"""Masks: which coordinates of the gradient take part in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from privet.mechanism.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@runtime_checkable
class Mask(Protocol):
    """Chooses the kept coordinates of one logical step, before norms are taken and noise is drawn."""

    def keep(self, step: int, layout: Layout, rng: np.random.Generator, like: Tensor) -> Tensor | None:
        """Return a boolean vector over the layout (True = kept) on the device of ``like``, or None for all.

        Guarantee:
            The choice depends on public information only. It is asked for once per logical step, so all physical
            batches of a step share it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class NoMask:
    """Every coordinate takes part."""

    def keep(self, step: int, layout: Layout, rng: np.random.Generator, like: Tensor) -> None:
        """Return None: keep everything."""
        return
