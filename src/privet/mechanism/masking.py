"""Masks: which coordinates of the gradient take part in a step.

A mask acts before norms are taken, so what is kept is clipped by its own length, and noise is added to what is kept
alone (random sparsification; Zhu and Blaschko 2023). It must not depend on the private data but through what was
released before: then it is public, and free (their Theorem 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from privet import checks
from privet.errors import PlanError
from privet.mechanism.granularity import Coordinates, Granularity, Kept, Units
from privet.mechanism.layout import Layout
from privet.mechanism.schedules import RateSchedule
from privet.mechanism.sums import PrivateSum

if TYPE_CHECKING:
    from torch import Tensor


class MaskRun(Protocol):
    """A mask at work in one run."""

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return what takes part in a logical step, on the device of ``like``; None for everything.

        Guarantee:
            The choice depends on the step's number, on ``rng`` (which knows nothing of the data, and whose draws may be
            public) and on released sums. It is asked for once per logical step, so all physical batches of a step share
            it: a mask that changed inside a step would leave coordinates in the sum without noise.
        """
        ...

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Look at the step's noisy sum, as released."""
        ...


@runtime_checkable
class Mask(Protocol):
    """A mask piece of a plan: public constants only."""

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> MaskRun:
        """Begin a run of this many steps over a model of this layout."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoMask:
    """Every coordinate takes part."""

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> NoMaskRun:
        """There is nothing to bind."""
        return NoMaskRun()


@dataclass(frozen=True, kw_only=True)
class NoMaskRun:
    """:class:`NoMask` in one run."""

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> None:
        """Return None: keep everything, and draw nothing."""
        return

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Keep nothing."""


@dataclass(frozen=True, kw_only=True)
class RandomMask:
    """Mask a random share of the coordinates, the same ones until the mask is drawn anew.

    Attributes:
        schedule: How large the share is in the course of the run. A rate of zero is training without a mask, bit for
            bit.
        granularity: What is masked as one: :class:`~privet.mechanism.granularity.Coordinates`, ``Rows``, ``Blocks``.
        refresh_every: Logical steps between draws; None for one draw per epoch.
    """

    schedule: RateSchedule
    granularity: Granularity = field(default_factory=Coordinates)
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        """Refuse parts of the wrong kind."""
        _check(self.schedule, self.granularity)
        _check_refresh(self)

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> RandomMaskRun:
        """Divide the layout and the run."""
        stretches = _Stretches.of(self.schedule, self.refresh_every, num_steps, steps_per_epoch)
        return RandomMaskRun(units=self.granularity.units(layout), stretches=stretches)


