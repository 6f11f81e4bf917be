"""Noise in units that are learned while training: from a release inside every step, or from what was released anyway.

The units of a step follow from values released in earlier steps, so they are public when its batch is drawn; each step
is then an ordinary Gaussian release in its units, and steps compose adaptively at a cost that is known in advance.
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
    """Where learned units come from."""

    @property
    def share(self) -> float:
        """The part of a step's squared signal-to-noise ratio that its own release of squares takes; may be zero."""
        ...

    def start(self, layout: Layout, *, power: float, floor: float) -> LearningRun:
        """Begin with equal units."""
        ...


class LearningRun(Protocol):
    """Units as they stand in one run, and what is kept to go on."""

    geometry: Factored

    def note(self, step: int, released: Array, noise_std: Array, squares: Array | None, squares_std: float) -> None:
        """Take in what a step released: its sum in plain units and the squares, and the noise in both."""
        ...

    def state(self) -> State:
        """Return all that later units follow from."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a state."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReleasedSquares:
    """Units from noisy sums of squared clipped gradients over rows and columns, released inside every step.

    Attributes:
        share: The part of a step's squared signal-to-noise ratio that the squares take; the sum of the step gets the
            rest, so a tenth costs it five percent more noise.
        every: Steps whose releases are averaged before units move.
        memory: How much of the old moments is kept when they do.
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
    """Units from the noisy gradients of earlier steps: free, mostly noise, and the weakest source.

    Attributes:
        first: Steps before units move at all.
        every: Steps between moves.
        decay: Of the running mean of squares.
        floor_errors: How many standard errors of the noise a row must exceed to count.
    """

    first: int = 20
    every: int = 10
    decay: float = 0.98
    floor_errors: float = 2.0

    def __post_init__(self) -> None:
        checks.count("first", self.first)
        checks.count("every", self.every)
        checks.probability("decay", self.decay)
        checks.non_negative("floor_errors", self.floor_errors)

    @property
    def share(self) -> float:
        """Nothing is released beside the sum."""
        return 0.0

    def start(self, layout: Layout, *, power: float, floor: float) -> LearningRun:
        history = History(layout=layout, decay=self.decay, floor_errors=self.floor_errors)
        return _HistoryRun(
            piece=self, layout=layout, power=power, floor=floor, history=history, geometry=plain_geometry(layout)
        )


@dataclass(frozen=True, kw_only=True)
class AdaptiveGaussian(GaussianNoise):
    """Normal noise in learned units, on gradients that were clipped in the same units.

    Attributes:
        learning: Where the units come from.
        preconditioning: As in :class:`~privet.mechanism.shaped_noise.EllipticalGaussian`.
        power: Units are second moments to this power: 1/4 for plain steps, 1/2 for preconditioning 1.
        floor: The smallest share of the mean that a row, column or parameter may have.
        noise_multiplier: That of the one Gaussian release that costs what a step costs, squares included. None until
            the plan is calibrated.
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
        checks.positive("power", self.power)
        checks.positive("floor", self.floor)
        super().__post_init__()

    is_fixed: ClassVar[bool] = False

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Refuse: units are learned, so there must be a run that remembers them."""
        raise LoopError("AdaptiveGaussian learns during a run and adds no noise outside one. Start a session.")

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        """Refuse: the units of a step are known in its run alone."""
        raise LoopError("AdaptiveGaussian learns its units during a run, so a sum alone does not say them.")

    def start(self, layout: Layout, *, has_mask: bool) -> AdaptiveGaussianRun:
        """Begin a run with equal units.

        Raises:
            PlanError: if some coordinates are left out; nothing could be learned about them.
        """
        if has_mask:
            raise PlanError("AdaptiveGaussian learns units from all coordinates and cannot leave some out. Use NoMask.")
        return AdaptiveGaussianRun(
            noise=self, layout=layout, learning=self.learning.start(layout, power=self.power, floor=self.floor)
        )


