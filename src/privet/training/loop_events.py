"""Observers of the training loop: averages, telemetry, checkpoints and checks that the loop calls at fixed events.

The loop itself (:mod:`privet.training.session`) charges, clips, adds noise and updates. An observer may refuse to go on
by raising; it can change neither the sum nor the noise nor the charge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self

if TYPE_CHECKING:
    from torch import Tensor

    from privet.mechanism.clipping import ClippingRule, ClippingRun
    from privet.mechanism.noise import Noise
    from privet.mechanism.sums import ClippedSum

LossFunction = Callable[..., "Tensor"]
P = ParamSpec("P")


class Observer:
    """Does nothing at any event. A subclass overrides the events it wants; the loop calls no others."""

    def run_begins(self, charged_rounds: int) -> None:
        """The session was entered; a checkpoint, if there is one, has been restored."""

    def walk_begins(self) -> None:
        """A walk over ``session.steps()`` begins."""

    def round_begins(self) -> None:
        """A round was charged and its batches were drawn."""

    def loss_is_chosen(self, loss_function: LossFunction | None) -> None:
        """A step is about to be summed with this function; None stands for a loop that computes losses itself."""

    def pass_begins(self) -> None:
        """A pass over the examples of a step begins; a step that lacks memory takes several."""

    def forward_ends(self) -> None:
        """The user's forward pass on a physical batch has run."""

    def batch_added(self, losses: Tensor, norms: Tensor, rule: ClippingRule) -> None:
        """The clipped gradients of a physical batch were added to the step's sum."""

    def sum_restarts(self) -> None:
        """The step's sum was thrown away; another pass follows."""

    def evidence_changed(self) -> None:
        """The step's sum is complete, and there is new evidence on its programs, or experiments on them failed."""

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        """The step's sum is complete, and noise is about to be added to it."""

    def after_update(self, step: int, num_examples: int) -> None:
        """The model was updated by step number ``step``."""

    def round_ends(self) -> None:
        """All steps of a round are in the model."""

    def step_ends(self, steps_ended: int) -> None:
        """The loop comes back for the next step."""

    def walk_ends(self) -> None:
        """The plan is used up."""

    def before_public_change(self) -> None:
        """The user asks to change the weights between two steps."""

    def run_ends(self, error: BaseException | None) -> None:
        """The session's ``with`` block was left; the ledger is still open."""

    def run_ended(self) -> None:
        """The ledger was compared with the plan and is about to be closed."""


class NormWatch(Observer):
    """Shows the norms of each step to a clipping that learns its next rule from them."""

    def __init__(self, clipping: ClippingRun) -> None:
        self._clipping = clipping

    def batch_added(self, losses: Tensor, norms: Tensor, rule: ClippingRule) -> None:
        self._clipping.watch(norms)


def _listening(
    observers: Sequence[Observer], event: Callable[Concatenate[Observer, P], None]
) -> tuple[Callable[P, None], ...]:
    """Return the methods of the observers that override an event."""
    name = event.__name__
    return tuple(getattr(observer, name) for observer in observers if getattr(type(observer), name) is not event)


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """For each event the methods to call, in the order of the observers."""

    run_begins: tuple[Callable[[int], None], ...] = ()
    walk_begins: tuple[Callable[[], None], ...] = ()
    round_begins: tuple[Callable[[], None], ...] = ()
    loss_is_chosen: tuple[Callable[[LossFunction | None], None], ...] = ()
    pass_begins: tuple[Callable[[], None], ...] = ()
    forward_ends: tuple[Callable[[], None], ...] = ()
    batch_added: tuple[Callable[[Tensor, Tensor, ClippingRule], None], ...] = ()
    sum_restarts: tuple[Callable[[], None], ...] = ()
    evidence_changed: tuple[Callable[[], None], ...] = ()
    before_noise: tuple[Callable[[ClippedSum, Noise], None], ...] = ()
    after_update: tuple[Callable[[int, int], None], ...] = ()
    round_ends: tuple[Callable[[], None], ...] = ()
    step_ends: tuple[Callable[[int], None], ...] = ()
    walk_ends: tuple[Callable[[], None], ...] = ()
    before_public_change: tuple[Callable[[], None], ...] = ()
    run_ends: tuple[Callable[[BaseException | None], None], ...] = ()
    run_ended: tuple[Callable[[], None], ...] = ()

    @classmethod
    def of(cls, observers: Sequence[Observer]) -> Self:
        """Look up the listeners of each event, once."""
        return cls(**{name: _listening(observers, getattr(Observer, name)) for name in cls.__dataclass_fields__})
