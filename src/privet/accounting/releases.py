"""What an event amounts to, in the few numbers that every accountant needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import dp_event

from privet.mechanism.events import DpEvent, flatten, fuse_gaussians


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """``num_steps`` Gaussian releases, each on its own Poisson sample; 0 < rate < 1, 0 < noise_multiplier < inf."""

    rate: float
    noise_multiplier: float
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Releases:
    """An event, sorted into what can be added up exactly and what needs numerical composition.

    Attributes:
        signal_to_noise: Root of the sum of 1 / z^2 over all Gaussian releases on the whole data set (0: none).
        sampled: The Gaussian releases on Poisson samples, equal ones merged.
        nothing_hidden: True when some release has no noise: no finite epsilon exists.
        unknown: Names of events that are none of these; empty when the rest of the fields says everything.
    """

    signal_to_noise: float
    sampled: tuple[SampledGaussian, ...]
    nothing_hidden: bool
    unknown: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the event reveals nothing at all."""
        return not (self.signal_to_noise or self.sampled or self.nothing_hidden or self.unknown)


def read_releases(event: DpEvent) -> Releases:
    """Sort an event into releases.

    Edge cases: sampling rate 0 and infinite noise vanish; rate 1 counts as no sampling; zero noise sets
    ``nothing_hidden``; NaN and values out of range raise ``ArgumentError``.
    """
    precision, nothing_hidden = 0.0, False
    sampled: dict[tuple[float, float], int] = {}
    unknown: set[str] = set()
    for part, count in flatten(event):
        if isinstance(part, dp_event.NonPrivateDpEvent):
            nothing_hidden = True
            continue
        rate, multiplier = _rate_and_multiplier(part)
        if multiplier is None:
            unknown.add(_name(part))
        elif rate == 0 or math.isinf(multiplier):
            continue
        elif multiplier == 0:
            nothing_hidden = True
        elif rate == 1:
            precision += count / multiplier / multiplier
        else:
            sampled[rate, multiplier] = sampled.get((rate, multiplier), 0) + count
    return Releases(
        signal_to_noise=math.sqrt(precision),
        sampled=tuple(
            SampledGaussian(rate=rate, noise_multiplier=multiplier, num_steps=count)
            for (rate, multiplier), count in sorted(sampled.items())
        ),
        nothing_hidden=nothing_hidden or math.isinf(precision),
        unknown=tuple(sorted(unknown)),
    )


def _rate_and_multiplier(part: DpEvent) -> tuple[float, float | None]:
    if isinstance(part, dp_event.GaussianDpEvent):
        return 1.0, float(part.noise_multiplier)
    if isinstance(part, dp_event.PoissonSampledDpEvent):
        inner = list(flatten(part.event))
        if all(isinstance(event, dp_event.GaussianDpEvent) for event, _ in inner):
            # Several Gaussian releases on one and the same sample are one joint Gaussian release on it.
            fused = fuse_gaussians([event.noise_multiplier / math.sqrt(count) for event, count in inner])
            return float(part.sampling_probability), fused
    return 1.0, None


def _name(part: DpEvent) -> str:
    if isinstance(part, dp_event.PoissonSampledDpEvent):
        return f"{type(part).__name__} of {type(part.event).__name__}"
    return type(part).__name__
