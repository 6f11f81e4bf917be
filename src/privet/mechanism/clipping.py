"""Clipping: bounds on the contribution of one example to a sum of gradients.

A piece holds public constants. Combined with the groups of a model it is a rule; in a run it gives the rule of each
step. The pieces of this module have one rule for the whole run; those of :mod:`privet.mechanism.changing_clipping`
change.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from privet import checks
from privet.errors import CheckpointError, PlanError
from privet.mechanism.sensitivity import Norm, Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privet.mechanism.sums import NormalSource

State = Mapping[str, tuple[float, ...]]


@runtime_checkable
class ClippingRule(Protocol):
    """A clipping piece with the bounds of a model's groups; it runs inside a step.

    Attributes:
        sensitivity: The bound that :meth:`factors` holds.
    """

    @property
    def sensitivity(self) -> Sensitivity: ...

    def factors(self, norms: Tensor) -> Tensor:
        """Map norms ``[batch, group]`` to factors of the same shape.

        Guarantee:
            For every example and group, ``norm * factor <= bound`` of that group, and the factor depends on that
            example only. A norm that is NaN or infinite gets factor 0.
        """
        ...


class ClippingRun(Protocol):
    """The state of a clipping piece in one run."""

    def begin(self, step: int, like: Tensor) -> ClippingRule:
        """Return the rule of a step, on the device of ``like``; discard the counts of an unfinished pass."""
        ...

    def watch(self, norms: Tensor) -> None:
        """Record statistics of the norms ``[batch, group]`` of one physical batch; they are secret."""
        ...

    def unreleased(self) -> Sequence[Tensor]:
        """Return the secret statistics of the current step that :meth:`release` adds noise to.

        They are sums over examples. Ranks that share out the examples of a step add them up in place before.
        """
        ...

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """End the step: release, with noise, the statistics that later rules need.

        Guarantee:
            The result is the cost of everything that the step releases, including ``event`` (that of the noisy sum),
            built from the noise that was really added. The rules of later steps depend only on released values.
        """
        ...

    def state(self) -> State:
        """Return the released values that determine later steps; public."""
        ...

    def restore(self, state: State) -> None:
        """Restore a state of the same piece and model."""
        ...


@runtime_checkable
class Clipping(Protocol):
    """A clipping piece of a plan: public constants only.

    Attributes:
        norm_kind: The norm in which contributions are bounded.
        is_fixed: Whether one rule holds for the whole run, and a step releases only the sum.
        threshold: The norm to which longer gradients are scaled down, if the rule changes no others; None for other
            rules.
        not_private_because: The reason why no run with this piece is private; None for a private piece.
            Guarantee: engines hold every contribution to the bound of the rule if and only if this is None.
    """

    is_fixed: ClassVar[bool]
    not_private_because: ClassVar[str | None]

    @property
    def norm_kind(self) -> Norm: ...
    @property
    def threshold(self) -> float | None: ...

    def for_groups(self, num_groups: int) -> ClippingRule:
        """Return the rule for a model with this many groups; for a changing piece the rule of its first step."""
        ...

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ClippingRun:
        """Start a run of this many steps."""
        ...

    def joint_event(self, event: DpEvent) -> DpEvent:
        """Return the cost of a step, given the cost of its noisy sum; the same at every step."""
        ...


@dataclass(frozen=True, kw_only=True)
class BoundRule:
    """A :class:`FixedClipping` piece with the bounds of a model's groups."""

    piece: FixedClipping
    sensitivity: Sensitivity

    def factors(self, norms: Tensor) -> Tensor:
        return self.piece.factors(norms, self.sensitivity.bounds)


@dataclass(frozen=True, kw_only=True)
class FixedRun:
    """A fixed rule, which releases nothing of its own."""

    rule: ClippingRule

    def begin(self, step: int, like: Tensor) -> ClippingRule:
        return self.rule

    def watch(self, norms: Tensor) -> None: ...

    def unreleased(self) -> Sequence[Tensor]:
        return ()

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        return event

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        if state:
            raise CheckpointError(f"This clipping keeps no state, but the checkpoint has {sorted(state)} for it.")


