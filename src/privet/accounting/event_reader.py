"""Sorts an event into the releases that the accountants compose."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dp_accounting import dp_event

from privet import checks
from privet.accounting.mechanisms import (
    FixedSizeGaussian,
    Mechanism,
    SampledLaplace,
    SampledPure,
    TruncatedGaussian,
)
from privet.accounting.product_laplace import SampledProductLaplace
from privet.accounting.radial_laplace import SampledRadialLaplace
from privet.accounting.random_allocation import AllocatedGaussian
from privet.accounting.renyi import SampledGaussian
from privet.accounting.sampled_records import SampledRecords
from privet.errors import ArgumentError
from privet.mechanism.events import (
    DpEvent,
    L2LaplaceDpEvent,
    ProductLaplaceDpEvent,
    PureDpEvent,
    RandomAllocationDpEvent,
    SampledRecordsDpEvent,
    TotalVariationDpEvent,
    flatten,
    fuse_gaussians,
)

_LEAST_NOISE = 1e-150

__all__ = ["Releases", "SampledGaussian", "Selection", "read_releases"]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A search with a random number of runs that releases only the best one.

    Attributes:
        one_run: The releases of a single run.
        mean: Expected number of runs.
        shape: Shape of the truncated negative binomial distribution of the number of runs: 1 geometric, 0 logarithmic,
            inf Poisson.
    """

    one_run: Releases
    mean: float
    shape: float


@dataclass(frozen=True, kw_only=True)
class Releases:
    """An event, sorted into releases with a closed-form sum and releases that need numerical composition.

    Attributes:
        signal_to_noise: Root of the sum of 1 / z^2 over all Gaussian releases on the whole data set; 0 for none.
        sampled: The Gaussian releases on Poisson samples, equal ones merged.
        nothing_hidden: Whether some release has no noise, so that no finite epsilon exists.
        unknown: Names of unknown events; empty if the other fields describe the whole event.
        others: All other single releases, each with its count.
        selections: Searches, each with its count.
        total_variation: Probability, over all steps, that the run differs from the described one.
    """

    signal_to_noise: float
    sampled: tuple[SampledGaussian, ...]
    nothing_hidden: bool
    unknown: tuple[str, ...]
    others: tuple[tuple[Mechanism, int], ...] = ()
    selections: tuple[tuple[Selection, int], ...] = ()
    total_variation: float = 0.0

    @property
    def num_parts(self) -> int:
        """The number of different releases, each of which takes about 300 bytes."""
        return len(self.sampled) + len(self.others) + len(self.selections)

    @property
    def is_empty(self) -> bool:
        """Whether the event has no release, apart from a difference in total variation."""
        return not (
            self.signal_to_noise
            or self.sampled
            or self.nothing_hidden
            or self.unknown
            or self.others
            or self.selections
        )


