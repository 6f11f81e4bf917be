"""Noise: random numbers are added to a clipped sum here and in the modules of the other noise pieces."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
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
from privet.mechanism.sampling import Sampling
from privet.mechanism.sensitivity import Norm, Sensitivity
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

Array = NDArray[np.float64]
HALF_NORMAL = math.sqrt(2 / math.pi)
"""The mean absolute value of a standard normal number."""
# Noise of kept coordinates is drawn in chunks of this size, which bounds the extra memory.
_CHUNK = 1 << 22


class NoiseFamily(Enum):
    """The family of a noise distribution; the value is its name in the assumptions of a guarantee."""

    GAUSSIAN = "Gaussian"
    LAPLACE = "Laplace draw"


class StepUnits(NamedTuple):
    """The units of a step.

    Attributes:
        frame: The units of clipping and noise; None for plain units.
        squares: The engine accumulates squared clipped gradients over rows and columns here; secret. None if unused.
    """

    frame: Frame | None
    squares: Tensor | None


class NoiseRun(Protocol):
    """The state of a noise piece in one run.

    Attributes:
        noise: The piece of the plan.
    """

    @property
    def noise(self) -> Noise: ...

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise of the current step; see :meth:`Noise.add`."""
        ...

    def begin(self, step: int, like: Tensor) -> StepUnits:
        """Fix the units of a step before its batch is read; discard the squares of an unfinished pass."""
        ...

    def state(self) -> State:
        """Return the released values that determine later steps; public."""
        ...

    def restore(self, state: State) -> None:
        """Restore a state of the same piece and model."""
        ...

    def restart(self) -> None:
        """Forget the noise of earlier steps: a new walk over the steps of a session begins with a new round."""
        ...


