"""Masks that depend on earlier releases; they are public, because post-processing costs nothing."""

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
    """Mask listed coordinates for the whole run: they keep their initial values.

    It is meant for training in stages: the weights at the end of a stage are private, so freezing the smallest of them
    in the next stage costs nothing.

    Guarantee:
        The list is part of the plan. It may depend on the private data only through releases with a guarantee, such as
        the model of an earlier stage; the two guarantees then compose.

    Attributes:
        num_coordinates: Number of coordinates of the model.
        frozen_bits: One bit per coordinate in the order of the layout, most significant bit first, set if the
            coordinate is masked, as base64; ``freezing`` writes it.
    """

    num_coordinates: int
    frozen_bits: str

    def __post_init__(self) -> None:
        if bool(self.frozen.all()):
            raise ArgumentError(
                "The mask freezes every coordinate and leaves nothing to train. Keep at least one coordinate."
            )

    @classmethod
    def freezing(cls, frozen: NDArray[np.bool_]) -> ChosenMask:
        """Return the mask that freezes the coordinates with True."""
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
        if layout.num_coordinates != self.num_coordinates:
            raise PlanError(
                f"The mask lists {self.num_coordinates} coordinates, but the model has {layout.num_coordinates}. Build "
                "the mask from the weights of this model."
            )
        return ChosenMaskRun(frozen=self.frozen)


@dataclass(kw_only=True, eq=False)
class ChosenMaskRun(ReleaseIndependentRun):
    """:class:`ChosenMask` in one run."""

    frozen: NDArray[np.bool_]
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        if self._kept is None and self.frozen.any():
            self._kept = Kept.of(like.new_tensor((~self.frozen).astype(np.float64)))
        return self._kept


@dataclass(frozen=True, kw_only=True)
class RankedMask(RedrawnMask):
    """Mask the coordinates with the smallest noisy gradients (Zhu and Blaschko 2023, Algorithm 4, line 20 corrected).

    Noisy sums are accumulated over a mask period. Masked coordinates have no noisy sum and get noise of the same size
    instead, so that they can be kept again. Line 20 of the published algorithm accumulates the gradients before noise,
    which would release them; this class accumulates noisy ones. Nothing is masked before the first ranking: in the
    first period of a run, and after a resumption until the next period.

    Guarantee:
        Ranking released values is post-processing and costs nothing.
    """

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> RankedMaskRun:
        periods = self.periods(num_steps, steps_per_epoch)
        return RankedMaskRun(units=self.granularity.units(layout), periods=periods)


@dataclass(kw_only=True)
class RankedMaskRun:
    """:class:`RankedMask` in one run, with the accumulated noisy sums of the current period."""

    units: MaskUnits
    periods: MaskPeriods
    _index: int | None = None
    _kept: Kept | None = None
    _total: Tensor | None = field(default=None, repr=False)
    _missing_variance: float = 0.0

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
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
            # one draw for the whole period, with the summed variance of its steps
            total[masked] += rng.normal(0.0, math.sqrt(self._missing_variance), int(masked.sum()))
        return self.units.keep_largest(rate, self.units.mean_squares(total), like)

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Accumulate a released sum.

        Raises:
            PlanError: the noise differs between coordinates, so their sizes cannot be compared.
        """
        if private.noise_std is None:
            raise PlanError(
                "RankedMask compares noisy coordinates, which needs noise of one size on all of them. "
                "Use Gaussian noise, or RandomMask."
            )
        self._total = private.flat.clone() if self._total is None else self._total.add_(private.flat)
        self._missing_variance += private.noise_std**2
