"""Clipping during a run: which rule each step has, and what a rule that learns releases in order to learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from privet.errors import CheckpointError
from privet.mechanism.clipping import Clipping, ClippingRule
from privet.mechanism.noise import NormalSource

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

State = Mapping[str, tuple[float, ...]]


class ClippingRun(Protocol):
    """A clipping piece at work in one run."""

    def begin(self, step: int, like: Tensor) -> ClippingRule:
        """Return the rule of a step on the device of ``like``; what an unfinished pass has counted is forgotten."""
        ...

    def watch(self, norms: Tensor) -> None:
        """Look at the norms ``[batch, group]`` of one physical batch; what is kept of them is secret."""
        ...

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """End the step: publish under noise what the rule needs to go on.

        Guarantee:
            The result is the cost of everything the step releases, ``event`` (the noisy sum's) among it, built from
            the noise that was really added. The rule of later steps depends on released values alone.
        """
        ...

    def state(self) -> State:
        """Return the released values from which later steps follow; public."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a state of the same piece and model."""
        ...


@runtime_checkable
class ChangingClipping(Protocol):
    """A clipping piece whose rule is not the same at every step."""

    def start(self, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ClippingRun:
        """Begin a run of this many steps."""
        ...

    def joint_event(self, event: DpEvent) -> DpEvent:
        """Return what a step costs, given what its noisy sum costs; the same at every step."""
        ...


@dataclass(frozen=True, kw_only=True)
class UnchangingRun:
    """A rule that stays as it is and releases nothing of its own."""

    rule: ClippingRule

    def begin(self, step: int, like: Tensor) -> ClippingRule:
        """Return the one rule."""
        return self.rule

    def watch(self, norms: Tensor) -> None:
        """Keep nothing."""

    def release(self, event: DpEvent, source: NormalSource) -> DpEvent:
        """Add no cost."""
        return event

    def state(self) -> State:
        """Nothing evolves."""
        return {}

    def restore(self, state: State) -> None:
        """Refuse a state that belongs to another piece."""
        if state:
            raise CheckpointError(f"This clipping keeps no state, but the checkpoint has {sorted(state)} for it.")


def start_clipping(clipping: Clipping, *, num_groups: int, num_steps: int, expected_batch_size: float) -> ClippingRun:
    """Begin a run of any clipping piece."""
    if isinstance(clipping, ChangingClipping):
        return clipping.start(num_groups=num_groups, num_steps=num_steps, expected_batch_size=expected_batch_size)
    return UnchangingRun(rule=clipping.for_groups(num_groups))


def step_event(clipping: Clipping, event: DpEvent) -> DpEvent:
    """Return what one step costs before sampling: its noisy sum, and whatever its clipping releases beside it."""
    return clipping.joint_event(event) if isinstance(clipping, ChangingClipping) else event