@runtime_checkable
class Noise(Protocol):
    """A noise piece of a plan.

    Attributes:
        norm_kind: The norm in which the clipped sum must be bounded.
        noise_multiplier: The ratio of noise to sensitivity; None before calibration, and for a piece without noise.
        family: The family of the distribution; None if no noise is added.
        is_spherical: Whether the density depends on the l2 norm only: equal noise on every kept coordinate, in plain
            units.
        is_recordable: Whether every call of :meth:`add` is a single normal draw whose size depends on the bound only.
        is_by_coordinate: Whether a coordinate gets normal draws of its own and nothing else, so that whoever holds some
            coordinates of the sum can add their noise.
        is_fixed: Whether all steps have the same units, and a step releases only the sum.
        is_independent: Whether the noise of a step is independent of that of all other steps.
        scale: The size of the independent draws over noise multiplier and bound; 1 for independent noise.
        not_private_because: The reason why no run with this piece is private; None for a private piece.
    """

    norm_kind: ClassVar[Norm]
    is_fixed: ClassVar[bool]
    not_private_because: ClassVar[str | None]

    @property
    def noise_multiplier(self) -> float | None: ...
    @property
    def family(self) -> NoiseFamily | None: ...
    @property
    def is_spherical(self) -> bool: ...
    @property
    def is_recordable(self) -> bool: ...
    @property
    def is_by_coordinate(self) -> bool: ...
    @property
    def is_independent(self) -> bool: ...
    @property
    def scale(self) -> float: ...

    def refusal(self, sampling: Sampling) -> str | None:
        """Return the reason why rounds of this sampling do not compose under this noise; None if they do."""
        ...

    def weights(self, steps: int) -> Array:
        """Return the weights of independent draws in the noise of a step, the newest first; 1 and zeros if no older."""
        ...

    def event(self) -> DpEvent:
        """Return the cost of one release of a clipped sum, before amplification by sampling."""
        ...

    def with_multiplier(self, noise_multiplier: float) -> Noise:
        """Return the same noise at another ratio of standard deviation to sensitivity."""
        ...

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Turn a clipped sum into a private one; its event is built from the noise that was really added."""
        ...

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        """Start a run of a model of this layout."""
        ...

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        """Return a released sum in the units of its clipping; may change it in place."""
        ...


@dataclass(kw_only=True)
class FixedNoise:
    """The run of a fixed noise, in plain units or in the units of a geometry."""

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

    def restart(self) -> None:
        """Do nothing: every step has noise of its own."""


@dataclass(frozen=True, kw_only=True)
class MultipliedNoise(ABC):
    """Noise whose size is a multiple of the sensitivity. A new piece writes its family, its event and :meth:`add`."""

    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            checks.fields(self, checks.positive, "noise_multiplier")

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

    is_recordable = is_by_coordinate = is_spherical  # a piece states itself what holds for it

    @property
    def is_independent(self) -> bool:
        return True

    @property
    def scale(self) -> float:
        return 1.0

    def weights(self, steps: int) -> Array:
        return newest_alone(steps)

    def refusal(self, sampling: Sampling) -> str | None:
        return None

    is_fixed: ClassVar[bool] = True
    not_private_because: ClassVar[str | None] = None

    @cached_property
    def multiplier(self) -> float:
        """The multiplier; an error before calibration."""
        return self.noise_multiplier or calibrated_multiplier(type(self).__name__, None)

    def with_multiplier(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        return FixedNoise(noise=self, layout=layout)

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        return flat

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        """Return the mean absolute noise of every coordinate of a model."""
        raise ArgumentError(f"The mean size of {type(self).__name__} noise is unknown.")

    def root_mean_square(self, num_coordinates: int) -> float:
        """Return the root mean squared length of the noise over the sensitivity."""
        if not self.is_spherical:
            raise ArgumentError(f"The length of {type(self).__name__} noise depends on the model.")
        return self.multiplier * math.sqrt(num_coordinates)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(MultipliedNoise):
    """Normal noise, charged as the single Gaussian release of the same cost."""

    family: ClassVar[NoiseFamily | None] = NoiseFamily.GAUSSIAN

    def event(self) -> DpEvent:
        return gaussian_event(bounds=(1.0,), stds=(self.multiplier,))


@dataclass(frozen=True, kw_only=True)
class Gaussian(GaussianNoise):
    """Independent normal noise of the same size on every kept coordinate.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the *sum*, over the total sensitivity of the sum. None
            until the plan is calibrated.
    """

    @property
    def is_spherical(self) -> bool:
        return type(self).add is Gaussian.add  # a subclass that overrides add must state all three itself

    is_recordable = is_by_coordinate = is_spherical

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        return np.full(layout.num_coordinates, HALF_NORMAL * self.multiplier * sensitivity.total)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add noise to ``clipped.flat`` in place and return it as a private sum.

        Guarantee:
            Every kept coordinate gets an independent N(0, (noise_multiplier * sensitivity)^2) draw from ``source``,
            in double precision: single-precision generators never draw beyond 5.8 standard deviations, which alone can
            cost more than delta. Masked coordinates stay exactly zero. An empty batch releases pure noise.
        """
        if clipped.frame is not None:
            clipped.refuse_units(type(self).__name__)
        std = self.multiplier * clipped.sensitivity.total
        add_normal(clipped.flat, std=std, source=source, keep=clipped.keep, kept=clipped.kept)
        bounds = clipped.sensitivity.bounds
        return PrivateSum(
            flat=clipped.flat,
            layout=clipped.layout,
            event=gaussian_event(bounds=bounds, stds=(std,) * len(bounds)),
            noise_std=std,
        )


def newest_alone(steps: int) -> Array:
    """Return the weights of draws in the noise of a step that has one draw, its own."""
    found = np.zeros(checks.count("steps", steps))
    found[0] = 1.0
    return found


def spherical_gaussian_multiplier(noise: Noise) -> float | None:
    """Return the multiplier of spherical Gaussian noise; None for other noise, and before calibration."""
    return noise.noise_multiplier if noise.family is NoiseFamily.GAUSSIAN and noise.is_spherical else None


def calibrated_multiplier(piece: str, noise_multiplier: float | None) -> float:
    """Return the multiplier of a piece; raise ``PlanError`` before calibration."""
    if noise_multiplier is None:
        raise PlanError(f"{piece}() has no noise_multiplier yet. Set one, or let plan.calibrated(epsilon=...) find it.")
    return noise_multiplier


def checked_state(state: Mapping[str, tuple[float, ...]], lengths: Mapping[str, int], piece: str) -> None:
    """Refuse a state whose names or lengths are not those of a piece."""
    found = {name: len(values) for name, values in state.items()}
    if found != dict(lengths):
        raise CheckpointError(
            f"{piece} needs {dict(lengths)} numbers to resume, but the checkpoint has {found}. It belongs to another "
            "plan or model."
        )


def add_normal(
    flat: Tensor, *, std: float, source: NormalSource, keep: Tensor | None, kept: Kept | None = None
) -> None:
    """Add N(0, std^2) to the kept coordinates of ``flat`` in place; nothing is drawn for the others.

    ``kept`` is the same mask as ``keep`` with precomputed indices; without it they are computed.
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
