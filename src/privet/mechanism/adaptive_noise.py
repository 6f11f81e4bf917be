"""Gaussian noise in units that are learned during the run, from an extra release in every step or from noisy gradients.

The units of a step are a function of values that earlier steps released, so they are public when its batch is drawn.
Each step is an ordinary Gaussian release in its units, and steps compose adaptively at a cost known in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from privet import checks
from privet.errors import ArgumentError, LoopError, PlanError
from privet.mechanism.clipping import State
from privet.mechanism.events import gaussian_event
from privet.mechanism.geometry import Factored, Frame
from privet.mechanism.layout import Layout
from privet.mechanism.noise import GaussianNoise, StepUnits, checked_state
from privet.mechanism.second_moments import (
    DEFAULT_FLOOR,
    Array,
    History,
    SquareMoments,
    flat_units,
    num_axis_sums,
    plain_geometry,
    units_from_flat,
)
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@runtime_checkable
class Learning(Protocol):
    """The source of learned units.

    Attributes:
        share: The share of a step's squared signal-to-noise ratio that its release of squares uses; may be zero.
    """

    @property
    def share(self) -> float: ...

    def start(self, layout: Layout, *, power: float, floor: float) -> LearningRun:
        """Start a run with equal units."""
        ...


class LearningRun(Protocol):
    """The current units of one run and the state that a checkpoint stores."""

    geometry: Factored

    def note(self, step: int, released: Array, noise_std: Array, squares: Array | None, squares_std: float) -> None:
        """Record the release of a step: its sum in plain units, the squares, and the noise of both."""
        ...

    def state(self) -> State:
        """Return the values that determine all later units."""
        ...

    def restore(self, state: State) -> None:
        """Restore the state of a checkpoint."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReleasedSquares:
    """Units from noisy sums of squared clipped gradients over rows and columns, released inside every step.

    Attributes:
        share: The share of a step's squared signal-to-noise ratio that the squares use. The sum gets the rest: a share
            of 0.1 costs the sum five percent more noise.
        every: Number of steps between updates of the units; their releases are averaged.
        memory: Weight of the old moments in an update.
    """

    share: float = 0.1
    every: int = 10
    memory: float = 0.5

    def __post_init__(self) -> None:
        checks.probability("share", self.share)
        checks.count("every", self.every)
        if checks.non_negative("memory", self.memory) >= 1:
            raise ArgumentError(f"memory must lie in [0, 1), got {self.memory!r}.")

    def start(self, layout: Layout, *, power: float, floor: float) -> LearningRun:
        return _SquaresRun(piece=self, layout=layout, power=power, floor=floor, geometry=plain_geometry(layout))


@dataclass(frozen=True, kw_only=True)
class PastGradients:
    """Units from the noisy gradients of earlier steps. They cost nothing, are mostly noise, and are the weakest source.

    Attributes:
        first: Number of steps before the first update of the units.
        every: Number of steps between updates.
        decay: Decay of the running mean of squares.
        floor_errors: A row counts only if it exceeds this many standard errors of the noise.
    """

    first: int = 20
    every: int = 10
    decay: float = 0.98
    floor_errors: float = 2.0

    def __post_init__(self) -> None:
        checks.require(self, checks.count, "first", "every")
        checks.require(self, checks.probability, "decay")
        checks.require(self, checks.non_negative, "floor_errors")

    @property
    def share(self) -> float:
        return 0.0

    def start(self, layout: Layout, *, power: float, floor: float) -> LearningRun:
        history = History(layout=layout, decay=self.decay, floor_errors=self.floor_errors)
        return _HistoryRun(
            piece=self, layout=layout, power=power, floor=floor, history=history, geometry=plain_geometry(layout)
        )


