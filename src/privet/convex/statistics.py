"""Sufficient-statistics perturbation: least squares from one noisy release of second moments.

For features of norm at most one and one-hot labels, least squares depends on ``A = sum f f^T`` and ``B = sum f y^T``
only. Both are released once, jointly, with Gaussian noise; the solution is post-processing (Vu and Slavkovic, 2009;
Wang, 2018).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from dp_accounting import dp_event
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from privet import checks
from privet.accounting.gaussian_dp import gdp_mu
from privet.accounting.guarantee import SEEDED, Guarantee, guarantee, unverifiable_assumptions
from privet.accounting.ledger import Ledger
from privet.convex.features import DrawnFeatures, FeatureMap
from privet.errors import DataError
from privet.mechanism.events import DpEvent
from privet.mechanism.noise import calibrated_multiplier
from privet.training.randomness import Streams
from privet.training.release import BoundedTensors, ChargedRelease, Part
from privet.training.units import declared_rows
from privet.vocabulary import Adjacency, Release, Unit, one_item_of

_ROWS_AT_ONCE = 8192


def joint_sensitivity(label_weight: float, adjacency: Adjacency) -> float:
    """Return the sensitivity of ``(A, label_weight * B)`` to one record in Frobenius norm, for features of norm one.

    Guarantee: the exact supremum. One record adds ``(f f^T, w f y^T)``, of norm ``sqrt(1 + w^2)``. Replacing it changes
    the first part by ``sqrt(2 - 2 t^2)`` for features at cosine ``t``, and the second by ``w sqrt(2 - 2 t)`` for equal
    labels; the worst cosine is ``-w^2 / 2``, or -1 for weights above the root of two. The bound does not depend on the
    number of classes.
    Edge cases: with a weight of zero only A counts.
    """
    weight = checks.non_negative("label_weight", label_weight)
    if adjacency is not Adjacency.REPLACE_ONE:
        return math.sqrt(1 + weight**2)
    return math.sqrt(2 + 2 * weight**2 + weight**4 / 2) if weight**2 <= 2 else 2 * weight


@dataclass(frozen=True, kw_only=True)
class SufficientStatistics:
    """Private least squares on random features: one release, calibrated exactly.

    Attributes:
        features: The family of features; drawn without data.
        num_classes: Number of classes.
        delta: Delta of the guarantee.
        adjacency: The adjacency relation.
        unit: The unit of privacy that one record is.
        noise_multiplier: Standard deviation of the noise over the joint sensitivity; None until calibrated.
        label_weight: Weight of B relative to A in the joint release; a larger one gives B less noise and A more.
        ridge_share: Ridge of the solution, in units of the noise's typical spectral norm. Post-processing: it has no
            privacy cost.
    """

    features: FeatureMap
    num_classes: int
    delta: float
    adjacency: Adjacency
    unit: Unit
    noise_multiplier: float | None = None
    label_weight: float = 1.0
    ridge_share: float = 1.0

    def __post_init__(self) -> None:
        checks.require(self, checks.count, "num_classes")
        checks.require(self, checks.probability, "delta")
        checks.require(self, checks.positive, "label_weight", "ridge_share")
        if self.noise_multiplier is not None:
            checks.positive("noise_multiplier", self.noise_multiplier)

    def calibrated(self, *, epsilon: float) -> Self:
        """Return a copy with the smallest noise for this epsilon: exact, by Gaussian differential privacy."""
        return replace(self, noise_multiplier=1 / gdp_mu(checks.positive("epsilon", epsilon), self.delta))

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the joint release."""
        return calibrated_multiplier(type(self).__name__, self.noise_multiplier) * joint_sensitivity(
            self.label_weight, self.adjacency
        )

    @property
    def event(self) -> DpEvent:
        """The event of the release.

        An event states the noise over the norm that one record adds, and the accountant doubles that norm for
        replace-one. Here the exact sensitivity to a replacement is known, so the event cancels the doubling.
        """
        return dp_event.GaussianDpEvent(
            calibrated_multiplier(type(self).__name__, self.noise_multiplier) * self._factor
        )

    @property
    def _factor(self) -> float:
        return 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the release; it needs no data."""
        return self._guarantee(self.event, ())

    def _guarantee(self, event: DpEvent, reasons: tuple[str, ...]) -> Guarantee:
        return guarantee(
            event,
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
            released=Release.EVERY_ITERATE,
            assumptions=(
                "features are drawn without the data, and constants were not chosen by looking at them",
                "noise is treated as an ideal real-valued Gaussian",
                *unverifiable_assumptions(self.unit),
            ),
            not_private_because=reasons,
        )

    def fit(
        self, inputs: Tensor, labels: Tensor, *, seed: int | None = None, one_record_per_person: bool = False
    ) -> FittedStatistics:
        """Release the statistics of these records once, and solve.

        Args:
            inputs: One row per record, with any further axes.
            labels: Class numbers.
            seed: Makes the result repeatable and NOT PRIVATE.
            one_record_per_person: Declares that each row contains all data of one person, for ``Unit.PERSON``.

        Guarantee:
            The release is charged before a record is read. One record changes the sums by at most
            ``joint_sensitivity``. Every independent entry of ``(A, label_weight * B)`` gets its own noise; symmetric
            entries of A share one draw (off the diagonal with half the variance, so that the noise on A as a vector is
            spherical). Without records the release is noise alone.
        """
        if len(inputs) != len(labels):
            raise DataError("inputs and labels must be pairs, one label per record, and their numbers differ.")
        rows = declared_rows(TensorDataset(inputs, labels), one_per_person=one_record_per_person)
        one_item_of(rows).check(self.unit)
        streams = Streams.new(inputs.device, seed=seed)
        generator = torch.Generator(inputs.device).manual_seed(int(streams.masks.integers(2**63)))
        drawn = self.features.draw(inputs[0:1].flatten(1).shape[1], generator)
        ledger = Ledger.in_memory(hashlib.sha256(repr(self).encode()).hexdigest(), is_seeded=seed is not None)
        with ledger, ChargedRelease[tuple[Tensor, ...]](ledger, self.event) as release:
            second, mixed = _statistics(drawn, inputs, labels, self.num_classes)
            parts = [
                Part(values=second, std=self.noise_std, is_symmetric=True),
                Part(values=mixed.view(-1), std=self.noise_std / self.label_weight, weight=self.label_weight),
            ]
            bound = joint_sensitivity(self.label_weight, self.adjacency) / self._factor
            release.add_noise_and_compare(BoundedTensors(parts=parts, bound=bound, source=streams.noise))
        reasons = (SEEDED,) if ledger.is_seeded else ()
        return FittedStatistics(
            features=drawn,
            weights=_solve(second, mixed, self.ridge_share * self.noise_std),
            guarantee_=self._guarantee(ledger.event, reasons),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedStatistics:
    """A linear classifier on random features, and the guarantee of its release."""

    features: DrawnFeatures
    weights: Tensor
    guarantee_: Guarantee

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the predicted class of each input."""
        parts = torch.split(inputs.flatten(1), _ROWS_AT_ONCE)
        return torch.cat([(self.features(part) @ self.weights.to(part)).argmax(1) for part in parts])

    def score(self, inputs: Tensor, labels: Tensor) -> float:
        """Return the accuracy."""
        return float((self.predict(inputs) == labels).float().mean())


def _statistics(features: DrawnFeatures, inputs: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    flat = inputs.flatten(1)
    size = features(flat[0:0]).shape[1]
    second = torch.zeros(size, size, dtype=torch.float64, device=inputs.device)
    mixed = torch.zeros(size, num_classes, dtype=torch.float64, device=inputs.device)
    for start in range(0, len(flat), _ROWS_AT_ONCE):
        rows = features(flat[start : start + _ROWS_AT_ONCE])
        wanted = functional.one_hot(labels[start : start + _ROWS_AT_ONCE], num_classes).to(rows)
        second += rows.T @ rows
        mixed += rows.T @ wanted
    return second, mixed


def _solve(second: Tensor, mixed: Tensor, noise_std: float) -> Tensor:
    """Return the ridge solution; negative eigenvalues, which are due to noise, count as zero."""
    # about the spectral norm of the symmetric noise: a scale for the ridge that does not depend on the data
    ridge = noise_std * math.sqrt(2 * len(second))
    values, vectors = torch.linalg.eigh(second)
    scaled: Tensor = (vectors.T @ mixed) / (values.clamp_min(0.0) + ridge)[:, None]
    return torch.mm(vectors, scaled)
