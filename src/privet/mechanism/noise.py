"""Noise: the one place where randomness is added to a clipped sum."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import ArgumentError, CheckpointError, PlanError
from privet.mechanism.clipping import State
from privet.mechanism.events import gaussian_event
from privet.mechanism.geometry import Frame, Geometry
from privet.mechanism.granularity import Kept
from privet.mechanism.layout import Layout
from privet.mechanism.sensitivity import Norm, Sensitivity
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

Array = NDArray[np.float64]
HALF_NORMAL = math.sqrt(2 / math.pi)
"""The mean absolute value of a standard normal number."""
# Noise of kept coordinates is drawn apart from the sum it joins; this many at a time bound the extra memory.
_CHUNK = 1 << 22


class NoiseFamily(Enum):
    """The family of distributions that a noise belongs to; the value says what proofs take it for."""

    GAUSSIAN = "Gaussian"
    LAPLACE = "Laplace draw"


class StepUnits(NamedTuple):
    """How a step is measured.

    Attributes:
        frame: The units of clipping and noise; None for plain ones.
        squares: Where the engine adds up squared clipped gradients, rows and columns; secret. None if nobody asks.
    """

    frame: Frame | None
    squares: Tensor | None


class NoiseRun(Protocol):
    """A noise piece at work in one run: in which units each step is clipped and noised, and by what."""

    @property
    def noise(self) -> Noise:
        """The piece as planned."""
        ...

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise of the present step; see :meth:`Noise.add`."""
        ...

    def begin(self, step: int, like: Tensor) -> StepUnits:
        """Fix the units of a step before its batch is read; what an unfinished pass has summed is forgotten."""
        ...

    def state(self) -> State:
        """Return the released values from which later steps follow; public."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a state of the same piece and model."""
        ...


