"""A mask written out coordinate by coordinate, for choices made from what was released before."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privet.errors import ArgumentError, PlanError
from privet.mechanism.granularity import Kept
from privet.mechanism.layout import Layout
from privet.mechanism.sums import PrivateSum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ChosenMask:
    """Mask listed coordinates for the whole run: they keep the values with which it began.

    It is for training in stages: the weights at the end of a stage are private already, so freezing the smallest of
    them in the next stage costs nothing.

    Guarantee:
        The list is part of the plan. Whoever makes it must use nothing of the private data but what was released under
        a guarantee of its own, such as the model of an earlier stage; the two guarantees then compose.

    Attributes:
        num_coordinates: How many coordinates the model has.
        frozen_bits: One bit per coordinate in the layout's order, most significant first, set where it is masked, as
            base64; ``freezing`` writes it.
    """

    num_coordinates: int
    frozen_bits: str

    def __post_init__(self) -> None:
        """Refuse bits that are none, that do not fit the number of coordinates, and a mask of everything."""
        if bool(self.frozen.all()):
            raise ArgumentError("A mask of every coordinate leaves nothing to train.")

    @classmethod
    def freezing(cls, frozen: NDArray[np.bool_]) -> ChosenMask:
        """Return the mask of the coordinates for which this is True."""
        flags = np.asarray(frozen, dtype=np.bool_).reshape(-1)
        return cls(num_coordinates=len(flags), frozen_bits=base64.b64encode(np.packbits(flags).tobytes()).decode())

    @property
    def frozen(self) -> NDArray[np.bool_]:
        """Which coordinates are masked."""
        try:
            packed = base64.b64decode(self.frozen_bits.encode("ascii"), validate=True)
        except (AttributeError, UnicodeEncodeError, binascii.Error):
            raise ArgumentError("frozen_bits must be base64 text, as ChosenMask.freezing writes it.") from None
        if self.num_coordinates < 1 or len(packed) != -(-self.num_coordinates // 8):
            raise ArgumentError(f"frozen_bits must hold one bit for each of {self.num_coordinates} coordinates.")
        return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=self.num_coordinates).astype(np.bool_)

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> ChosenMaskRun:
        """Hold the list against the model.

        Raises:
            PlanError: the model has another number of coordinates.
        """
        if layout.num_coordinates != self.num_coordinates:
            raise PlanError(
                f"The mask lists {self.num_coordinates} coordinates and the model has {layout.num_coordinates}. Make "
                "the mask from this model's weights."
            )
        return ChosenMaskRun(frozen=self.frozen)


@dataclass(kw_only=True, eq=False)
class ChosenMaskRun:
    """:class:`ChosenMask` in one run."""

    frozen: NDArray[np.bool_]
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the one mask, or None where nothing is masked; nothing is drawn from ``rng``."""
        if self._kept is None and self.frozen.any():
            self._kept = Kept.of(like.new_tensor((~self.frozen).astype(np.float64)))
        return self._kept

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Keep nothing."""
