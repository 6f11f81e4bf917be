"""Privacy events that ``dp_accounting`` does not have; :mod:`privet.mechanism.events` gives their JSON form."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import dp_event


@dataclass(frozen=True, kw_only=True)
class PureDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A release with a pure guarantee and no further known structure.

    Attributes:
        epsilon: Bound on the log-ratio of probabilities if one unit is added, removed or blanked. Replacing a unit is
            blanking one and adding another, so it is charged twice this bound.
    """

    epsilon: float


@dataclass(frozen=True, kw_only=True)
class TotalVariationDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """The run differs with at most this probability from the run that the other events describe.

    It is composed with other events and adds ``(1 + exp(epsilon)) * distance`` to their delta: if P and Q are within
    ``distance`` of P' and Q' in total variation, the hockey-stick divergence of P and Q exceeds that of P' and Q' by at
    most that amount.

    Attributes:
        distance: Bound on the total variation distance, for each of the two data sets.
    """

    distance: float


@dataclass(frozen=True, kw_only=True)
class L2LaplaceDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A release under noise of density ``exp(-length / scale)``.

    Attributes:
        noise_multiplier: Standard deviation of the noise in each coordinate, ``sqrt(num_coordinates + 1)`` scales,
            over the bound on the length of one unit's contribution.
        num_coordinates: Number of coordinates with noise.
    """

    noise_multiplier: float
    num_coordinates: int


@dataclass(frozen=True, kw_only=True)
class ProductLaplaceDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A release under independent Laplace noise, of a sum whose contributions are bounded in l2 norm.

    Attributes:
        scales: The different scales of the noise over the l2 bound.
        counts: The number of coordinates of each scale.
    """

    scales: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SampledRecordsDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """Gaussian noise on a Poisson sample of records, of which one unit has several.

    The number of the unit's records in the sample is binomial, so the pair is a mixture of Gaussians at the distances
    0, 1, ..., ``num_records`` against the one at 0.

    Attributes:
        sampling_probability: Probability of each record, independent of the others.
        num_records: The largest number of records of one unit.
        noise_multiplier: Standard deviation of the noise over the bound on the contribution of one *record*.
    """

    sampling_probability: float
    num_records: int
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class RandomAllocationDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A release at each of several steps, of which one, chosen uniformly and in secret, uses a given unit.

    Attributes:
        steps: Number of steps.
        event: One release that uses every unit.
    """

    steps: int
    event: dp_event.DpEvent