@dataclass
class _Sorter:
    """Collects the parts of an event by type."""

    precision: float = 0.0
    nothing_hidden: bool = False
    total_variation: float = 0.0
    sampled: dict[tuple[float, float], int] = field(default_factory=dict)
    others: dict[Mechanism, int] = field(default_factory=dict)
    selections: list[tuple[Selection, int]] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)

    def add(self, part: DpEvent, count: int) -> None:
        if isinstance(part, dp_event.NonPrivateDpEvent):
            self.nothing_hidden = True
        elif isinstance(part, TotalVariationDpEvent):
            self.total_variation += count * float(part.distance)
        elif isinstance(part, dp_event.RepeatAndSelectDpEvent):
            self._add_selection(part, count)
        elif isinstance(part, dp_event.TruncatedSubsampledGaussianDpEvent):
            self._add_truncated(part, count)
        elif isinstance(part, dp_event.SampledWithoutReplacementDpEvent):
            self._add_fixed_size(part, count)
        elif isinstance(part, RandomAllocationDpEvent):
            self._add_allocated(part, count)
        elif isinstance(part, SampledRecordsDpEvent):
            self._add_records(part, count)
        else:
            self._add_sampled(part, count)

    def _add_gaussian(self, rate: float, multiplier: float, count: int) -> None:
        if rate == 1:
            self.precision += count / multiplier / multiplier
        else:
            self.sampled[rate, multiplier] = self.sampled.get((rate, multiplier), 0) + count

    def _needs_accounting(self, rate: float, noise: float) -> bool:
        """Return False for a release that reveals nothing or everything, and record the second case."""
        if rate == 0 or math.isinf(noise):
            return False
        # The square of a smaller number underflows; an infinite epsilon is a safe answer.
        is_some = noise > _LEAST_NOISE
        self.nothing_hidden = self.nothing_hidden or not is_some
        return is_some

    def _add_other(self, mechanism: Mechanism, count: int) -> None:
        self.others[mechanism] = self.others.get(mechanism, 0) + count

    def _add_sampled(self, part: DpEvent, count: int) -> None:
        rate, inner = 1.0, [(part, 1)]
        if isinstance(part, dp_event.PoissonSampledDpEvent):
            rate, inner = float(part.sampling_probability), list(flatten(part.event))
        multiplier = _fused(inner)
        if multiplier is not None:
            if self._needs_accounting(rate, multiplier):
                self._add_gaussian(rate, multiplier, count)
            return
        # Several releases on the same sample are not a composition of sampled releases.
        one = inner[0][0] if len(inner) == 1 and inner[0][1] == 1 else None
        if isinstance(one, dp_event.LaplaceDpEvent):
            if self._needs_accounting(rate, float(one.noise_multiplier)):
                self._add_other(SampledLaplace(rate=rate, noise_multiplier=float(one.noise_multiplier)), count)
        elif isinstance(one, PureDpEvent):
            if self._needs_accounting(rate, math.inf if one.epsilon == 0 else 1 / one.epsilon):
                self._add_other(SampledPure(rate=rate, epsilon=float(one.epsilon)), count)
        elif isinstance(one, L2LaplaceDpEvent | ProductLaplaceDpEvent):
            self._add_l2_bounded(one, rate, count)
        else:
            self.unknown.add(_name(part))

    def _add_l2_bounded(self, one: L2LaplaceDpEvent | ProductLaplaceDpEvent, rate: float, count: int) -> None:
        """Add exponential noise under an l2 bound; in one dimension it is the ordinary Laplace mechanism."""
        if isinstance(one, ProductLaplaceDpEvent):
            if len(one.scales) != len(one.counts):
                raise ArgumentError(f"{len(one.scales)} scales need as many counts, got {len(one.counts)}.")
            if self._needs_accounting(rate, min(one.scales)):
                # coordinates with infinite noise reveal nothing
                finite = [(b, n) for b, n in zip(one.scales, one.counts, strict=True) if not math.isinf(b)]
                scales, counts = tuple(b for b, _ in finite), tuple(n for _, n in finite)
                self._add_other(SampledProductLaplace(rate=rate, scales=scales, counts=counts), count)
            return
        multiplier = float(one.noise_multiplier)
        if not self._needs_accounting(rate, multiplier):
            return
        if one.num_coordinates == 1:
            self._add_other(SampledLaplace(rate=rate, noise_multiplier=multiplier / math.sqrt(2)), count)
        else:
            dimension = one.num_coordinates
            self._add_other(SampledRadialLaplace(rate=rate, noise_multiplier=multiplier, dimension=dimension), count)

    def _add_truncated(self, part: DpEvent, count: int) -> None:
        rate, multiplier = float(part.sampling_probability), float(part.noise_multiplier)
        if not self._needs_accounting(rate, multiplier):
            return
        if part.truncated_batch_size >= part.dataset_size:
            self._add_gaussian(rate, multiplier, count)
            return
        mechanism = TruncatedGaussian(
            dataset_size=part.dataset_size,
            rate=rate,
            max_batch_size=part.truncated_batch_size,
            noise_multiplier=multiplier,
        )
        self._add_other(mechanism, count)

    def _add_fixed_size(self, part: DpEvent, count: int) -> None:
        if part.sample_size > part.source_dataset_size:
            raise ArgumentError(f"A sample of {part.sample_size} cannot be drawn from {part.source_dataset_size}.")
        multiplier = _fused(list(flatten(part.event)))
        if multiplier is None:
            self.unknown.add(_name(part))
        elif self._needs_accounting(1.0, multiplier):
            if part.sample_size == part.source_dataset_size:
                self._add_gaussian(1.0, multiplier, count)
            else:
                rate = part.sample_size / part.source_dataset_size
                self._add_other(FixedSizeGaussian(rate=rate, noise_multiplier=multiplier), count)

    def _add_allocated(self, part: RandomAllocationDpEvent, count: int) -> None:
        multiplier = _fused(list(flatten(part.event)))
        if multiplier is None:
            self.unknown.add(_name(part))
        elif self._needs_accounting(1.0, multiplier):
            if part.steps == 1:
                self._add_gaussian(1.0, multiplier, count)
            else:
                self._add_other(AllocatedGaussian(steps=part.steps, noise_multiplier=multiplier), count)

    def _add_records(self, part: SampledRecordsDpEvent, count: int) -> None:
        rate, records, multiplier = float(part.sampling_probability), part.num_records, float(part.noise_multiplier)
        if not self._needs_accounting(rate, multiplier):
            return
        if rate == 1:
            self._add_gaussian(1.0, multiplier / records, count)
        elif records == 1:
            self._add_gaussian(rate, multiplier, count)
        else:
            self._add_other(SampledRecords(rate=rate, num_records=records, noise_multiplier=multiplier), count)

    def _add_selection(self, part: DpEvent, count: int) -> None:
        mean = checks.positive("repeat_and_select.mean", part.mean)
        if mean < 1:
            raise ArgumentError(f"repeat_and_select.mean must be at least 1, got {mean!r}.")
        one_run = read_releases(part.event)
        if one_run.unknown or one_run.total_variation:
            self.unknown.add(_name(part))
        elif one_run.nothing_hidden:
            self.nothing_hidden = True
        elif not one_run.is_empty:
            self.selections.append((Selection(one_run=one_run, mean=mean, shape=float(part.shape)), count))


