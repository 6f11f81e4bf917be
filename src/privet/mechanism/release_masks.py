"""Masks that are chosen from what was released before: public, because post-processing is free."""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privet.errors import ArgumentError, PlanError
from privet.mechanism.granularity import Kept, MaskUnits
from privet.mechanism.layout import Layout
from privet.mechanism.masking import ConstantMask, MaskPeriods, RedrawnMask, ReleaseIndependentRun
from privet.mechanism.sums import PrivateSum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ChosenMask(ConstantMask):
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
        if bool(self.frozen.all()):
            raise ArgumentError("A mask of every coordinate leaves nothing to train.")

    @classmethod
    def freezing(cls, frozen: NDArray[np.bool_]) -> ChosenMask:
        """Return the mask of the coordinates for which this is True."""
        flags = np.asarray(frozen, dtype=np.bool_).reshape(-1)
        return cls(num_coordinates=len(flags), frozen_bits=base64.b64encode(np.packbits(flags).tobytes()).decode())

    @property
    def frozen(self) -> NDArray[np.bool_]:
        try:
            packed = base64.b64decode(self.frozen_bits.encode("ascii"), validate=True)
        except (AttributeError, UnicodeEncodeError, binascii.Error):
            raise ArgumentError("frozen_bits must be base64 text, as ChosenMask.freezing writes it.") from None
        if self.num_coordinates < 1 or len(packed) != -(-self.num_coordinates // 8):
            raise ArgumentError(f"frozen_bits must hold one bit for each of {self.num_coordinates} coordinates.")
        return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=self.num_coordinates).astype(np.bool_)

    @property
    def final_rate(self) -> float:
        return float(self.frozen.mean())

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
class ChosenMaskRun(ReleaseIndependentRun):
    """:class:`ChosenMask` in one run."""

    frozen: NDArray[np.bool_]
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the one mask, or None where nothing is masked; nothing is drawn from ``rng``."""
        if self._kept is None and self.frozen.any():
            self._kept = Kept.of(like.new_tensor((~self.frozen).astype(np.float64)))
        return self._kept


@dataclass(frozen=True, kw_only=True)
class RankedMask(RedrawnMask):
    """Mask what past noisy gradients were smallest in (Zhu and Blaschko 2023, Algorithm 4, with line 20 corrected).

    Noisy sums are added up from one draw to the next; masked coordinates, which have no noisy sum, get noise of the
    same size in its place, so that they can come back. Printed as it is, line 20 of the algorithm adds up the gradients
    before noise, which would release them; here it is the noisy ones. Nothing is masked until there is a ranking: in
    the first stretch of a run, and from a resumption to the next draw.

    Guarantee:
        Ranking released values is post-processing: it costs nothing.
    """

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> RankedMaskRun:
        periods = self.periods(num_steps, steps_per_epoch)
        return RankedMaskRun(units=self.granularity.units(layout), periods=periods)


@dataclass(kw_only=True)
class RankedMaskRun:
    """:class:`RankedMask` in one run: the noisy sums of the present stretch, added up."""

    units: MaskUnits
    periods: MaskPeriods
    _index: int | None = None
    _kept: Kept | None = None
    _total: Tensor | None = field(default=None, repr=False)
    _missing_variance: float = 0.0

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the present mask, ranked at the first step of a stretch; see :meth:`MaskRun.begin`."""
        index = step // self.periods.length
        if index != self._index:
            self._kept = self._ranked(self.periods.rate(index), rng, like)
            self._index, self._total, self._missing_variance = index, None, 0.0
        return self._kept

    def _ranked(self, rate: float, rng: np.random.Generator, like: Tensor) -> Kept | None:
        if self._total is None:
            return None
        total = self._total.double().cpu().numpy()
        if self._kept is not None:
            masked = self._kept.coordinates.logical_not().cpu().numpy()
            # one draw for the whole stretch: the sum of its steps' draws has their summed variance
            total[masked] += rng.normal(0.0, math.sqrt(self._missing_variance), int(masked.sum()))
        return self.units.keep_largest(rate, self.units.mean_squares(total), like)

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Add up a released sum.

        Raises:
            PlanError: if the noise differs from coordinate to coordinate, so that lengths cannot be compared.
        """
        if private.noise_std is None:
            raise PlanError(
                "RankedMask compares noisy coordinates with each other, which needs noise of one size on all of them. "
                "Use Gaussian noise, or RandomMask."
            )
        self._total = private.flat.clone() if self._total is None else self._total.add_(private.flat)
        self._missing_variance += private.noise_std**2
