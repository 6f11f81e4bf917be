"""Clipping rules beside the threshold: keep or drop, and the normalising ones. All bound one example by ``norm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privet import checks
from privet.errors import PlanError
from privet.mechanism.clipping import per_group, positive_bounds, shared_bounds
from privet.mechanism.sensitivity import Norm, Sensitivity

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeepOrDrop:
    """Scale every gradient by the same number, and drop those longer than a cutoff ("global" clipping; Bu et al. 2021).

    Gradients that are kept keep their lengths relative to each other, so the sum points where an unclipped sum would
    point; the price is a signal that is ``norm / cutoff`` times as strong.

    Attributes:
        norm: Bound on one example's contribution, as in :class:`~privet.mechanism.clipping.Threshold`.
        cutoff: Gradients longer than this count for nothing. One number holds for every group, because no group of a
            gradient is longer than the whole; a tuple gives one per group. Never below the bound.
    """

    norm: float | tuple[float, ...]
    cutoff: float | tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive and finite, and a cutoff below the bound."""
        object.__setattr__(self, "norm", positive_bounds("norm", self.norm))
        object.__setattr__(self, "cutoff", positive_bounds("cutoff", self.cutoff))
        if not isinstance(self.norm, tuple) and not isinstance(self.cutoff, tuple):
            self._check_order((self.norm,), (self.cutoff,))

    @property
    def norm_kind(self) -> Norm:
        """Euclidean length."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> KeepOrDropRule:
        """Give every group its bound and its cutoff."""
        bounds = shared_bounds(self.norm, num_groups, type(self).__name__)
        cutoffs = self.cutoff if isinstance(self.cutoff, tuple) else (self.cutoff,) * num_groups
        if len(cutoffs) != num_groups:
            raise PlanError(
                f"KeepOrDrop(cutoff=...) gives {len(cutoffs)} cutoffs but the grouping makes {num_groups} groups. "
                "Give one cutoff per group, or a single number for all."
            )
        self._check_order(bounds, cutoffs)
        return KeepOrDropRule(sensitivity=Sensitivity(bounds=bounds), cutoffs=cutoffs)

    @staticmethod
    def _check_order(bounds: tuple[float, ...], cutoffs: tuple[float, ...]) -> None:
        for bound, cutoff in zip(bounds, cutoffs, strict=True):
            if cutoff < bound:
                raise PlanError(
                    f"KeepOrDrop has a cutoff of {cutoff:g} below its bound of {bound:g}, which would make gradients "
                    "longer than they are. Raise the cutoff, or lower norm."
                )


@dataclass(frozen=True, kw_only=True)
class KeepOrDropRule:
    """:class:`KeepOrDrop` bound to a number of groups."""

    sensitivity: Sensitivity
    cutoffs: tuple[float, ...]

    def factors(self, norms: Tensor) -> Tensor:
        """Return ``bound / cutoff`` up to the cutoff and 0 beyond it.

        Guarantee:
            As in :class:`~privet.mechanism.clipping.ClippingRule`. A zero gradient gets the common factor; a norm that
            is NaN or infinite gets 0; an empty batch gives an empty result.
        """
        scales = tuple(bound / cutoff for bound, cutoff in zip(self.sensitivity.bounds, self.cutoffs, strict=True))
        # NaN compares false, so it is not kept; infinity would pass a cutoff that overflows single precision
        kept = (norms <= per_group(self.cutoffs, norms)) & norms.isfinite()
        return kept.to(norms.dtype) * per_group(scales, norms)


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """Bring every gradient to about the same length (AUTO-S; Bu et al. 2023, "Automatic clipping").

    The bound then only rescales the learning rate, so there is no threshold to tune.

    Attributes:
        norm: Bound on one example's contribution, as in :class:`~privet.mechanism.clipping.Threshold`.
        stability: Added to a gradient's length before dividing by it; keeps short gradients shorter than long ones.
    """

    norm: float | tuple[float, ...] = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive and finite."""
        object.__setattr__(self, "norm", positive_bounds("norm", self.norm))
        object.__setattr__(self, "stability", checks.positive("stability", self.stability))

    @property
    def norm_kind(self) -> Norm:
        """Euclidean length."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> AutomaticRule:
        """Give every group its bound."""
        bounds = shared_bounds(self.norm, num_groups, type(self).__name__)
        return AutomaticRule(sensitivity=Sensitivity(bounds=bounds), stability=self.stability)


@dataclass(frozen=True, kw_only=True)
class AutomaticRule:
    """:class:`Automatic` bound to a number of groups."""

    sensitivity: Sensitivity
    stability: float

    def factors(self, norms: Tensor) -> Tensor:
        """Return ``bound / (norm + stability)``, and 0 where the norm is not finite.

        Guarantee:
            As in :class:`~privet.mechanism.clipping.ClippingRule`. A zero gradient gets ``bound / stability`` and adds
            nothing; an empty batch gives an empty result.
        """
        return _finite(per_group(self.sensitivity.bounds, norms) / (norms + self.stability), norms)


@dataclass(frozen=True, kw_only=True)
class PerSampleAdaptive:
    """Bring long gradients to the bound without blowing up short ones (PSAC; Xia et al. 2023).

    The factor is ``norm / (length + weakness / (length + weakness))``: about ``norm / length`` for long gradients, but
    close to ``norm`` for very short ones, where :class:`Automatic` would multiply by ``norm / stability``.

    Attributes:
        norm: Bound on one example's contribution, as in :class:`~privet.mechanism.clipping.Threshold`.
        weakness: How short a gradient must be to be held back (the paper's r).
    """

    norm: float | tuple[float, ...] = 1.0
    weakness: float = 0.1

    def __post_init__(self) -> None:
        """Refuse numbers that are not positive and finite."""
        object.__setattr__(self, "norm", positive_bounds("norm", self.norm))
        object.__setattr__(self, "weakness", checks.positive("weakness", self.weakness))

    @property
    def norm_kind(self) -> Norm:
        """Euclidean length."""
        return Norm.L2

    def for_groups(self, num_groups: int) -> PerSampleAdaptiveRule:
        """Give every group its bound."""
        bounds = shared_bounds(self.norm, num_groups, type(self).__name__)
        return PerSampleAdaptiveRule(sensitivity=Sensitivity(bounds=bounds), weakness=self.weakness)


@dataclass(frozen=True, kw_only=True)
class PerSampleAdaptiveRule:
    """:class:`PerSampleAdaptive` bound to a number of groups."""

    sensitivity: Sensitivity
    weakness: float

    def factors(self, norms: Tensor) -> Tensor:
        """Return ``bound / (norm + weakness / (norm + weakness))``, and 0 where the norm is not finite.

        Guarantee:
            As in :class:`~privet.mechanism.clipping.ClippingRule`. A zero gradient gets the bound itself as its factor
            and adds nothing; an empty batch gives an empty result.
        """
        lengths = norms + self.weakness / (norms + self.weakness)
        return _finite(per_group(self.sensitivity.bounds, norms) / lengths, norms)


def _finite(factors: Tensor, norms: Tensor) -> Tensor:
    """Drop examples whose factor or norm left the range of the number type; infinity times zero would be NaN."""
    unusable = (factors.isfinite() & norms.isfinite()).logical_not_()
    return factors.masked_fill_(unusable, 0.0)
