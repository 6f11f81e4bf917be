"""Noise that is correlated between steps, so that it largely cancels in the sum of the updates.

Both pieces release ``C G + Z`` step by step for a lower triangular Toeplitz matrix ``C`` (:mod:`.factorisation`); the
optimizer gets ``G + C^-1 Z``. ``C`` is lower triangular and ``Z`` is normal, so gradients may depend on all earlier
releases (Denisov et al., 2022). All noise is kept in units of the sensitivity, so the bound may change from step to
step: a step divided by its own bound is at most 1 long.

A mechanism begins with a walk over the steps of a session and ends with it. What follows, in this process or in
another one, is a new mechanism with new noise: no noise is stored, and rows of two mechanisms share none.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from privet import checks
from privet.errors import ArgumentError, CheckpointError, LoopError, PlanError
from privet.mechanism import factorisation
from privet.mechanism.clipping import State
from privet.mechanism.events import gaussian_event
from privet.mechanism.layout import Layout
from privet.mechanism.noise import FixedNoise, Gaussian, GaussianNoise, NoiseRun, StepUnits
from privet.mechanism.sampling import Sampling
from privet.mechanism.sums import ClippedSum, NormalSource, NumberedSource, PrivateSum

if TYPE_CHECKING:
    from torch import Tensor

    from privet.mechanism.noise import Array

_FIRST_ROWS = 256
FREELY_KEPT = 1 << 29
"""Past draws that take at most this many bytes are kept: making them again would take time and save little."""


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise(GaussianNoise):
    """Normal noise made of ``coefficients``; a piece with one coefficient is :class:`~privet.noise.Gaussian`."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        values: object = self.coefficients
        if not isinstance(values, tuple | list) or not 0 < len(values) <= factorisation.MOST_BANDS:
            raise ArgumentError(
                f"coefficients must be 1 to {factorisation.MOST_BANDS} numbers, got {type(values).__name__}."
            )
        found = tuple(checks.number("coefficients", value) for value in values)
        if found[0] != 1 or not all(math.isfinite(value) for value in found):
            raise ArgumentError(f"coefficients must be finite and begin with 1, got {found[0]!r} and {len(found) - 1}.")
        object.__setattr__(self, "coefficients", found)
        super().__post_init__()

    @property
    def is_independent(self) -> bool:
        return len(self.coefficients) == 1

    is_spherical = is_recordable = is_independent  # with a single coefficient it is Gaussian noise

    @property
    def is_by_coordinate(self) -> bool:
        return True

    @property
    @abstractmethod
    def scale(self) -> float:
        """The size of Z over noise multiplier and bound."""

    @abstractmethod
    def weights(self, steps: int) -> Array:
        """Return the weights of the draws in the noise of a step, newest first: a row of C^-1."""

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise of a single coefficient; more of them belong to a run, which knows the earlier draws."""
        if not self.is_independent:
            raise LoopError(
                f"{type(self).__name__} correlates the noise of many steps and adds none outside a run. Start a "
                "session."
            )
        return Gaussian(noise_multiplier=self.multiplier).add(clipped, source)

    def _refuse_mask(self, has_mask: bool) -> None:
        if has_mask:
            raise PlanError(
                f"{type(self).__name__} has noise from earlier steps on every coordinate, and no cost is proven for "
                "masked ones. Use NoMask, or Gaussian noise."
            )


@dataclass(frozen=True, kw_only=True)
class BandedGaussian(CorrelatedNoise):
    """Normal noise with a banded factorisation (BandMF; Choquette-Choo et al. 2023, McKenna 2024, Kalinin 2024).

    The contribution of a record to one step reaches as many releases as there are bands. So it needs a sampling whose
    two uses of a record are at least that many steps apart: :class:`~privet.sampling.CyclicPoisson`, or
    :class:`~privet.sampling.Cyclic` batches in a fixed order. It keeps ``bands - 1`` vectors of noise in memory.

    Attributes:
        coefficients: The first column of C: 1, then numbers that are zero or more.
        noise_multiplier: The multiplier of the single Gaussian release with the cost of a round: the size of Z over the
            sensitivity of the sum and the length of ``coefficients``. None until the plan is calibrated.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.coefficients) < 0:
            raise ArgumentError(f"coefficients must be zero or more, got {min(self.coefficients)!r}.")

    @classmethod
    def square_root(cls, *, bands: int, momentum: float = 0.0, kept_weight: float = 1.0) -> Self:
        """Return the closed form: the square root of the workload, cut off after ``bands`` coefficients.

        Args:
            bands: Number of coefficients.
            momentum: Momentum of the optimizer.
            kept_weight: Factor that the weights keep in a step: one minus learning rate times weight decay.
        """
        return cls(coefficients=factorisation.square_root(bands, momentum=momentum, kept_weight=kept_weight))

    @classmethod
    def optimised(cls, *, bands: int, steps: int, momentum: float = 0.0, kept_weight: float = 1.0) -> Self:
        """Return the coefficients with the least error of the weights over ``steps`` steps."""
        return cls(coefficients=factorisation.optimised(bands, steps, momentum=momentum, kept_weight=kept_weight))

    @property
    def bands(self) -> int:
        """The number of releases that one contribution reaches."""
        return len(self.coefficients)

    @cached_property
    def scale(self) -> float:
        return math.sqrt(math.fsum(value * value for value in self.coefficients))

    def weights(self, steps: int) -> Array:
        return factorisation.inverse(self.coefficients, steps)

    def refusal(self, sampling: Sampling) -> str | None:
        if self.bands <= sampling.separation:
            return None
        return (
            f"BandedGaussian has {self.bands} bands, so two steps that use the same record must be at least that far "
            f"apart, but {type(sampling).__name__} allows {sampling.separation}. Use CyclicPoisson with "
            f"groups={self.bands}, Cyclic with as many batches, or fewer bands"
        )

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        if self.is_independent:
            return FixedNoise(noise=self, layout=layout)
        self._refuse_mask(has_mask)
        return BandedGaussianRun(noise=self, layout=layout)


