"""Ablations: a step without clipping, or without noise. NOT PRIVATE.

A step is private because contributions are bounded *and* noise is added in proportion to the bound. A step that lacks
either has no guarantee: its event is ``NonPrivateDpEvent``, its epsilon is infinite, and the guarantee and the reports
of the run state the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting import NonPrivateDpEvent

from privet import checks
from privet.errors import PlanError
from privet.mechanism.clipping import BoundRule, ClippingRun, FixedClipping, FixedRun, shared_bounds
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Array, FixedNoise, NoiseFamily, NoiseRun, newest_alone
from privet.mechanism.sampling import Sampling
from privet.mechanism.sensitivity import Norm, Sensitivity
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Unclipped(FixedClipping):
    """Noise without clipping: gradients enter the sum unchanged (Zhu and Blaschko 2023, Algorithm 2). NOT PRIVATE.

    Attributes:
        noise_unit: Replaces the bound as the scale of the noise: the noise on the sum has standard deviation
            ``noise_multiplier * noise_unit``. The ``sensitivity`` of the rule is this number and bounds nothing.
    """

    noise_unit: float = 1.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "noise_unit")

    not_private_because: ClassVar[str | None] = (
        "gradients are not clipped, so that one example may move the sum by any amount"
    )

    def for_groups(self, num_groups: int) -> BoundRule:
        bounds = shared_bounds(self.noise_unit, num_groups, type(self).__name__)
        return BoundRule(piece=self, sensitivity=Sensitivity(bounds=bounds))

    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        """Return 1, and 0 where the norm is not finite; an empty batch gives an empty result."""
        return norms.isfinite().to(norms.dtype)

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ClippingRun:
        return UnclippedRun(rule=self.for_groups(num_groups))

    def joint_event(self, event: DpEvent) -> DpEvent:
        return NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class UnclippedRun(FixedRun):
    """:class:`Unclipped` in one run."""

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        return NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class NoNoise:
    """Clipping without noise: the optimizer gets the clipped sum (Zhu and Blaschko 2023, Algorithm 3). NOT PRIVATE."""

    not_private_because: ClassVar[str | None] = "no noise is added, so that the sum itself is released"
    norm_kind: ClassVar[Norm] = Norm.L2

    @property
    def noise_multiplier(self) -> float | None:
        return None

    family: ClassVar[NoiseFamily | None] = None
    is_spherical: ClassVar[bool] = False
    is_recordable: ClassVar[bool] = False
    is_by_coordinate: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True
    scale: ClassVar[float] = 1.0

    def weights(self, steps: int) -> Array:
        return newest_alone(steps)

    def refusal(self, sampling: Sampling) -> str | None:
        return None

    def event(self) -> DpEvent:
        return NonPrivateDpEvent()

    def with_multiplier(self, noise_multiplier: float) -> NoNoise:
        raise PlanError("NoNoise() has no noise_multiplier and no calibration. Use Gaussian() for private training.")

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=self.event(), noise_std=0.0)

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        return FixedNoise(noise=self, layout=layout)

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        return flat
