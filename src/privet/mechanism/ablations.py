"""Private training with one half of its mechanism taken out, to see what the other half does. NOT PRIVATE.

A step is private because contributions are bounded *and* noise is added in proportion to the bound. Without either
there is no guarantee at all: the event of such a step is "not private", its epsilon is infinite, and guarantees and
reports of a run made with these pieces say why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dp_accounting import NonPrivateDpEvent

from privet import checks
from privet.errors import CheckpointError, PlanError
from privet.mechanism.clipping_runs import State
from privet.mechanism.noise import NormalSource
from privet.mechanism.sampling import Sampling
from privet.mechanism.sensitivity import Norm, Sensitivity
from privet.mechanism.sums import ClippedSum, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor


@runtime_checkable
class NotPrivate(Protocol):
    """A piece that takes the guarantee away."""

    @property
    def not_private_because(self) -> str:
        """The reason, for every guarantee of a plan with this piece."""
        ...


def amplified(sampling: Sampling, event: DpEvent) -> DpEvent:
    """Return the cost of one round, given that of one release which uses every example.

    Guarantee:
        As :meth:`~privet.mechanism.sampling.Sampling.amplify`. A release that hides nothing hides nothing of the
        examples it was drawn from either: no sampling makes it private.
    """
    return event if isinstance(event, NonPrivateDpEvent) else sampling.amplify(event)


@dataclass(frozen=True, kw_only=True)
class Unclipped:
    """Noise without clipping: gradients enter the sum as they are (Zhu and Blaschko 2023, Algorithm 2). NOT PRIVATE.

    Attributes:
        noise_unit: What the noise is a multiple of, in place of a bound: the noise on the sum has standard deviation
            ``noise_multiplier * noise_unit``.
    """

    noise_unit: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a unit that is not positive and finite."""
        object.__setattr__(self, "noise_unit", checks.positive("noise_unit", self.noise_unit))

    @property
    def not_private_because(self) -> str:
        """Nothing bounds one example's part."""
        return "gradients are not clipped, so that one example may move the sum by any amount"

    @property
    def norm_kind(self) -> Norm:
        """The noise is that of Euclidean lengths."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> UnclippedRule:
        """Share the unit among the groups."""
        bounds = (self.noise_unit / math.sqrt(num_groups),) * num_groups
        return UnclippedRule(sensitivity=Sensitivity(bounds=bounds))

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> UnclippedRun:
        """Bind to the groups."""
        return UnclippedRun(rule=self.for_groups(num_groups))

    def joint_event(self, event: DpEvent) -> DpEvent:
        """Return the event of a step that hides nothing, whatever the noise is."""
        return NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class UnclippedRule:
    """:class:`Unclipped` bound to a number of groups. ``sensitivity`` is the unit of the noise and bounds nothing."""

    sensitivity: Sensitivity

    def factors(self, norms: Tensor) -> Tensor:
        """Return 1, and 0 where the norm is not finite; an empty batch gives an empty result."""
        return norms.isfinite().to(norms.dtype)


@dataclass(frozen=True, kw_only=True)
class UnclippedRun:
    """:class:`Unclipped` in one run."""

    rule: UnclippedRule

    def begin(self, step: int, like: Tensor) -> UnclippedRule:
        """Return the one rule."""
        return self.rule

    def watch(self, norms: Tensor) -> None:
        """Keep nothing."""

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """Return the event of a step that hides nothing."""
        return NonPrivateDpEvent()

    def state(self) -> State:
        """Nothing evolves."""
        return {}

    def restore(self, state: State) -> None:
        """Refuse a state that belongs to another piece."""
        if state:
            raise CheckpointError(f"Unclipped keeps no state, but the checkpoint has {sorted(state)} for it.")


@dataclass(frozen=True, kw_only=True)
class NoNoise:
    """Clipping without noise: the clipped sum is used as it is (Zhu and Blaschko 2023, Algorithm 3). NOT PRIVATE."""

    @property
    def not_private_because(self) -> str:
        """Nothing hides the sum."""
        return "no noise is added, so that the sum itself is released"

    @property
    def norm_kind(self) -> Norm:
        """Any bound will do; the usual one is taken."""
        return Norm.L2

    def event(self) -> DpEvent:
        """Return the event of a release that hides nothing."""
        return NonPrivateDpEvent()

    def with_multiplier(self, noise_multiplier: float) -> NoNoise:
        """Refuse: there is nothing to scale."""
        raise PlanError("NoNoise() has no noise_multiplier and no calibration. Use Gaussian() for private training.")

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Hand the sum on as it is, with an event that says so."""
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=self.event(), noise_std=0.0)