@dataclass(frozen=True, kw_only=True)
class BandedInverseGaussian(CorrelatedNoise):
    """Normal noise whose inverse factorisation is banded (Kalinin et al. 2025): a short weighted sum of past draws.

    Draws of earlier steps can be made again from their numbers, so the noise of a large model takes no memory. Those of
    a small one, or of adapters, are kept, which is faster. A contribution reaches every later release. So the cost is
    proven for a fixed order alone (``Cyclic`` or ``FullBatch``), over a number of epochs that is known beforehand,
    without amplification by sampling.

    Attributes:
        coefficients: The first column of C^-1: 1, then numbers that are zero or less, so that C has no negative entry.
        batches: Batches of an epoch of the sampling, in a fixed order.
        epochs: Epochs of the sampling, at most.
        keeps_past: Keep the draws of ``bands - 1`` steps in memory, however much they take. Otherwise they are kept up
            to 512 MiB, and beyond that made again in every step. The noise is the same, bit for bit.
        noise_multiplier: The multiplier of a Gaussian release whose composition over all epochs costs as much as the
            run. None until the plan is calibrated.
    """

    batches: int
    epochs: int
    keeps_past: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, checks.count, "batches", "epochs")
        if max(self.coefficients[1:], default=0.0) > 0:
            raise ArgumentError("coefficients after the first must be zero or less: other signs have no proven bound.")
        if not isinstance(self.keeps_past, bool):
            raise ArgumentError(f"keeps_past must be True or False, got {self.keeps_past!r}.")

    @classmethod
    def square_root(cls, *, bands: int, batches: int, epochs: int, kept_weight: float = 1.0) -> Self:
        """Return the inverse square root of prefix sums, cut off after ``bands`` coefficients."""
        return cls(
            coefficients=factorisation.inverse_square_root(bands, kept_weight=kept_weight),
            batches=batches,
            epochs=epochs,
        )

    @classmethod
    def cancelling(cls, *, share: float, batches: int, epochs: int) -> Self:
        """Return noise that takes back ``share`` of the draw of the step before it (two coefficients)."""
        return cls(
            coefficients=(1.0, -checks.probability("share", share, allow_zero=True)), batches=batches, epochs=epochs
        )

    @cached_property
    def scale(self) -> float:
        steps = self.batches * self.epochs
        # the inverse of 1 minus a non-negative series is one; the transform leaves rounding errors below zero
        column = np.maximum(factorisation.inverse(self.coefficients, steps), 0.0)
        return math.sqrt(factorisation.fixed_order_square(column, batches=self.batches, epochs=self.epochs))

    def weights(self, steps: int) -> Array:
        found = np.zeros(steps)
        size = min(steps, len(self.coefficients))
        found[:size] = self.coefficients[:size]
        return found

    def refusal(self, sampling: Sampling) -> str | None:
        if self.is_independent:
            return None
        if sampling.fixed_batches is None:
            return (
                f"BandedInverseGaussian carries every contribution into all later releases, and no amplification by "
                f"{type(sampling).__name__} sampling is proven for it. Use Cyclic batches, or BandedGaussian"
            )
        if sampling.fixed_batches != self.batches or sampling.num_rounds > self.epochs:
            return (
                f"BandedInverseGaussian is made for {self.epochs} epochs of {self.batches} batches, but "
                f"{type(sampling).__name__} has {sampling.num_rounds} epochs of {sampling.fixed_batches}. Make both "
                "alike"
            )
        return None

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        if self.is_independent:
            return FixedNoise(noise=self, layout=layout)
        self._refuse_mask(has_mask)
        return BandedInverseGaussianRun(noise=self, layout=layout, freely_kept=FREELY_KEPT)