@dataclass(frozen=True, kw_only=True)
class _Stretches:
    """A run divided into stretches of one mask each."""

    schedule: RateSchedule
    length: int
    number: int

    @classmethod
    def of(cls, schedule: RateSchedule, every: int | None, num_steps: int, steps_per_epoch: int) -> _Stretches:
        length = every or steps_per_epoch
        return cls(schedule=schedule, length=length, number=-(-num_steps // length))

    def rate(self, index: int) -> float:
        # the only stretch of a run is its last one, too
        return self.schedule.rate(min(1.0, index / (self.number - 1)) if self.number > 1 else 1.0)


@dataclass(kw_only=True)
class RandomMaskRun:
    """:class:`RandomMask` in one run. A resumed run draws the present mask anew."""

    units: Units
    stretches: _Stretches
    _index: int | None = None
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the present mask, drawn from ``rng`` at the first step of a stretch; see :meth:`MaskRun.begin`."""
        index = step // self.stretches.length
        if index != self._index:
            self._index, rate = index, self.stretches.rate(index)
            is_idle = not any(self.units.num_dropped(rate))
            self._kept = None if is_idle else self.units.keep_largest(rate, rng.random(self.units.number), like)
        return self._kept

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Keep nothing."""


@dataclass(frozen=True, kw_only=True)
class FrozenMask:
    """Mask a random share of the coordinates for the whole run: they keep the values they were initialised with.

    Attributes:
        rate: The share, in [0, 1).
        seed: Of the choice. It is part of the plan and public, so that a resumed run freezes the same coordinates.
        granularity: What is masked as one.
    """

    rate: float
    seed: int = 0
    granularity: Granularity = field(default_factory=Coordinates)

    def __post_init__(self) -> None:
        """Refuse a share out of range, and parts of the wrong kind."""
        object.__setattr__(self, "rate", checks.probability("rate", self.rate, allow_zero=True))
        object.__setattr__(self, "seed", checks.count("seed", self.seed, minimum=0))
        _check_piece("granularity", self.granularity, Granularity)

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> FrozenMaskRun:
        """Divide the layout."""
        return FrozenMaskRun(units=self.granularity.units(layout), rate=self.rate, seed=self.seed)


@dataclass(kw_only=True)
class FrozenMaskRun:
    """:class:`FrozenMask` in one run."""

    units: Units
    rate: float
    seed: int
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the one mask; nothing is drawn from ``rng``."""
        if self._kept is None and any(self.units.num_dropped(self.rate)):
            scores = np.random.Generator(np.random.PCG64(self.seed)).random(self.units.number)
            self._kept = self.units.keep_largest(self.rate, scores, like)
        return self._kept

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Keep nothing."""


@dataclass(frozen=True, kw_only=True)
class RankedMask:
    """Mask what past noisy gradients were smallest in (Zhu and Blaschko 2023, Algorithm 4, with line 20 corrected).

    Noisy sums are added up from one draw to the next; masked coordinates, which have no noisy sum, get noise of the
    same size in its place, so that they can come back. Printed as it is, line 20 of the algorithm adds up the gradients
    before noise, which would release them; here it is the noisy ones. Nothing is masked until there is a ranking: in
    the first stretch of a run, and from a resumption to the next draw.

    Guarantee:
        Ranking released values is post-processing: it costs nothing.

    Attributes:
        schedule: How large the share is in the course of the run.
        granularity: What is masked as one; a unit of several coordinates is ranked by their mean square.
        refresh_every: Logical steps between draws; None for one draw per epoch.
    """

    schedule: RateSchedule
    granularity: Granularity = field(default_factory=Coordinates)
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        """Refuse parts of the wrong kind."""
        _check(self.schedule, self.granularity)
        _check_refresh(self)

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> RankedMaskRun:
        """Divide the layout and the run."""
        stretches = _Stretches.of(self.schedule, self.refresh_every, num_steps, steps_per_epoch)
        return RankedMaskRun(units=self.granularity.units(layout), stretches=stretches)


@dataclass(kw_only=True)
class RankedMaskRun:
    """:class:`RankedMask` in one run: the noisy sums of the present stretch, added up."""

    units: Units
    stretches: _Stretches
    _index: int | None = None
    _kept: Kept | None = None
    _total: Tensor | None = field(default=None, repr=False)
    _missing_variance: float = 0.0

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the present mask, ranked at the first step of a stretch; see :meth:`MaskRun.begin`."""
        index = step // self.stretches.length
        if index != self._index:
            self._kept = self._ranked(self.stretches.rate(index), rng, like)
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


def _check(schedule: object, granularity: object) -> None:
    _check_piece("schedule", schedule, RateSchedule)
    _check_piece("granularity", granularity, Granularity)


def _check_piece(name: str, piece: object, protocol: type) -> None:
    if isinstance(piece, type) or not isinstance(piece, protocol):
        raise PlanError(f"A mask's {name} must be a {protocol.__name__} piece, got {piece!r}.")


def _check_refresh(mask: RandomMask | RankedMask) -> None:
    if mask.refresh_every is not None:
        object.__setattr__(mask, "refresh_every", checks.count("refresh_every", mask.refresh_every))
