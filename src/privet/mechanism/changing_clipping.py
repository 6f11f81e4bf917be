"""Clipping that changes during a run: a threshold that follows a quantile of the norms, and a sequence of rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dp_accounting import GaussianDpEvent

from privet import checks
from privet.errors import ArgumentError, CheckpointError, LoopError, PlanError
from privet.mechanism.clipping import (
    BoundRule,
    Clipping,
    ClippingDefaults,
    ClippingRule,
    FixedRun,
    State,
    Threshold,
    check_bounds,
    per_group,
)
from privet.mechanism.events import fuse_gaussians, gaussian_event
from privet.mechanism.sensitivity import Norm, Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privet.mechanism.sums import NormalSource

# Counts are centred: a short gradient adds +1/2 and a long one -1/2, so one example moves a count by at most 1/2.
_COUNT_BOUND = 0.5
# Noise alone may drive the threshold; it stays within this factor of its first value.
_RANGE = 1e6


@dataclass(frozen=True, kw_only=True)
class AdaptiveQuantile(Threshold):
    """Move the threshold towards a quantile of the gradient norms (Andrew et al. 2021).

    Every step counts, per group, the gradients whose norm is at most the threshold, adds noise to the count, and
    multiplies the threshold by ``exp(-learning_rate * (noisy share - quantile))``. Sum and count are released together
    as one Gaussian mechanism whose cost is the same in every step, so the plan is accounted in advance.

    Attributes:
        norm: The threshold of the first step, as in :class:`~privet.mechanism.clipping.Threshold`.
        quantile: The target share of gradients that clipping does not change.
        count_noise_std: Standard deviation of the noise on the count, in examples; a twentieth of the expected batch
            size is a good choice and costs almost nothing. With ``n`` groups the count of each group gets ``sqrt(n)``
            times as much noise, so the cost does not depend on the model.
        learning_rate: How fast the threshold moves.
    """

    norm: float | tuple[float, ...]
    count_noise_std: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        check_bounds(self, "norm")
        checks.fields(self, checks.positive, "count_noise_std", "learning_rate")
        checks.fields(self, checks.probability, "quantile")

    is_fixed: ClassVar[bool] = False

    @property
    def threshold(self) -> float | None:
        return None

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> AdaptiveQuantileRun:
        bounds = self.for_groups(num_groups).sensitivity.bounds
        return AdaptiveQuantileRun(piece=self, bounds=bounds, expected_batch_size=expected_batch_size)

    def joint_event(self, event: DpEvent) -> DpEvent:
        """Return one Gaussian event for the sum and the count together.

        Guarantee:
            Exact if one example can reach both bounds at once: the squared signal-to-noise ratios of the sum and of
            the count add up.

        Raises:
            PlanError: the noise of the sum is not Gaussian.
        """
        return _joined(event, self.count_noise_std / _COUNT_BOUND)


@dataclass(kw_only=True)
class AdaptiveQuantileRun:
    """:class:`AdaptiveQuantile` in one run: the current public thresholds, and the secret count of the current step."""

    piece: AdaptiveQuantile
    bounds: tuple[float, ...]
    expected_batch_size: float
    _count: Tensor | None = field(default=None, repr=False)

    def begin(self, step: int, like: Tensor) -> BoundRule:
        self._count = like.new_zeros(len(self.bounds)).double()
        return BoundRule(piece=self.piece, sensitivity=Sensitivity(bounds=self.bounds))

    def watch(self, norms: Tensor) -> None:
        """Add the centred count of the examples whose norm is at most the threshold.

        Guarantee:
            One example moves the count of each group by exactly one half, for all norms: a norm that is NaN or infinite
            counts as long. An absent or blanked example is not counted.
        """
        self._counted().add_((norms <= per_group(self.bounds, norms)).double().sub_(_COUNT_BOUND).sum(0))

    def _counted(self) -> Tensor:
        if self._count is None:
            raise LoopError("Clipping has no open step. Call begin() at the start of every step.")
        return self._count

    def unreleased(self) -> Sequence[Tensor]:
        return (self._counted(),)

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """Release the noisy counts and move the thresholds; see :meth:`ClippingRun.release`.

        An empty batch releases pure noise.
        """
        num_groups = len(self.bounds)
        std = self.piece.count_noise_std * math.sqrt(num_groups)
        count = self._counted()
        source.add_normal(count, std)
        self._count = None
        self.bounds = tuple(
            self._moved(bound, first, noisy / self.expected_batch_size + 0.5)
            for bound, first, noisy in zip(self.bounds, self._first(), count.tolist(), strict=True)
        )
        counted = gaussian_event(bounds=(_COUNT_BOUND,) * num_groups, stds=(std,) * num_groups)
        return _joined(event, counted.noise_multiplier)

    def _moved(self, bound: float, first: float, share: float) -> float:
        exponent = -self.piece.learning_rate * (share - self.piece.quantile)
        # a huge exponent must reach the end of the range without overflow
        moved = bound * math.exp(max(-100.0, min(100.0, exponent)))
        return min(max(moved, first / _RANGE), first * _RANGE)

    def _first(self) -> tuple[float, ...]:
        return self.piece.for_groups(len(self.bounds)).sensitivity.bounds

    def state(self) -> State:
        return {"bounds": self.bounds}

    def restore(self, state: State) -> None:
        """Restore the thresholds of a checkpoint.

        Raises:
            CheckpointError: the state belongs to another piece or another model.
        """
        found = state.get("bounds", ())
        if set(state) != {"bounds"} or len(found) != len(self.bounds):
            raise CheckpointError(
                f"Adaptive clipping needs {len(self.bounds)} thresholds to resume, got {sorted(state)} with "
                f"{len(found)}. The checkpoint belongs to another plan or model."
            )
        self.bounds = tuple(checks.positive("bounds", bound) for bound in found)


def _joined(event: DpEvent, count_multiplier: float) -> DpEvent:
    if not isinstance(event, GaussianDpEvent):
        raise PlanError(
            "AdaptiveQuantile releases its count with Gaussian noise and needs Gaussian noise on the sum; this noise "
            f"is charged as {type(event).__name__}. Use Gaussian noise, or a clipping rule that releases nothing."
        )
    return GaussianDpEvent(fuse_gaussians((event.noise_multiplier, count_multiplier)))


@dataclass(frozen=True, kw_only=True)
class Scheduled(ClippingDefaults):
    """A sequence of rules; for instance a threshold, then keep or drop for the last twentieth of the run.

    The noise of a step is scaled to the bound of the rule of that step, so every step costs the same and switching is
    free.

    Attributes:
        parts: The rules in order. Each rule must be fixed.
        switches: Shares of the steps of the run at which the next part begins, increasing; one fewer than parts.
    """

    parts: tuple[Clipping, ...]
    switches: tuple[float, ...]

    def __post_init__(self) -> None:
        lists: tuple[Any, ...] = (self.parts, self.switches)
        if not all(isinstance(given, list | tuple) for given in lists):
            raise ArgumentError("Scheduled takes a list of parts and a list of switches.")
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(self, "switches", tuple(checks.probability("switches", share) for share in self.switches))
        pieces: tuple[Any, ...] = self.parts
        for part in pieces:
            if isinstance(part, type) or not isinstance(part, Clipping):
                raise PlanError(f"Scheduled takes clipping pieces such as Threshold(norm=1.0), got {part!r}.")
            if not part.is_fixed or part.not_private_because is not None:
                raise PlanError(f"Scheduled takes private rules that do not change during a run, got {part!r}.")
        if len(self.switches) != len(self.parts) - 1 or not self.switches:
            raise PlanError(
                f"Scheduled has {len(self.parts)} parts and {len(self.switches)} switches. It takes at least two "
                "parts, and one switch between each two of them."
            )
        if any(earlier >= later for earlier, later in pairwise(self.switches)):
            raise PlanError(f"Scheduled switches at {self.switches}; the shares must increase.")
        if len({part.norm_kind for part in self.parts}) > 1:
            raise PlanError("Scheduled takes parts that bound contributions in the same norm.")

    @property
    def norm_kind(self) -> Norm:
        return self.parts[0].norm_kind

    is_fixed: ClassVar[bool] = False

    def for_groups(self, num_groups: int) -> ClippingRule:
        return self.parts[0].for_groups(num_groups)

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ScheduledRun:
        rules = tuple(part.for_groups(num_groups) for part in self.parts)
        return ScheduledRun(rule=rules[0], rules=rules, starts=tuple(share * num_steps for share in self.switches))

    def joint_event(self, event: DpEvent) -> DpEvent:
        return event  # the switch depends on the step number only and reveals nothing


@dataclass(frozen=True, kw_only=True)
class ScheduledRun(FixedRun):
    """:class:`Scheduled` in one run; ``rule`` is the rule of the first step."""

    rules: tuple[ClippingRule, ...]
    starts: tuple[float, ...]

    def begin(self, step: int, like: Tensor) -> ClippingRule:
        return self.rules[sum(step >= start for start in self.starts)]
