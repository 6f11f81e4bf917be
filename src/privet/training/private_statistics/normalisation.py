"""Normalisation by channel means and variances, which are released once with noise and charged (Tramer and Boneh 2021).

A mean over all examples makes the features of every example depend on all others. This is private if the means are
private: the mean and the mean square of every channel of an example are clipped to public bounds, and Gaussian noise is
added to their sums over all examples. The training reads the same data through the normalised features, so the
guarantee of the model is that of the composition of both releases.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privet import checks
from privet.accounting.calibration import calibrate_noise
from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger
from privet.errors import DataError, PlanError
from privet.mechanism.events import DpEvent, compose, gaussian_event
from privet.mechanism.geometry import positive_units
from privet.plan import Plan
from privet.training.distributed.shared_release import SharedRelease
from privet.training.release import BoundedTensors, ChargedRelease, Part
from privet.vocabulary import Release

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_CHUNK = 1024


class ChannelNorm(nn.Module):
    """Subtracts a mean from every channel and divides by a standard deviation. It has no trainable parameters.

    Both are buffers, so a saved model normalises new examples in the same way.
    """

    def __init__(self, means: Tensor, stds: Tensor) -> None:
        """Take one mean and one positive standard deviation per channel."""
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
    """A release of channel means and variances; the constants are public, so the cost is known without data.

    Attributes:
        bounds: One positive number per channel: the bound on the root mean square of the channel in an example. Choose
            them without looking at the private data. A small bound clips much; a large bound needs more noise.
        dataset_size: Declared number of examples; the divisor of the sums.
        noise_multiplier: Ratio of the noise to the joint sensitivity of all sums.
    """

    bounds: tuple[float, ...]
    dataset_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.fields(self, positive_units, "bounds")
        checks.fields(self, checks.count, "dataset_size")
        checks.fields(self, checks.positive, "noise_multiplier")

    @property
    def event(self) -> DpEvent:
        """The cost of the release."""
        return gaussian_event(bounds=(1.0,), stds=(self.noise_multiplier,))

    @property
    def sensitivity(self) -> float:
        """Joint l2 sensitivity of the sums: two numbers per channel, each at most 1 in units of the bounds."""
        return math.sqrt(2 * len(self.bounds))

    def calibrated(self, plan: Plan, *, epsilon: float) -> Plan:
        """Return the plan with the least noise at which the composition of release and training spends at most epsilon.

        Raises:
            PlanError: the guarantee of the plan cannot be composed with another.
            CalibrationError: the release alone exceeds epsilon.
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
        """Return the guarantee of a model that is trained on the normalised features: that of release and training.

        Raises:
            PlanError: the guarantee of the plan cannot be composed with another.
        """
        _check_addable(plan)
        words = "bounds and declared size of the normalisation are public and were not chosen by looking at the data"
        return plan.account_event(self._with(plan), assumptions=(words,))

    def _with(self, plan: Plan) -> DpEvent:
        return compose([(plan.event, 1), (self.event, 1)])

    def release(
        self,
        features: Tensor,
        *,
        ledger: Ledger | None = None,
        seed: int | None = None,
        group: ProcessGroup | DeviceMesh | None = None,
    ) -> tuple[ChannelNorm, Ledger]:
        """Charge and release the normalisation of private features.

        Args:
            features: The training features ``[example, channel, ...]``, one row per unit of privacy.
            ledger: The ledger to charge; a new one in memory by default.
            seed: Makes the release repeatable and NOT PRIVATE; for tests and studies on public data.
            group: As for ``privatize``: the processes that release together, each of them with all features.

        Guarantee:
            The mean of every channel of an example is clipped to plus and minus the bound, and its mean square to the
            square of the bound. In units of the bounds, one added or removed example changes the vector of all sums by
            at most ``sqrt(2 * channels)`` in l2 norm; every sum gets noise of ``noise_multiplier`` times that. The
            round is charged before any example is read. An example with a NaN counts as zero. Without examples, noise
            alone is released. All later computation is post-processing.
        """
        if features.dim() < 2 or features.shape[1] != len(self.bounds):
            raise DataError(
                f"The normalisation has bounds for {len(self.bounds)} channels, and the features have the shape "
                f"{list(features.shape)}. Features are [example, channel, ...], with one bound per channel."
            )
        shared = SharedRelease.of(group)
        kept = ledger or shared.ledger(hashlib.sha256(repr(self).encode()).hexdigest())
        bounds = torch.tensor(self.bounds, dtype=torch.float64, device=features.device)
        std = self.noise_multiplier * self.sensitivity
        with shared.together(), ChargedRelease[tuple[Tensor, ...]](shared.ledger_of_ranks(kept), self.event) as release:
            source = shared.source(features.device, torch.float64, seed=seed, data={"features": features})
            sums = shared.add_up_(_sums(shared.part(features), bounds))
            release.add_noise_and_compare(
                BoundedTensors(parts=[Part(values=sums, std=std)], bound=self.sensitivity, source=source)
            )
        means, squares = (sums / self.dataset_size).view(2, -1)
        # a variance below the noise cannot be distinguished from zero
        variances = (squares - means.square()).clamp(min=min(1.0, std / self.dataset_size))
        dtype = features.dtype
        return ChannelNorm((means * bounds).to(dtype), (variances.sqrt() * bounds).to(dtype)), kept


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
            "The bound on the last iterate holds for fixed features, not for features that depend on a release from "
            "the same data. Set release=Release.EVERY_ITERATE."
        )
    if plan.sampling.contribution is not None:
        raise PlanError(
            "The normalisation is charged for one row of features per unit of privacy, and a person of this plan has "
            "several records. Normalise by public constants, or train a plan without persons' records."
        )
