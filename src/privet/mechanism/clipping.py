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
        """Bind the piece to a model's groups; a piece that changes during a run gives the rule of its first step."""
        ...


def positive_bounds(name: str, value: object) -> float | tuple[float, ...]:
    """Return one positive number, or a tuple of one per group."""
    if isinstance(value, list | tuple):
        return tuple(checks.positive(name, bound) for bound in value)
    return checks.positive(name, value)


def shared_bounds(norm: float | tuple[float, ...], num_groups: int, piece: str) -> tuple[float, ...]:
    """Return one bound per group: an equal share of the square of one number, or the numbers given for each.

    Raises:
        PlanError: if there are not as many numbers as groups.
    """
    if not isinstance(norm, tuple):
        return (norm / math.sqrt(num_groups),) * num_groups
    if len(norm) != num_groups:
        raise PlanError(
            f"{piece}(norm=...) gives {len(norm)} bounds but the grouping makes {num_groups} groups. "
            "Give one bound per group, or a single number to share."
        )
    return norm


def per_group(values: tuple[float, ...], norms: Tensor) -> Tensor | float:
    """Return numbers that broadcast against norms ``[batch, group]``; equal ones need no copy to the device."""
    return values[0] if len(set(values)) == 1 else norms.new_tensor(values)


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
        object.__setattr__(self, "norm", positive_bounds("norm", self.norm))

    @property
    def norm_kind(self) -> Norm:
        """Euclidean length."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> ThresholdRule:
        """Give every group its bound."""
        return ThresholdRule(sensitivity=Sensitivity(bounds=shared_bounds(self.norm, num_groups, type(self).__name__)))


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
        # quotients that overflow (norm zero, huge bound) are cut to one, and a bound that underflows to zero lets
        # nothing through; an infinite norm makes them zero, or NaN under a bound that overflows
        quotients = per_group(self.sensitivity.bounds, norms) / norms
        return quotients.nan_to_num_(nan=0.0).clamp_max_(1.0)