def read_releases(event: DpEvent) -> Releases:
    """Sort an event into releases.

    Edge cases: sampling rate 0 and infinite noise vanish; rate 1 counts as no sampling; zero noise sets
    ``nothing_hidden``; NaN and values out of range raise ``ArgumentError``.
    """
    sorter = _Sorter()
    for part, count in flatten(event):
        sorter.add(part, count)
    return Releases(
        signal_to_noise=math.sqrt(sorter.precision),
        sampled=tuple(
            SampledGaussian(rate=rate, noise_multiplier=multiplier, num_steps=count)
            for (rate, multiplier), count in sorted(sorter.sampled.items())
        ),
        nothing_hidden=sorter.nothing_hidden or math.isinf(sorter.precision),
        unknown=tuple(sorted(sorter.unknown)),
        others=tuple(sorter.others.items()),
        selections=tuple(sorter.selections),
        total_variation=min(1.0, sorter.total_variation),
    )


def _fused(inner: list[tuple[DpEvent, int]]) -> float | None:
    """Return the multiplier of the joint release of Gaussian events on the same sample; None for other events."""
    if not all(isinstance(event, dp_event.GaussianDpEvent) for event, _ in inner):
        return None
    return fuse_gaussians([event.noise_multiplier / math.sqrt(count) for event, count in inner])


def _name(part: DpEvent) -> str:
    sampled = dp_event.PoissonSampledDpEvent | dp_event.SampledWithoutReplacementDpEvent | RandomAllocationDpEvent
    if isinstance(part, sampled):
        return f"{type(part).__name__} of {type(part.event).__name__}"
    return type(part).__name__