@dataclass(frozen=True, kw_only=True)
class AdaptiveGaussian(GaussianNoise):
    """Gaussian noise in learned units, on gradients that were clipped in the same units.

    Attributes:
        learning: The source of the units.
        preconditioning: As in :class:`~privet.mechanism.shaped_noise.EllipticalGaussian`.
        power: The units are second moments to this power: 1/4 for plain steps, 1/2 for preconditioning 1.
        floor: The smallest allowed ratio of a row, column or parameter to the mean.
        noise_multiplier: Multiplier of the single Gaussian release with the same cost as a step, squares included. None
            until the plan is calibrated.
    """

    learning: Learning = field(default_factory=ReleasedSquares)
    preconditioning: float = 1.0
    power: float = 0.5
    floor: float = DEFAULT_FLOOR

    def __post_init__(self) -> None:
        if isinstance(self.learning, type) or not isinstance(self.learning, Learning):
            raise ArgumentError(f"learning must be a piece such as ReleasedSquares(...), got {self.learning!r}.")
        if checks.non_negative("preconditioning", self.preconditioning) > 1:
            raise ArgumentError(f"preconditioning must lie between 0 and 1, got {self.preconditioning!r}.")
        checks.require(self, checks.positive, "power", "floor")
        super().__post_init__()

    is_fixed: ClassVar[bool] = False

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        raise LoopError(
            "AdaptiveGaussian learns its units during a run and adds no noise outside one. Start a session."
        )

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        raise LoopError("AdaptiveGaussian learns its units during a run, so the units of a single sum are unknown.")

    def start(self, layout: Layout, *, has_mask: bool) -> AdaptiveGaussianRun:
        """Start a run with equal units.

        Raises:
            PlanError: a mask leaves coordinates out, and nothing could be learned about them.
        """
        if has_mask:
            raise PlanError(
                "AdaptiveGaussian learns units from all coordinates and does not work with a mask. Use NoMask."
            )
        return AdaptiveGaussianRun(
            noise=self, layout=layout, learning=self.learning.start(layout, power=self.power, floor=self.floor)
        )


def squares_bound(bounds: Sequence[float]) -> float:
    """Return the l2 distance that one example moves the sums of squares over rows and columns, at most.

    Guarantee:
        The squares of a group clipped to ``C`` sum to at most ``C^2`` over its rows, and again over its columns, so the
        two lists of all groups move by at most ``sqrt(2 sum C^4)``. An example with one non-zero entry in every group
        attains the bound. Removing an example moves them by the same distance.
    """
    return math.sqrt(2 * math.fsum(checks.positive("bound", bound) ** 4 for bound in bounds))