def squares_bound(bounds: Sequence[float]) -> float:
    """Return how far one example moves the sums of squares over rows and columns, in length.

    Guarantee:
        The squares of a group clipped to ``C`` add up to at most ``C^2`` over its rows, and again over its columns, so
        the two lists of all groups move by at most ``sqrt(2 sum C^4)``. One example in one entry of every group
        reaches it. The squares of a removed example are subtracted, which is as far.
    """
    return math.sqrt(2 * math.fsum(checks.positive("bound", bound) ** 4 for bound in bounds))


@dataclass(kw_only=True)
class AdaptiveGaussianRun:
    """:class:`AdaptiveGaussian` in one run: the units as learned so far, and the present step's secret squares."""

    noise: AdaptiveGaussian
    layout: Layout
    learning: LearningRun
    _step: int = 0
    _frame: Frame | None = field(default=None, repr=False)
    _squares: Tensor | None = field(default=None, repr=False)

    def begin(self, step: int, like: Tensor) -> StepUnits:
        """Bind the present units; squares start from zero."""
        if self._frame is None or self._frame.geometry is not self.learning.geometry:
            self._frame = Frame.of(self.learning.geometry, self.layout, like)
        self._step = step
        is_asked = self.noise.learning.share > 0
        self._squares = like.new_zeros(num_axis_sums(self.layout)).double() if is_asked else None
        return StepUnits(frame=self._frame, squares=self._squares)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add noise to the sum and to the squares, learn from both, and go back to plain coordinates.

        Guarantee:
            Sum and squares are bounded in the units of this step and get independent Gaussian noise; the event fuses
            both from the sizes really used. Later units depend on released values alone. An empty batch releases
            noise alone, in both.

        Raises:
            LoopError: if the sum was not clipped in the units of this step, or came without its squares.
        """
        frame, squares, share = self._frame, self._squares, self.noise.learning.share
        if frame is None or clipped.frame is not frame or clipped.squares is not squares:
            raise LoopError("The sum was not made for this step: begin() gives the units and the place for squares.")
        multiplier = self.noise.multiplier
        bounds = clipped.sensitivity.bounds
        std = multiplier / math.sqrt(1 - share) * clipped.sensitivity.total
        source.add_normal(clipped.flat, std)
        limits, stds, squares_std = list(bounds), [std] * len(bounds), 0.0
        if squares is not None:
            limit = squares_bound(bounds)
            squares_std = multiplier / math.sqrt(share) * limit
            source.add_normal(squares, squares_std)
            limits.append(limit)
            stds.append(squares_std)
        self._frame_is_used(clipped, frame, std, squares, squares_std)
        return PrivateSum(
            flat=clipped.flat, layout=clipped.layout, event=gaussian_event(bounds=limits, stds=stds), noise_std=None
        )

    def _frame_is_used(
        self, clipped: ClippedSum, frame: Frame, std: float, squares: Tensor | None, squares_std: float
    ) -> None:
        released, noise = np.zeros(0), np.zeros(0)
        if squares is None:
            # only history looks at the sum, so only it pays for the copies
            plain, spread = clipped.flat.clone(), clipped.flat.new_full((clipped.flat.numel(),), std)
            frame.rescale_(plain, power=1.0)
            frame.rescale_(spread, power=1.0)
            released, noise = plain.double().cpu().numpy(), spread.double().cpu().numpy()
        found = None if squares is None else squares.cpu().numpy()
        self._squares = None
        self.learning.note(self._step, released, noise, found, squares_std)
        frame.rescale_(clipped.flat, power=1 - 2 * self.noise.preconditioning)

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
            raise LoopError("ReleasedSquares learns from squares, and the step released none.")
        self._sums = squares.copy() if self._sums is None else self._sums + squares
        self._count += 1
        if self._count < self.piece.every:
            return
        mean = self._sums / self._count
        # a row below the noise is known to be small, not how small
        spread = squares_std / math.sqrt(self._count)
        found = SquareMoments(layout=self.layout, geometry=self.geometry, sums=np.maximum(mean, spread)).plain()
        keep = 0.0 if self._moments is None else self.piece.memory
        self._moments = found if self._moments is None else keep * self._moments + (1 - keep) * found
        self._sums, self._count = None, 0
        self._move()

    def _move(self) -> None:
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
            self._move()


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
