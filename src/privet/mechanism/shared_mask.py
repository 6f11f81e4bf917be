"""A random mask that several parties draw alike, from one public number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from privet import checks
from privet.mechanism.granularity import Coordinates, Granularity, Kept
from privet.mechanism.layout import Layout
from privet.mechanism.masking import RandomMask, RandomMaskRun
from privet.mechanism.schedules import RateSchedule
from privet.mechanism.sums import PrivateSum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SharedRandomMask:
    """Mask a random share of the coordinates; which ones follows from ``seed`` and the number of the step alone.

    Parties that hold the same plan agree on the kept coordinates without telling each other, so that a message needs
    the values and one number, not the list of their places.

    Guarantee:
        As for :class:`~privet.mechanism.masking.RandomMask`: the mask does not depend on the data, so it is free (Zhu
        and Blaschko 2023, Theorem 3.1). The seed is public; it has no part in sampling or noise.

    Attributes:
        schedule: How large the share is in the course of the run. A rate of zero masks nothing.
        seed: Of the choice.
        granularity: What is masked as one.
        refresh_every: Logical steps between draws; None for one draw per epoch.
    """

    schedule: RateSchedule
    seed: int
    granularity: Granularity = field(default_factory=Coordinates)
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        """Refuse parts of the wrong kind, and seeds below zero."""
        object.__setattr__(self, "seed", checks.count("seed", self.seed, minimum=0))
        object.__setattr__(self, "refresh_every", self._random.refresh_every)

    @property
    def _random(self) -> RandomMask:
        return RandomMask(schedule=self.schedule, granularity=self.granularity, refresh_every=self.refresh_every)

    def start(self, *, layout: Layout, num_steps: int, steps_per_epoch: int) -> SharedRandomMaskRun:
        """Divide the layout and the run."""
        run = self._random.start(layout=layout, num_steps=num_steps, steps_per_epoch=steps_per_epoch)
        return SharedRandomMaskRun(run=run, seed=self.seed)


@dataclass(kw_only=True)
class SharedRandomMaskRun:
    """:class:`SharedRandomMask` in one run. Steps may be asked for in any order, and more than once."""

    run: RandomMaskRun
    seed: int

    def begin(self, step: int, rng: np.random.Generator, like: Tensor) -> Kept | None:
        """Return the mask of a step; nothing is drawn from ``rng``."""
        # by stretch, not by step: a party that joins in the middle of a stretch must draw what the others drew
        key = np.random.SeedSequence((self.seed, step // self.run.stretches.length))
        return self.run.begin(step, np.random.Generator(np.random.PCG64DXSM(key)), like)

    def watch(self, private: PrivateSum, *, kept: Kept | None) -> None:
        """Keep nothing."""