@dataclass(kw_only=True)
class AdaptiveGaussianRun:
    """:class:`AdaptiveGaussian` in one run: the current units, and the secret squares of the current step."""

    noise: AdaptiveGaussian
    layout: Layout
    learning: LearningRun
    _step: int = 0
    _frame: Frame | None = field(default=None, repr=False)
    _squares: Tensor | None = field(default=None, repr=False)

    def begin(self, step: int, like: Tensor) -> StepUnits:
        if self._frame is None or self._frame.geometry is not self.learning.geometry:
            self._frame = Frame.of(self.learning.geometry, self.layout, like)
        self._step = step
        has_squares = self.noise.learning.share > 0
        self._squares = like.new_zeros(num_axis_sums(self.layout)).double() if has_squares else None
        return StepUnits(frame=self._frame, squares=self._squares)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add noise to the sum and to the squares, update the units, and return the sum in plain coordinates.

        Guarantee:
            Sum and squares are bounded in the units of this step and get independent Gaussian noise. The event combines
            the bounds and standard deviations that were really used. Later units depend only on released values. An
            empty batch releases pure noise, in both.

        Raises:
            LoopError: the sum was not clipped in the units of this step, or came without its squares.
        """
        frame, squares, share = self._frame, self._squares, self.noise.learning.share
        if frame is None or clipped.frame is not frame or clipped.squares is not squares:
            raise LoopError(
                "The sum does not belong to this step. Clip it in the units that begin() returned for this step."
            )
        multiplier = self.noise.multiplier
        bounds = clipped.sensitivity.bounds
        std = multiplier / math.sqrt(1 - share) * clipped.sensitivity.total
        source.add_normal(clipped.flat, std)
        limits, stds, squares_std = bounds, (std,) * len(bounds), 0.0
        if squares is not None:
            limit = squares_bound(bounds)
            squares_std = multiplier / math.sqrt(share) * limit
            source.add_normal(squares, squares_std)
            limits, stds = (*limits, limit), (*stds, squares_std)
        self._learn(clipped, frame, std, squares, squares_std)
        frame.rescale_(clipped.flat, power=1 - 2 * self.noise.preconditioning)
        return PrivateSum(
            flat=clipped.flat, layout=clipped.layout, event=gaussian_event(bounds=limits, stds=stds), noise_std=None
        )

    def _learn(self, clipped: ClippedSum, frame: Frame, std: float, squares: Tensor | None, squares_std: float) -> None:
        released, noise = np.zeros(0), np.zeros(0)
        if squares is None:
            # only PastGradients needs the sum, so only it pays for the copies
            plain, spread = clipped.flat.clone(), clipped.flat.new_full((clipped.flat.numel(),), std)
            frame.rescale_(plain, power=1.0)
            frame.rescale_(spread, power=1.0)
            released, noise = plain.double().cpu().numpy(), spread.double().cpu().numpy()
        found = None if squares is None else squares.cpu().numpy()
        self._squares = None
        self.learning.note(self._step, released, noise, found, squares_std)

    def restart(self) -> None:
        """Do nothing: every step has noise of its own."""

    def state(self) -> State:
        return self.learning.state()

    def restore(self, state: State) -> None:
        self.learning.restore(state)


@dataclass(kw_only=True)
class _SquaresRun:
    piece: ReleasedSquares
    layout: Layout
    power: float
    floor: float
    geometry: Factored
    _moments: Array | None = None
    _sums: Array | None = None
    _count: int = 0

    def note(self, step: int, released: Array, noise_std: Array, squares: Array | None, squares_std: float) -> None:
        if squares is None:
            raise LoopError("ReleasedSquares learns from squares, but the step released none.")
        self._sums = squares.copy() if self._sums is None else self._sums + squares
        self._count += 1
        if self._count < self.piece.every:
            return
        mean = self._sums / self._count
        # a row below the noise level is known to be small, but its size is unknown
        spread = squares_std / math.sqrt(self._count)
        found = SquareMoments(layout=self.layout, geometry=self.geometry, sums=np.maximum(mean, spread)).plain()
        keep = 0.0 if self._moments is None else self.piece.memory
        self._moments = found if self._moments is None else keep * self._moments + (1 - keep) * found
        self._sums, self._count = None, 0
        self._update_units()

    def _update_units(self) -> None:
        assert self._moments is not None
        self.geometry = units_from_flat(self.layout, self._moments, power=self.power, floor=self.floor)

    def state(self) -> State:
        found: dict[str, tuple[float, ...]] = {"count": (float(self._count),)}
        for name, values in (("moments", self._moments), ("sums", self._sums)):
            found[name] = () if values is None else tuple(values.tolist())
        return found

    def restore(self, state: State) -> None:
        size = num_axis_sums(self.layout)
        lengths = {"count": 1} | {name: size if state.get(name) else 0 for name in ("moments", "sums")}
        checked_state(state, lengths, "ReleasedSquares")
        self._moments, self._sums = (np.array(state[name]) if state[name] else None for name in ("moments", "sums"))
        self._count = int(state["count"][0])
        if self._moments is not None:
            self._update_units()


@dataclass(kw_only=True)
class _HistoryRun:
    piece: PastGradients
    layout: Layout
    power: float
    floor: float
    history: History
    geometry: Factored
    _seen: int = 0

    def note(self, step: int, released: Array, noise_std: Array, squares: Array | None, squares_std: float) -> None:
        self.history.note(released, noise_std)
        self._seen += 1
        if self._seen >= self.piece.first and (self._seen - self.piece.first) % self.piece.every == 0:
            self.geometry = self.history.geometry(power=self.power, floor=self.floor)

    def state(self) -> State:
        return {"seen": (float(self._seen),), "units": flat_units(self.geometry), **self.history.state()}

    def restore(self, state: State) -> None:
        moments = num_axis_sums(self.layout) if state.get("moments") else 0
        noise = len(self.layout.names) if moments else 0
        lengths = {"seen": 1, "units": len(flat_units(self.geometry)), "moments": moments, "noise": noise}
        checked_state(state, lengths, "PastGradients")
        self._seen = int(state["seen"][0])
        self.history.restore(state)
        self.geometry = plain_geometry(self.layout, state["units"])
