"""What all arms of a comparison of noises share."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import dp_event

from privet.mechanism.events import DpEvent


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Poisson rate, steps and delta, when one record is added or removed."""

    rate: float
    steps: int
    delta: float

    def sampled(self, event: DpEvent) -> DpEvent:
        """Return what all steps cost when one costs this before sampling."""
        return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(self.rate, event), self.steps)