@dataclass(kw_only=True)
class _CorrelatedRun:
    """The common part of both runs: the size of the draws, the event, and the size of the noise of each step."""

    noise: CorrelatedNoise
    layout: Layout
    _step: int = 0
    _rows: list[float] = field(default_factory=list)

    def begin(self, step: int, like: Tensor) -> StepUnits:
        return StepUnits(frame=None, squares=None)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        if state:
            raise CheckpointError(f"Correlated noise is never stored, but the checkpoint has {sorted(state)} for it.")

    def _check(self, clipped: ClippedSum) -> None:
        if clipped.frame is not None:
            clipped.refuse_units(type(self.noise).__name__)
        if clipped.keep is not None:
            raise LoopError(f"{type(self.noise).__name__} has noise on every coordinate, and the sum is masked.")

    def _released(self, clipped: ClippedSum, noise: Tensor, std: float) -> PrivateSum:
        """Add the noise of the step, which is in units of the bound; ``std`` is the size of the draws Z."""
        total, bounds, scale = clipped.sensitivity.total, clipped.sensitivity.bounds, self.noise.scale
        clipped.flat.add_(noise, alpha=total)
        size = std * total
        event = gaussian_event(bounds=tuple(bound * scale for bound in bounds), stds=(size,) * len(bounds))
        row = self._row_length()
        self._step += 1
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=event, noise_std=size * row)

    def _row_length(self) -> float:
        """Return the length of the row of C^-1 of this step."""
        if self._step >= len(self._rows):
            squares = np.cumsum(self.noise.weights(max(_FIRST_ROWS, 2 * len(self._rows))) ** 2)
            self._rows = np.sqrt(squares).tolist()
        return self._rows[self._step]