@runtime_checkable
class Noise(Protocol):
    """A noise piece of a plan."""

    @property
    def norm_kind(self) -> Norm:
        """The norm in which the clipped sum must be bounded."""
        ...

    @property
    def noise_multiplier(self) -> float | None:
        """The ratio of noise to sensitivity; None before calibration, and for a piece that has none."""
        ...

    @property
    def family(self) -> NoiseFamily | None:
        """The family of its distribution; None where no noise is added."""
        ...

    @property
    def is_spherical(self) -> bool:
        """Whether its density depends on the length alone: the same noise on every kept coordinate, in plain units."""
        ...

    @property
    def is_recordable(self) -> bool:
        """Whether :meth:`add` is nothing but one normal draw of a size that only the bound decides, on every call."""
        ...

    @property
    def is_fixed(self) -> bool:
        """Whether all steps have the same units, and the sum is all that a step releases."""
        ...

    @property
    def not_private_because(self) -> str | None:
        """Why no run with this piece is private; None where nothing takes the guarantee away."""
        ...

    def event(self) -> DpEvent:
        """Say what one release of a clipped sum costs, before amplification by sampling."""
        ...

    def with_multiplier(self, noise_multiplier: float) -> Noise:
        """Return the same noise at another ratio of standard deviation to sensitivity."""
        ...

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Turn a clipped sum into a private one; the event of the result is built from what was really added."""
        ...

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        """Begin a run of a model of this layout."""
        ...

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        """Return a released sum in the units in which it was clipped; may change it in place."""
        ...


@dataclass(kw_only=True)
class FixedNoise:
    """Noise that stays as it is and releases nothing of its own, in the units of a geometry or in plain ones."""

    noise: Noise
    layout: Layout
    geometry: Geometry | None = None
    _frame: Frame | None = None

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        return self.noise.add(clipped, source)

    def begin(self, step: int, like: Tensor) -> StepUnits:
        if self._frame is None and self.geometry is not None:
            self._frame = Frame.of(self.geometry, self.layout, like)
        return StepUnits(frame=self._frame, squares=None)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        if state:
            raise CheckpointError(f"This noise keeps no state, but the checkpoint has {sorted(state)} for it.")


@dataclass(frozen=True, kw_only=True)
class MultipliedNoise(ABC):
    """Noise whose size is a multiple of the sensitivity; a new noise writes its facts, its event and :meth:`add`."""

    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", checks.positive("noise_multiplier", self.noise_multiplier))

    @property
    @abstractmethod
    def family(self) -> NoiseFamily | None: ...

    @abstractmethod
    def event(self) -> DpEvent: ...

    @abstractmethod
    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum: ...

    norm_kind: ClassVar[Norm] = Norm.L2

    @property
    def is_spherical(self) -> bool:
        return False

    @property
    def is_recordable(self) -> bool:
        return False

    is_fixed: ClassVar[bool] = True
    not_private_because: ClassVar[str | None] = None

    @property
    def multiplier(self) -> float:
        """The multiplier; a piece that is not calibrated yet is refused."""
        return self.noise_multiplier or calibrated_multiplier(type(self).__name__, None)

    def with_multiplier(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        return FixedNoise(noise=self, layout=layout)

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        return flat

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        """Return the mean absolute noise of every coordinate of a model."""
        raise ArgumentError(f"The expected size of {type(self).__name__} is not known.")

    def root_mean_square(self, num_coordinates: int) -> float:
        """Return the root mean squared length of the noise over the sensitivity."""
        if not self.is_spherical:
            raise ArgumentError(f"The length of {type(self).__name__} depends on the model.")
        return self.multiplier * math.sqrt(num_coordinates)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(MultipliedNoise):
    """Normal noise, charged as the one Gaussian release of the same cost."""

    family: ClassVar[NoiseFamily | None] = NoiseFamily.GAUSSIAN

    def event(self) -> DpEvent:
        return gaussian_event(bounds=(1.0,), stds=(self.multiplier,))


@dataclass(frozen=True, kw_only=True)
class Gaussian(GaussianNoise):
    """Independent normal noise of one size on every kept coordinate.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the *sum*, over the total sensitivity of the sum. None
            until the plan is calibrated.
    """

    @property
    def is_spherical(self) -> bool:
        """A subclass that adds other noise says for itself what it is."""
        return type(self).add is Gaussian.add

    @property
    def is_recordable(self) -> bool:
        return self.is_spherical

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        return np.full(layout.num_coordinates, HALF_NORMAL * self.multiplier * sensitivity.total)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add noise to ``clipped.flat`` in place and hand it on as a private sum.

        Guarantee:
            Every kept coordinate gets an independent N(0, (noise_multiplier * sensitivity)^2) draw from ``source``,
            in double precision: single-precision generators never draw beyond 5.8 standard deviations, which alone can
            cost more than delta. Masked coordinates stay exactly zero. An empty batch releases noise alone.
        """
        clipped.check_plain_units(type(self).__name__)
        std = self.multiplier * clipped.sensitivity.total
        add_normal(clipped.flat, std=std, source=source, keep=clipped.keep, kept=clipped.kept)
        bounds = clipped.sensitivity.bounds
        return PrivateSum(
            flat=clipped.flat,
            layout=clipped.layout,
            event=gaussian_event(bounds=bounds, stds=(std,) * len(bounds)),
            noise_std=std,
        )


def spherical_gaussian_multiplier(noise: Noise) -> float | None:
    """Return the multiplier of spherical Gaussian noise; None for other noise, and before calibration."""
    return noise.noise_multiplier if noise.family is NoiseFamily.GAUSSIAN and noise.is_spherical else None


def calibrated_multiplier(piece: str, noise_multiplier: float | None) -> float:
    """Return the multiplier of a piece, or say that it has none yet."""
    if noise_multiplier is None:
        raise PlanError(f"{piece}() has no noise_multiplier yet. Set one, or let plan.calibrated(epsilon=...) find it.")
    return noise_multiplier


def checked_state(state: Mapping[str, tuple[float, ...]], lengths: Mapping[str, int], piece: str) -> None:
    """Refuse a state with other names or lengths than a piece keeps."""
    found = {name: len(values) for name, values in state.items()}
    if found != dict(lengths):
        raise CheckpointError(
            f"{piece} needs {dict(lengths)} numbers to go on, the checkpoint has {found}. It belongs to another plan "
            "or model."
        )


def add_normal(
    flat: Tensor, *, std: float, source: NormalSource, keep: Tensor | None, kept: Kept | None = None
) -> None:
    """Add N(0, std^2) to the kept coordinates of ``flat`` in place; for the others nothing is drawn.

    ``kept`` is the same choice as ``keep``, with the numbers of its coordinates; they are looked for otherwise.
    """
    if keep is None:
        source.add_normal(flat, std)
        return
    index = keep.nonzero().squeeze(1) if kept is None else kept.index
    for start in range(0, len(index), _CHUNK):
        part = index[start : start + _CHUNK]
        draw = flat.new_zeros(len(part))
        source.add_normal(draw, std)
        flat.scatter_add_(0, part, draw)
