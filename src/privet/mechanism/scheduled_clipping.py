"""Switching from one clipping rule to another during training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from privet import checks
from privet.errors import ArgumentError, CheckpointError, PlanError
from privet.mechanism.clipping import Clipping, ClippingRule
from privet.mechanism.clipping_runs import ChangingClipping, State
from privet.mechanism.noise import NormalSource
from privet.mechanism.sensitivity import Norm

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """One rule after another; for instance a threshold, then keep or drop for the last twentieth of the run.

    The noise of a step is scaled to the bound of that step's rule, so every step costs the same and switching is free.

    Attributes:
        parts: The rules in order. Each must be a rule that does not change by itself.
        switches: Shares of the run's steps after which the next part takes over, increasing; one fewer than parts.
    """

    parts: tuple[Clipping, ...]
    switches: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse parts that change by themselves or are bounded in different norms, and switches out of order."""
        lists: tuple[Any, ...] = (self.parts, self.switches)
        if not all(isinstance(given, list | tuple) for given in lists):
            raise ArgumentError("Scheduled takes a list of parts and a list of switches.")
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(self, "switches", tuple(checks.probability("switches", share) for share in self.switches))
        pieces: tuple[Any, ...] = self.parts
        for part in pieces:
            if isinstance(part, type) or not isinstance(part, Clipping) or isinstance(part, ChangingClipping):
                raise PlanError(f"Scheduled takes clipping rules that do not change by themselves, got {part!r}.")
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
        """The norm of all parts."""
        return self.parts[0].norm_kind

    def for_groups(self, num_groups: int) -> ClippingRule:
        """Return the rule of the first part."""
        return self.parts[0].for_groups(num_groups)

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ScheduledRun:
        """Bind every part to the groups."""
        return ScheduledRun(
            rules=tuple(part.for_groups(num_groups) for part in self.parts),
            starts=tuple(share * num_steps for share in self.switches),
        )

    def joint_event(self, event: DpEvent) -> DpEvent:
        """Return the event of the noisy sum: switching by the step's number reveals nothing."""
        return event


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """:class:`Scheduled` in one run."""

    rules: tuple[ClippingRule, ...]
    starts: tuple[float, ...]

    def begin(self, step: int, like: Tensor) -> ClippingRule:
        """Return the rule of the last part that has begun by this step."""
        return self.rules[sum(step >= start for start in self.starts)]

    def watch(self, norms: Tensor) -> None:
        """Keep nothing."""

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """Add no cost."""
        return event

    def state(self) -> State:
        """Everything follows from the step's number."""
        return {}

    def restore(self, state: State) -> None:
        """Refuse a state that belongs to another piece."""
        if state:
            raise CheckpointError(f"Scheduled clipping keeps no state, but the checkpoint has {sorted(state)} for it.")