class ClippingDefaults:
    """A private piece without a threshold."""

    not_private_because: ClassVar[str | None] = None

    @property
    def threshold(self) -> float | None:
        return None


class FixedClipping(ClippingDefaults, ABC):
    """A piece with one rule for the whole run. A new piece writes its fields and :meth:`factors`."""

    norm: float | tuple[float, ...]

    @abstractmethod
    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        """Map norms ``[batch, group]`` to factors of the same shape.

        Guarantee: as in :meth:`ClippingRule.factors`, with one bound per group. An empty batch gives an empty result.
        """

    norm_kind: ClassVar[Norm] = Norm.L2
    is_fixed: ClassVar[bool] = True

    def for_groups(self, num_groups: int) -> BoundRule:
        bounds = shared_bounds(self.norm, num_groups, type(self).__name__)
        return BoundRule(piece=self, sensitivity=Sensitivity(bounds=bounds))

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ClippingRun:
        return FixedRun(rule=self.for_groups(num_groups))

    def joint_event(self, event: DpEvent) -> DpEvent:
        return event


@dataclass(frozen=True, kw_only=True)
class Threshold(FixedClipping):
    """Scale gradients longer than the threshold down to it, keep the others (Abadi et al. 2016; "local" clipping).

    Attributes:
        norm: A number bounds the whole gradient: each of several groups gets the bound ``norm / sqrt(num_groups)``, so
            the total sensitivity is ``norm`` for every model. A tuple gives one bound per group; the total is the root
            of the sum of their squares.
    """

    norm: float | tuple[float, ...]

    def __post_init__(self) -> None:
        check_bounds(self, "norm")

    @property
    def threshold(self) -> float | None:
        is_threshold = type(self).factors is Threshold.factors  # a subclass with other factors is no threshold
        return self.norm if is_threshold and not isinstance(self.norm, tuple) else None

    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        """Return ``min(1, bound / norm)``, and 0 where the norm is not finite.

        Guarantee:
            As in :class:`ClippingRule`. A zero gradient gets factor 1 (it contributes nothing either way); an empty
            batch gives an empty result.
        """
        # a quotient that overflows (norm zero, huge bound) becomes one; a bound that underflows to zero gives zero; an
        # infinite norm gives zero, or NaN under a bound that overflows
        quotients = per_group(bounds, norms) / norms
        return quotients.nan_to_num_(nan=0.0).clamp_max_(1.0)


@dataclass(frozen=True, kw_only=True)
class KeepOrDrop(FixedClipping):
    """Scale all gradients by the same number and drop those longer than a cutoff ("global" clipping; Bu et al. 2021).

    The kept gradients keep their relative lengths, so their sum has the direction of the unclipped sum; the cost is a
    signal that is ``norm / cutoff`` times as strong.

    Attributes:
        norm: Bound on one example's contribution, as in :class:`Threshold`.
        cutoff: Longer gradients are dropped. One number holds for every group, because no group of a gradient is longer
            than the whole; a tuple gives one per group. Never below the bound.
    """

    norm: float | tuple[float, ...]
    cutoff: float | tuple[float, ...]

    def __post_init__(self) -> None:
        check_bounds(self, "norm", "cutoff")
        if not isinstance(self.norm, tuple) and not isinstance(self.cutoff, tuple):
            self._check_order((self.norm,), (self.cutoff,))

    def for_groups(self, num_groups: int) -> BoundRule:
        rule = super().for_groups(num_groups)
        cutoffs = self.cutoffs(num_groups)
        if len(cutoffs) != num_groups:
            raise PlanError(
                f"KeepOrDrop(cutoff=...) gives {len(cutoffs)} cutoffs but the grouping makes {num_groups} groups. "
                "Give one cutoff per group, or a single number for all."
            )
        self._check_order(rule.sensitivity.bounds, cutoffs)
        return rule

    def cutoffs(self, num_groups: int) -> tuple[float, ...]:
        return self.cutoff if isinstance(self.cutoff, tuple) else (self.cutoff,) * num_groups

    @staticmethod
    def _check_order(bounds: tuple[float, ...], cutoffs: tuple[float, ...]) -> None:
        for bound, cutoff in zip(bounds, cutoffs, strict=True):
            if cutoff < bound:
                raise PlanError(
                    f"KeepOrDrop has a cutoff of {cutoff:g} below its bound of {bound:g}, which would scale gradients "
                    "up. Raise the cutoff, or lower norm."
                )

    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        """Return ``bound / cutoff`` for norms up to the cutoff, and 0 above it.

        Guarantee:
            As in :class:`ClippingRule`. A zero gradient gets the common factor; a norm that is NaN or infinite gets 0;
            an empty batch gives an empty result.
        """
        cutoffs = self.cutoffs(len(bounds))
        scales = tuple(bound / cutoff for bound, cutoff in zip(bounds, cutoffs, strict=True))
        # NaN compares false and is dropped; infinity would pass a cutoff that overflows single precision
        kept = (norms <= per_group(cutoffs, norms)) & norms.isfinite()
        return kept.to(norms.dtype) * per_group(scales, norms)


