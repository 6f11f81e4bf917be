"""How the loop of another trainer walks through a session: its loader yields steps, its optimizer finishes them.

Trainers own their loops: they ask a loader for batches, compute a loss, and call ``optimizer.step()``. Here one item of
the loader is one logical step, also an empty one, and ``optimizer.step()`` is ``step.update()``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.optim import Optimizer

from privet.errors import LoopError
from privet.training.session import Step


class LogicalSteps:
    """The loader of a trainer: an epoch has as many items as the plan has steps in an epoch.

    Guarantee:
        Items come from one walk over ``session.steps()``. No sampler, shard or copy of another library stands between,
        so no record is repeated to fill a batch, and none is skipped.
    """

    def __init__(self, *, steps_per_epoch: int) -> None:
        """Know the length; the walk comes when the session is open."""
        self._steps_per_epoch, self._num_given = steps_per_epoch, 0
        self._walk: Iterator[Step] | None = None

    def begin(self, walk: Iterator[Step], *, first: int) -> None:
        """Take the walk of an open session, whose next step has the public number ``first``."""
        self._walk, self._num_given = walk, first

    @property
    def num_given(self) -> int:
        """How many steps of the plan were handed out, those of earlier processes among them."""
        return self._num_given

    def finish(self) -> None:
        """Let a walk that has given out all its steps end, so that observers of the loop learn of it."""
        if self._walk is not None and next(self._walk, None) is not None:
            raise LoopError("The trainer stopped counting before the plan was used up.")

    def __len__(self) -> int:
        """Return the steps of an epoch, which are public."""
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps that are left of the present epoch."""
        if self._walk is None:
            raise LoopError(
                "No session is open whose rounds are charged, so there are no steps to hand out. They exist inside "
                "train() or fit() only. A search for a learning rate or a batch size cannot train on them, and a "
                "configure_callbacks of your own must add super().configure_callbacks()."
            )
        for step in islice(self._walk, self._steps_per_epoch - self._num_given % self._steps_per_epoch):
            self._num_given += 1
            yield step


def advance(schedule: Any, *, by: int) -> None:
    """Bring a schedule of learning rates to the public number of the step: steps that a crash lost stay paid for."""
    with warnings.catch_warnings():
        # the optimizer has not stepped in this process, and torch says so
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        for _ in range(by):
            schedule.step()


class StepOptimizer(Optimizer):
    """An optimizer for the loop of a trainer: its ``step()`` updates the model by the private step at hand.

    Learning rates, groups and state are those of ``inner``, so schedulers and checkpoints work on it as usual.

    Guarantee:
        ``step()`` without a summed private step raises, and ``zero_grad()`` does nothing: gradients exist only inside
        ``step.update()``.
    """

    def __init__(self, inner: Optimizer) -> None:
        """Stand for ``inner``; torch's constructor is not called, for the groups are the other's."""
        self.inner = inner
        self._finish: Callable[[], None] | None = None

    def expect(self, finish: Callable[[], None]) -> None:
        """Take the update of the next ``step()``."""
        if self._finish is not None:
            raise LoopError("A private step was summed while the one before it still waits for optimizer.step().")
        self._finish = finish

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # torch's returns the closure's loss
        """Finish the private step at hand.

        Raises:
            LoopError: for a closure, or where there is no step: nothing but a private step may move the weights.
        """
        if closure is not None:
            raise LoopError("A closure would evaluate the loss outside the guarantee. Call step() without one.")
        finish, self._finish = self._finish, None
        if finish is None:
            raise LoopError(
                "optimizer.step() was called without a private step, which would train without privacy. One call of "
                "training_step, then one of optimizer.step(): leave both to the trainer."
            )
        finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do: gradients are written by the private step."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the inner optimizer."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the inner optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the inner optimizer."""
        return self.inner.defaults

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"StepOptimizer({self.inner!r})"
