"""A threshold that follows a quantile of the gradients' lengths, learned from a noisy count in every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dp_accounting import GaussianDpEvent

from privet import checks
from privet.errors import CheckpointError, LoopError, PlanError
from privet.mechanism.clipping import ThresholdRule, per_group, positive_bounds, shared_bounds
from privet.mechanism.clipping_runs import State
from privet.mechanism.events import fuse_gaussians, gaussian_event
from privet.mechanism.noise import NormalSource
from privet.mechanism.sensitivity import Norm, Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

# Counts are centred, so that being short (+1/2) and being long (-1/2) weigh the same and the bound is half of one.
_COUNT_BOUND = 0.5
# A threshold that noise alone has driven is stopped this many times below or above where it began.
_RANGE = 1e6


@dataclass(frozen=True, kw_only=True)
class AdaptiveQuantile:
    """Move the threshold towards a quantile of the gradients' lengths (Andrew et al. 2021).

    Every step counts, per group, how many gradients are no longer than the threshold, adds noise to the count, and
    moves the threshold by ``exp(-learning_rate * (noisy share - quantile))``. Sum and count are released together as
    one Gaussian mechanism whose cost is the same in every step, so the plan is accounted in advance.

    Attributes:
        norm: The threshold of the first step, as in :class:`~privet.mechanism.clipping.Threshold`.
        quantile: The share of gradients that shall be left as they are.
        count_noise_std: Standard deviation of the noise on the count, in examples; a twentieth of the expected batch
            size is a good choice, and costs next to nothing. With several groups each group's count gets the square
            root of their number times as much, so the cost does not depend on the model.
        learning_rate: How fast the threshold moves.
    """

    norm: float | tuple[float, ...]
    count_noise_std: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        object.__setattr__(self, "norm", positive_bounds("norm", self.norm))
        for name in ("count_noise_std", "learning_rate"):
            object.__setattr__(self, name, checks.positive(name, getattr(self, name)))
        object.__setattr__(self, "quantile", checks.probability("quantile", self.quantile))

    @property
    def norm_kind(self) -> Norm:
        """Euclidean length."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> ThresholdRule:
        """Return the threshold of the first step."""
        return ThresholdRule(sensitivity=Sensitivity(bounds=shared_bounds(self.norm, num_groups, type(self).__name__)))

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> AdaptiveQuantileRun:
        """Begin at the first threshold."""
        bounds = self.for_groups(num_groups).sensitivity.bounds
        return AdaptiveQuantileRun(piece=self, bounds=bounds, expected_batch_size=expected_batch_size)

    def joint_event(self, event: DpEvent) -> DpEvent:
        """Return one Gaussian event for the sum and the count together.

        Guarantee:
            Exact when one example can reach both bounds at once: the squared signal-to-noise ratios of the sum and of
            the count add up.

        Raises:
            PlanError: if the noise of the sum is not Gaussian.
        """
        return _joined(event, self.count_noise_std / _COUNT_BOUND)


@dataclass(kw_only=True)
class AdaptiveQuantileRun:
    """:class:`AdaptiveQuantile` in one run: the thresholds as released so far, and the present step's secret count."""

    piece: AdaptiveQuantile
    bounds: tuple[float, ...]
    expected_batch_size: float
    _count: Tensor | None = field(default=None, repr=False)

    def begin(self, step: int, like: Tensor) -> ThresholdRule:
        """Return the present threshold and start counting from zero."""
        self._count = like.new_zeros(len(self.bounds)).double()
        return ThresholdRule(sensitivity=Sensitivity(bounds=self.bounds))

    def watch(self, norms: Tensor) -> None:
        """Count, centred, the examples that are no longer than the threshold.

        Guarantee:
            One example moves each group's count by exactly one half, whatever its norms are: a norm that is NaN or
            infinite counts as long. An absent or blanked example is not counted at all.
        """
        self._counted().add_((norms <= per_group(self.bounds, norms)).double().sub_(_COUNT_BOUND).sum(0))

    def _counted(self) -> Tensor:
        if self._count is None:
            raise LoopError("The step's clipping was not begun, or is over. Call begin() for every step.")
        return self._count

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """Publish the noisy counts by moving the thresholds; see :meth:`ClippingRun.release`.

        An empty batch releases noise alone.
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
        # a huge exponent must reach the end of the range, not overflow on the way
        moved = bound * math.exp(max(-100.0, min(100.0, exponent)))
        return min(max(moved, first / _RANGE), first * _RANGE)

    def _first(self) -> tuple[float, ...]:
        return self.piece.for_groups(len(self.bounds)).sensitivity.bounds

    def state(self) -> State:
        """Return the present thresholds."""
        return {"bounds": self.bounds}

    def restore(self, state: State) -> None:
        """Go on from the thresholds of a checkpoint.

        Raises:
            CheckpointError: if the state was kept for another piece or another model.
        """
        found = state.get("bounds", ())
        if set(state) != {"bounds"} or len(found) != len(self.bounds):
            raise CheckpointError(
                f"Adaptive clipping needs {len(self.bounds)} thresholds to go on, got {sorted(state)} with "
                f"{len(found)}. The checkpoint belongs to another plan or model."
            )
        self.bounds = tuple(checks.positive("bounds", bound) for bound in found)


def _joined(event: DpEvent, count_multiplier: float) -> DpEvent:
    if not isinstance(event, GaussianDpEvent):
        raise PlanError(
            f"AdaptiveQuantile's count is released with Gaussian noise and needs a sum that is, too; this noise is "
            f"charged as {type(event).__name__}. Use Gaussian noise, or a clipping rule that releases nothing."
        )
    return GaussianDpEvent(fuse_gaussians((event.noise_multiplier, count_multiplier)))