@dataclass(frozen=True, kw_only=True)
class _Normalising(FixedClipping):
    """Scales long gradients to about the bound; ``_numbers`` names the further fields, which are positive."""

    _numbers: ClassVar[tuple[str, ...]]
    norm: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        check_bounds(self, "norm")
        checks.fields(self, checks.positive, *self._numbers)


@dataclass(frozen=True, kw_only=True)
class Automatic(_Normalising):
    """Normalise every gradient to about the same length (AUTO-S; Bu et al. 2023, "Automatic clipping").

    The bound only rescales the learning rate, so no threshold must be tuned.

    Attributes:
        norm: Bound on one example's contribution, as in :class:`Threshold`.
        stability: Added to the norm in the denominator; it keeps short gradients shorter than long ones.
    """

    _numbers = ("stability",)
    stability: float = 0.01

    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        """Return ``bound / (norm + stability)``, and 0 where the norm is not finite.

        Guarantee:
            As in :class:`ClippingRule`. A zero gradient gets ``bound / stability`` and adds nothing; an empty batch
            gives an empty result.
        """
        return _finite(per_group(bounds, norms) / (norms + self.stability), norms)


@dataclass(frozen=True, kw_only=True)
class PerSampleAdaptive(_Normalising):
    """Normalise long gradients to the bound without large factors for short ones (PSAC; Xia et al. 2023).

    The factor is ``norm / (length + weakness / (length + weakness))``: about ``norm / length`` for long gradients and
    close to ``norm`` for very short ones, where :class:`Automatic` multiplies by ``norm / stability``.

    Attributes:
        norm: Bound on one example's contribution, as in :class:`Threshold`.
        weakness: The length below which a gradient is no longer normalised (r in the paper).
    """

    _numbers = ("weakness",)
    weakness: float = 0.1

    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        """Return ``bound / (norm + weakness / (norm + weakness))``, and 0 where the norm is not finite.

        Guarantee:
            As in :class:`ClippingRule`. A zero gradient gets the bound itself as its factor and adds nothing; an empty
            batch gives an empty result.
        """
        lengths = norms + self.weakness / (norms + self.weakness)
        return _finite(per_group(bounds, norms) / lengths, norms)


def check_bounds(piece: object, *names: str) -> None:
    """Check the named bounds of a frozen piece; each is one positive number or a tuple of one per group."""
    for name in names:
        value = getattr(piece, name)
        is_one = not isinstance(value, list | tuple)
        found = checks.positive(name, value) if is_one else tuple(checks.positive(name, bound) for bound in value)
        object.__setattr__(piece, name, found)


def shared_bounds(norm: float | tuple[float, ...], num_groups: int, piece: str) -> tuple[float, ...]:
    """Return one bound per group: the given ones, or ``norm / sqrt(num_groups)`` for a single number.

    Raises:
        PlanError: the number of bounds is not the number of groups.
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
    """Return values that broadcast against norms ``[batch, group]``; equal values need no copy to the device."""
    return values[0] if len(set(values)) == 1 else norms.new_tensor(values)


def _finite(factors: Tensor, norms: Tensor) -> Tensor:
    """Set the factor to zero where the factor or the norm is not finite; infinity times zero would be NaN."""
    unusable = (factors.isfinite() & norms.isfinite()).logical_not_()
    return factors.masked_fill_(unusable, 0.0)