@dataclass(kw_only=True)
class BandedGaussianRun(_CorrelatedRun):
    """:class:`BandedGaussian` in one run, with the noise of the last ``bands - 1`` steps in units of the bound."""

    _past: Tensor | None = field(default=None, repr=False)
    _turning: Tensor | None = field(default=None, repr=False)

    def restart(self) -> None:
        """Begin a new mechanism, whose rows share no noise with those before it."""
        self._step = 0
        if self._past is not None:
            self._past.zero_()

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add ``z_t - sum_j c_j noise_{t-j}``, where ``z_t`` is a fresh draw.

        Guarantee:
            The noise of all steps since :meth:`restart` is ``C^-1 Z`` with independent Z of the declared size, so
            everything released is a function of ``C G + Z``. A record moves ``C G`` by at most the bound times the
            length of ``coefficients`` for each of its uses, and uses at least ``bands`` steps apart move different
            rows: they compose as independent releases (Choquette-Choo et al. 2023, theorem 4, for secret coins). An
            empty batch releases pure noise.
        """
        self._check(clipped)
        std = self.noise.multiplier * self.noise.scale
        fresh = clipped.flat.new_zeros(clipped.flat.numel())
        source.add_normal(fresh, std)
        past, turning = self._memory(fresh)
        size = len(past)
        place = self._step % size
        # row r holds the noise of the newest step that is r modulo the number of rows
        fresh.addmv_(past.T, turning[size - place : 2 * size - place], alpha=-1.0)
        past[place].copy_(fresh)
        return self._released(clipped, fresh, std)

    def _memory(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if self._past is None or self._turning is None:
            later = self.noise.coefficients[1:]
            self._past = like.new_zeros(len(later), like.numel())
            self._turning = like.new_tensor([*later[::-1], *later[::-1]])
        return self._past, self._turning


@dataclass(kw_only=True)
class BandedInverseGaussianRun(_CorrelatedRun):
    """:class:`BandedInverseGaussian` in one run: the numbers of past draws, and the draws if they are kept.

    Attributes:
        freely_kept: Bytes of past draws that are kept without being asked for.
    """

    noise: BandedInverseGaussian
    freely_kept: int
    _numbers: list[int] = field(default_factory=list, repr=False)
    _kept: list[Tensor] = field(default_factory=list, repr=False)

    def restart(self) -> None:
        """Begin a new mechanism; its draws have new numbers."""
        self._step = 0
        self._numbers.clear()
        self._kept.clear()

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add ``sum_j d_j z_{t-j}`` over the draws since :meth:`restart`.

        Guarantee:
            Draw ``z_t`` is an independent vector of the declared size and the same at every call, so the noise of all
            steps is ``C^-1 Z``. A record moves ``C G`` by at most the bound times ``scale * sqrt(epochs)``; see
            :func:`privet.mechanism.factorisation.fixed_order_square`. An empty batch releases pure noise.

        Raises:
            LoopError: the source cannot repeat a draw.
        """
        self._check(clipped)
        if not isinstance(source, NumberedSource):
            raise LoopError(
                f"{type(source).__name__} cannot repeat a draw, which BandedInverseGaussian needs. Use the noise "
                "source of a session."
            )
        std, number = self.noise.multiplier * self.noise.scale, source.new_number()
        newest = _draw(clipped.flat, source, std, number)
        total = newest.clone()
        _, *later = self.noise.coefficients
        keeps = self.noise.keeps_past or len(later) * newest.nbytes <= self.freely_kept
        for place, (coefficient, past) in enumerate(zip(later, self._numbers, strict=False)):
            drawn = self._kept[place] if keeps else _draw(clipped.flat, source, std, past)
            total.add_(drawn, alpha=coefficient)
        self._numbers = [number, *self._numbers][: len(later)]
        if keeps:
            self._kept = [newest, *self._kept][: len(later)]
        return self._released(clipped, total, std)


def _draw(like: Tensor, source: NumberedSource, std: float, number: int) -> Tensor:
    drawn = like.new_zeros(like.numel())
    source.numbered(number).add_normal(drawn, std)
    return drawn
