"""Masks: the coordinates of the gradient that take part in a step.

A mask acts before norms are computed: only the kept coordinates are clipped and get noise (random sparsification; Zhu
and Blaschko 2023). A mask may depend on the private data only through earlier releases; then it is public and costs
nothing (their Theorem 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from privet import checks
from privet.errors import PlanError
from privet.mechanism.granularity import Coordinates, Granularity, Kept, MaskUnits
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import RateSchedule
from privet.mechanism.sums import PrivateSum

if TYPE_CHECKING:
    from torch import Tensor


class MaskRun(Protocol):
    """The state of a mask in one run."""

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the kept coordinates of a logical step, on the device of ``like``; None if all are kept.

        Guarantee:
            The choice depends on the step number, on ``rng`` (independent of the data; its draws may be public) and on
            released sums. The session calls this once per logical step, so all physical batches of a step share the
            mask: a mask that changed inside a step would leave coordinates in the sum without noise.
        """
        ...

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Record the noisy sum of the step, as released."""
        ...


@runtime_checkable
class Mask(Protocol):
    """A mask piece of a plan: public constants only.

    Attributes:
        is_whole: Whether every coordinate takes part in every step.
        is_public: Whether the plan alone determines the mask of every step.
        public_seed: The seed of a public mask; 0 if none is needed.
        final_rate: The share of masked coordinates at the end of a run.
    """

    is_whole: ClassVar[bool]
    is_public: ClassVar[bool]

    @property
    def public_seed(self) -> int: ...
    @property
    def final_rate(self) -> float: ...

    def steps_per_draw(self, steps_per_epoch: int) -> int | None:
        """Return the number of steps between changes of the mask; None for a constant mask."""
        ...

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> MaskRun:
        """Start a run of this many steps over a model of this layout."""
        ...


class ConstantMask:
    """A mask that the plan determines and that stays the same for the whole run."""

    is_whole: ClassVar[bool] = False
    is_public: ClassVar[bool] = True

    @property
    def public_seed(self) -> int:
        return 0

    def steps_per_draw(self, steps_per_epoch: int) -> int | None:
        return None


class PublicSeed:
    """A mask that a field of its plan, its seed, determines."""

    seed: int

    @property
    def public_seed(self) -> int:
        return self.seed


class ReleaseIndependentRun:
    """A run of a mask that does not depend on released sums."""

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class NoMask(ConstantMask):
    """Every coordinate takes part."""

    is_whole: ClassVar[bool] = True

    @property
    def final_rate(self) -> float:
        return 0.0

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> NoMaskRun:
        return NoMaskRun()


@dataclass(frozen=True, kw_only=True)
class NoMaskRun(ReleaseIndependentRun):
    """:class:`NoMask` in one run."""

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> None:
        return


@dataclass(frozen=True, kw_only=True)
class MaskPeriods:
    """The periods of a run, each with one mask: ``number`` periods of ``length`` steps."""

    schedule: RateSchedule
    length: int
    number: int

    def rate(self, index: int) -> float:
        # the only period of a run is also its last one
        return self.schedule.rate(min(1.0, index / (self.number - 1)) if self.number > 1 else 1.0)


@dataclass(frozen=True, kw_only=True)
class RedrawnMask:
    """A mask that is drawn anew in every period, at a rate that follows a schedule.

    Attributes:
        schedule: The masked share during the run. With a rate of zero training is bit-identical to training without a
            mask.
        granularity: The mask units: :class:`~privet.mechanism.granularity.Coordinates`, ``Rows`` or ``Blocks``. A
            ranked unit of several coordinates is ranked by their mean square.
        refresh_every: Logical steps between draws; None for one draw per epoch.
    """

    schedule: RateSchedule
    granularity: Granularity = field(default_factory=Coordinates)
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        _check_piece("schedule", self.schedule, RateSchedule)
        _check_piece("granularity", self.granularity, Granularity)
        if self.refresh_every is not None:
            checks.fields(self, checks.count, "refresh_every")

    is_whole: ClassVar[bool] = False
    is_public: ClassVar[bool] = False

    @property
    def public_seed(self) -> int:
        return 0

    @property
    def final_rate(self) -> float:
        return self.schedule.rate(1.0)

    def steps_per_draw(self, steps_per_epoch: int) -> int | None:
        return self.refresh_every or steps_per_epoch

    def periods(self, num_steps: int, steps_per_epoch: int) -> MaskPeriods:
        length = self.refresh_every or steps_per_epoch
        return MaskPeriods(schedule=self.schedule, length=length, number=-(-num_steps // length))


@dataclass(frozen=True, kw_only=True)
class RandomMask(RedrawnMask):
    """Mask a random share of the coordinates, the same ones for a whole period; see :class:`RedrawnMask`."""

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> RandomMaskRun:
        periods = self.periods(num_steps, steps_per_epoch)
        return RandomMaskRun(units=self.granularity.units(layout), periods=periods)


@dataclass(kw_only=True)
class RandomMaskRun(ReleaseIndependentRun):
    """:class:`RandomMask` in one run. A resumed run draws the current mask anew."""

    units: MaskUnits
    periods: MaskPeriods
    _index: int | None = None
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        index = step // self.periods.length
        if index != self._index:
            self._index, rate = index, self.periods.rate(index)
            is_empty = not any(self.units.num_dropped(rate))
            self._kept = None if is_empty else self.units.keep_largest(rate, rng.random(self.units.number), like)
        return self._kept


@dataclass(frozen=True, kw_only=True)
class SharedRandomMask(PublicSeed, RedrawnMask):
    """Mask a random share of the coordinates, determined by ``seed`` and the step number.

    Parties with the same plan agree on the kept coordinates without communication, so a message contains the values and
    one number instead of the list of indices.

    Guarantee:
        As for :class:`RandomMask`: the mask does not depend on the data, so it is free (Zhu and Blaschko 2023, Theorem
        3.1). The seed is public; sampling and noise do not use it.

    Attributes:
        seed: Seed of the mask. The other fields are those of :class:`RedrawnMask`.
    """

    seed: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.natural, "seed")
        super().__post_init__()

    is_public: ClassVar[bool] = True

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> SharedRandomMaskRun:
        periods = self.periods(num_steps, steps_per_epoch)
        return SharedRandomMaskRun(units=self.granularity.units(layout), periods=periods, seed=self.seed)


@dataclass(kw_only=True)
class SharedRandomMaskRun(RandomMaskRun):
    """:class:`SharedRandomMask` in one run. Steps may begin in any order, and more than once."""

    seed: int

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        # keyed by period, not by step: a party that joins in the middle of a period must draw the same mask
        key = np.random.SeedSequence((self.seed, step // self.periods.length))
        return super().begin(step, np.random.Generator(np.random.PCG64DXSM(key)), like)


@dataclass(frozen=True, kw_only=True)
class FrozenMask(PublicSeed, ConstantMask):
    """Mask a random share of the coordinates for the whole run: they keep their initial values.

    Attributes:
        rate: The masked share, in [0, 1).
        seed: Seed of the mask. It is part of the plan and public, so a resumed run freezes the same coordinates.
        granularity: The mask units.
    """

    rate: float
    seed: int = 0
    granularity: Granularity = field(default_factory=Coordinates)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.probability("rate", self.rate, allow_zero=True))
        checks.fields(self, checks.natural, "seed")
        _check_piece("granularity", self.granularity, Granularity)

    @property
    def final_rate(self) -> float:
        return self.rate

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> FrozenMaskRun:
        return FrozenMaskRun(units=self.granularity.units(layout), rate=self.rate, seed=self.seed)


@dataclass(kw_only=True)
class FrozenMaskRun(ReleaseIndependentRun):
    """:class:`FrozenMask` in one run."""

    units: MaskUnits
    rate: float
    seed: int
    _kept: Kept | None = None

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        if self._kept is None and any(self.units.num_dropped(self.rate)):
            scores = np.random.Generator(np.random.PCG64(self.seed)).random(self.units.number)
            self._kept = self.units.keep_largest(self.rate, scores, like)
        return self._kept


def _check_piece(name: str, piece: object, protocol: type) -> None:
    if isinstance(piece, type) or not isinstance(piece, protocol):
        raise PlanError(f"A mask's {name} must be a {protocol.__name__} piece, got {piece!r}.")
