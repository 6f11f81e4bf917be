"""Normalisation by the channels' means and variances, released once with noise and paid for (Tramer and Boneh 2021).

Normalising by the mean over all examples lets every example into every other one's features. It is allowed if the means
are private themselves: each example's channels are summed up in two numbers, both are cut at a public bound, and
Gaussian noise is added to the sums over all examples. This is one more release of the same data, beside the training
that reads the normalised features; the guarantee of the model is that of both together.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from privet import checks
from privet.accounting.calibration import calibrate_noise
from privet.accounting.guarantee import Guarantee, guarantee
from privet.accounting.ledger import Ledger
from privet.errors import DataError, PlanError
from privet.mechanism.events import DpEvent, compose, gaussian_event
from privet.mechanism.geometry import positive_units
from privet.plan import Plan
from privet.training.randomness import Streams
from privet.training.release import BoundedTensors, ChargedRelease, Part
from privet.vocabulary import Release

_CHUNK = 1024


class ChannelNorm(nn.Module):
    """Subtracts a mean from every channel and divides by a standard deviation. Nothing in it is learned.

    Both belong to the model's state, so that what is saved normalises new examples as it did the old ones.
    """

    def __init__(self, means: Tensor, stds: Tensor) -> None:
        """Hold one mean and one positive standard deviation per channel."""
        super().__init__()
        self.means: Tensor
        self.stds: Tensor
        self.register_buffer("means", means)
        self.register_buffer("stds", stds)

    def forward(self, features: Tensor) -> Tensor:
        """Normalise features ``[example, channel, ...]``."""
        shape = [-1] + [1] * (features.dim() - 2)
        return (features - self.means.view(shape)) / self.stds.view(shape)


@dataclass(frozen=True, kw_only=True)
class PrivateNormalisation:
    """A release of channel means and variances. Public constants only: no data is needed to know what it costs.

    Attributes:
        bounds: One positive number per channel: the largest root mean square that an example's channel counts with.
            Choose them without looking at the private data. Too small ones cut, too large ones drown in noise.
        dataset_size: Declared number of examples, by which sums are divided.
        noise_multiplier: Noise over the sensitivity of all sums together.
    """

    bounds: tuple[float, ...]
    dataset_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse numbers that bound or hide nothing."""
        checks.fields(self, positive_units, "bounds")
        checks.fields(self, checks.count, "dataset_size")
        checks.fields(self, checks.positive, "noise_multiplier")

    @property
    def event(self) -> DpEvent:
        """What the release costs."""
        return gaussian_event(bounds=(1.0,), stds=(self.noise_multiplier,))

    @property
    def sensitivity(self) -> float:
        """How far one example moves the sums: two numbers per channel, in units of the bounds at most one each."""
        return math.sqrt(2 * len(self.bounds))

    def calibrated(self, plan: Plan, *, epsilon: float) -> Plan:
        """Return the plan with the least noise at which release and training together keep epsilon.

        Raises:
            PlanError: the plan has no guarantee that can be added to another.
            CalibrationError: the release alone spends epsilon.
        """
        _check_addable(plan)
        if plan.not_private_because:
            raise PlanError(f"No noise makes this plan private: {'; '.join(plan.not_private_because)}.")
        multiplier = calibrate_noise(
            lambda value: self._with(replace(plan, noise=plan.noise.with_multiplier(value))),
            epsilon=epsilon,
            delta=plan.delta,
            adjacency=plan.adjacency,
        )
        return replace(plan, noise=plan.noise.with_multiplier(multiplier))

    def guarantee(self, plan: Plan) -> Guarantee:
        """Account release and training together: the guarantee of a model trained on the normalised features.

        Raises:
            PlanError: the plan has no guarantee that can be added to another.
        """
        _check_addable(plan)
        return guarantee(
            self._with(plan),
            delta=plan.delta,
            adjacency=plan.adjacency,
            unit=plan.unit,
            assumptions=(
                *plan.assumptions,
                "bounds and declared size of the normalisation are public and were not chosen by looking at the data",
            ),
            not_private_because=plan.not_private_because,
        )

    def _with(self, plan: Plan) -> DpEvent:
        return compose([(plan.event, 1), (self.event, 1)])

    def release(
        self, features: Tensor, *, ledger: Ledger | None = None, seed: int | None = None
    ) -> tuple[ChannelNorm, Ledger]:
        """Release the normalisation of private features, once, and charge it.

        Args:
            features: ``[example, channel, ...]``, one row per unit of privacy; those that the plan will train on.
            ledger: Where to charge; a new one in memory otherwise.
            seed: Makes the release repeatable and NOT PRIVATE; for tests and studies on public data.

        Guarantee:
            Of each example and channel the mean counts within plus and minus the bound, and the mean square up to the
            bound's square. Over the bounds, adding or removing one example moves all sums together by at most
            ``sqrt(2 * channels)`` in length; noise of ``noise_multiplier`` times that is added to every sum. The round
            is charged before any example is read. An example with a NaN counts as zero; none at all releases noise
            alone. Everything after is post-processing.
        """
        if features.dim() < 2 or features.shape[1] != len(self.bounds):
            raise DataError(
                f"The normalisation has bounds for {len(self.bounds)} channels, and the features have the shape "
                f"{list(features.shape)}. Features are [example, channel, ...], with one bound per channel."
            )
        book = ledger or Ledger.in_memory(hashlib.sha256(repr(self).encode()).hexdigest())
        bounds = torch.tensor(self.bounds, dtype=torch.float64, device=features.device)
        std = self.noise_multiplier * self.sensitivity
        with ChargedRelease[tuple[Tensor, ...]](book, self.event) as release:
            sums = _sums(features, bounds)
            source = Streams.new(sums.device, seed=seed).noise
            release.add_noise_and_compare(
                BoundedTensors(parts=[Part(values=sums, std=std)], bound=self.sensitivity, source=source)
            )
        means, squares = (sums / self.dataset_size).view(2, -1)
        # a variance below the noise cannot be told from zero
        variances = (squares - means.square()).clamp(min=min(1.0, std / self.dataset_size))
        dtype = features.dtype
        return ChannelNorm((means * bounds).to(dtype), (variances.sqrt() * bounds).to(dtype)), book


def _sums(features: Tensor, bounds: Tensor) -> Tensor:
    """Return the sums over examples of clipped channel means and mean squares, in units of the bounds."""
    total = torch.zeros(2 * len(bounds), dtype=torch.float64, device=features.device)
    for piece in torch.split(features, _CHUNK):
        values = piece.double().flatten(2) if piece.dim() > 2 else piece.double().unsqueeze(2)
        values = values / bounds.view(-1, 1)
        clipped = torch.cat([values.mean(2).clamp(-1.0, 1.0), values.square().mean(2).clamp(0.0, 1.0)], 1)
        total += torch.where(clipped.isnan().any(1, keepdim=True), 0.0, clipped).sum(0)
    return total


def _check_addable(plan: Plan) -> None:
    if plan.release is not Release.EVERY_ITERATE:
        raise PlanError(
            "The bound on the last iterate holds for fixed features, not for ones that were normalised by a release of "
            "their own. Set release=Release.EVERY_ITERATE."
        )
