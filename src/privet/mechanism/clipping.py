"""Clipping rules: how much of each example's gradient is kept, so that no example counts for too much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from privet import checks
from privet.errors import PlanError
from privet.mechanism.sensitivity import Norm, Sensitivity

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class ClippingRule(Protocol):
    """A clipping rule bound to a number of groups: the part that runs inside a step."""

    @property
    def sensitivity(self) -> Sensitivity:
        """The bound that :meth:`factors` keeps."""
        ...

    def factors(self, norms: Tensor) -> Tensor:
        """Map norms ``[batch, group]`` to factors of the same shape.

        Guarantee:
            For every example and group, ``norm * factor <= bound`` of that group, and the factor depends on that
            example alone. A norm that is NaN or infinite gets factor 0.
        """
        ...


@runtime_checkable
class Clipping(Protocol):
    """A clipping piece of a plan: public constants only."""

    @property
    def norm_kind(self) -> Norm:
        """The norm in which contributions are bounded."""
        ...

    def for_groups(self, num_groups: int) -> ClippingRule:
        """Bind the piece to a model's groups."""
        ...


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Scale down whatever is longer than the threshold, leave the rest (Abadi et al. 2016; "local" clipping).

    Attributes:
        norm: A number is the bound on the whole gradient: with several groups each gets an equal share of its square
            (``norm / sqrt(num_groups)``), so the total sensitivity is ``norm`` for every model. A tuple gives one bound
            per group; the total is the root of the sum of their squares.
    """

    norm: float | tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse bounds that are not positive and finite."""
        if isinstance(self.norm, list | tuple):
            object.__setattr__(self, "norm", tuple(checks.positive("norm", bound) for bound in self.norm))
        else:
            object.__setattr__(self, "norm", checks.positive("norm", self.norm))

    @property
    def norm_kind(self) -> Norm:
        """Euclidean length."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> ThresholdRule:
        """Give every group its bound."""
        if not isinstance(self.norm, tuple):
            return ThresholdRule(sensitivity=Sensitivity(bounds=(self.norm / math.sqrt(num_groups),) * num_groups))
        if len(self.norm) != num_groups:
            raise PlanError(
                f"Threshold(norm=...) gives {len(self.norm)} bounds but the grouping makes {num_groups} groups. "
                "Give one bound per group, or a single number to share."
            )
        return ThresholdRule(sensitivity=Sensitivity(bounds=self.norm))


@dataclass(frozen=True, kw_only=True)
class ThresholdRule:
    """:class:`Threshold` bound to a number of groups."""

    sensitivity: Sensitivity

    def factors(self, norms: Tensor) -> Tensor:
        """Return ``min(1, bound / norm)``, and 0 where the norm is not finite.

        Guarantee:
            As in :class:`ClippingRule`. A zero gradient gets factor 1 (it contributes nothing either way); an empty
            batch gives an empty result.
        """
        bounds = self.sensitivity.bounds
        # a plain number needs no copy to the device; quotients that overflow (norm zero, huge bound) are cut to one,
        # and a bound that underflows to zero lets nothing through
        quotients = bounds[0] / norms if len(set(bounds)) == 1 else norms.new_tensor(bounds) / norms
        return quotients.nan_to_num_(nan=0.0).clamp_max_(1.0).masked_fill_(norms.isfinite().logical_not(), 0.0)
