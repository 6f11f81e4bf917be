"""A release besides the steps of a run: one noisy vector over private records, charged on the ledger of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import checks
from privet.accounting.calibration import calibrate_noise
from privet.accounting.ledger import Ledger, Purpose
from privet.accounting.ledger.further_ledger import FurtherLedger
from privet.mechanism.events import DpEvent, gaussian_event
from privet.training.randomness import Streams
from privet.training.release import BoundedTensors, ChargedRelease, Part, RoundLedger
from privet.vocabulary import Adjacency


@dataclass(frozen=True, kw_only=True)
class VectorRelease:
    """One vector of sums over private records with Gaussian noise; its cost is known without data.

    Attributes:
        purpose: The purpose of the release.
        noise_multiplier: Ratio of the noise to the largest change by one unit, in the norm of the vector's weights.
    """

    purpose: Purpose
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "noise_multiplier")

    @classmethod
    def calibrated(cls, *, purpose: Purpose, epsilon: float, delta: float, adjacency: Adjacency) -> VectorRelease:
        """Return the release with the least noise that spends at most this epsilon by itself."""
        found = calibrate_noise(_event, epsilon=epsilon, delta=delta, adjacency=adjacency)
        return cls(purpose=purpose, noise_multiplier=found)

    @property
    def event(self) -> DpEvent:
        """The cost of the release."""
        return _event(self.noise_multiplier)

    def release(
        self,
        read: Callable[[], NDArray[np.float64]],
        *,
        weights: NDArray[np.float64],
        ledger: Ledger,
    ) -> NDArray[np.float64]:
        """Charge the release, sum, add noise, and return the noisy vector.

        Args:
            read: Reads the private records and returns their vector. One added or removed unit moves it by at most 1
                in the norm that multiplies each number by its weight.
            weights: One positive weight per number. Public.
            ledger: The ledger of the run.

        Guarantee:
            The charge is durable before ``read`` is called. Every number gets independent Gaussian noise of
            ``noise_multiplier`` over its weight, so that the vector is one Gaussian release of that multiplier. A
            release that fails stays charged.
        Edge cases: a vector of another length than the weights, or with a number that is not finite, is refused after
            the charge.
        """
        round_ledger = FurtherLedger(ledger=ledger, purpose=self.purpose, coordinates=len(weights))
        return released_vector(read, weights=weights, noise_multiplier=self.noise_multiplier, ledger=round_ledger)


def released_vector(
    read: Callable[[], NDArray[np.float64]],
    *,
    weights: NDArray[np.float64],
    noise_multiplier: float,
    ledger: RoundLedger,
) -> NDArray[np.float64]:
    """Charge one Gaussian release on a ledger, sum, add noise, and return the noisy vector.

    Guarantee: see :meth:`VectorRelease.release`.
    """
    with ChargedRelease[tuple[Tensor, ...]](ledger, _event(noise_multiplier)) as release:
        vector = np.asarray(read(), dtype=np.float64)
        assert vector.shape == weights.shape, "a vector has one number per weight"
        assert bool(np.isfinite(vector).all()), "sums of bounded contributions are finite"
        source = Streams.new(torch.device("cpu"), seed=None).noise
        parts = [
            Part(values=torch.from_numpy(vector[first:last]), std=noise_multiplier / weight, weight=weight)
            for first, last, weight in _runs(weights)
        ]
        noisy = release.add_noise_and_compare(BoundedTensors(parts=parts, bound=1.0, source=source))
    return np.concatenate([part.numpy() for part in noisy.value])


def _event(noise_multiplier: float) -> DpEvent:
    return gaussian_event(bounds=(1.0,), stds=(noise_multiplier,))


def _runs(weights: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """Return (first, last, weight) of the stretches of equal weights."""
    ends = [*np.flatnonzero(np.diff(weights)) + 1, len(weights)]
    starts = [0, *ends[:-1]]
    return [(int(first), int(last), float(weights[first])) for first, last in zip(starts, ends, strict=True)]
