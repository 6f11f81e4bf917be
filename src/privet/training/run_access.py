"""Whatever a user asks of a run besides its steps: the guarantee, public changes, checkpoints, averages, counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger, VoidReason
from privet.errors import LoopError
from privet.html_tables import facts_table
from privet.plan import Plan
from privet.training.prepared import PreparedRun


class OpenStep(Protocol):
    """The step that the loop handed out last."""

    @property
    def is_updated(self) -> bool: ...
    @property
    def is_summing(self) -> bool:
        """Whether examples were read for a sum that has no noise yet."""
        ...

    def give_up(self, reason: VoidReason) -> None: ...


class RunAccess:
    """The part of a session that is not the loop; :class:`privet.training.session.Session` has the loop."""

    _open_step: OpenStep | None

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self.plan: Plan = run.plan
        self.ledger: Ledger = run.ledger
        self.model, self.optimizer = run.state.model, run.state.optimizer
        self._is_open: bool = False
        self._assumptions: tuple[str, ...] = ()

    def give_up_step(self) -> None:
        """Give up the step at hand, for instance after a cell was interrupted. Its round stays charged."""
        if self._open_step is not None and not self._open_step.is_updated:
            self._open_step.give_up(VoidReason.INTERRUPTED)
        self._open_step = None

    def _repr_html_(self) -> str:
        """Return what is public about the run, for a notebook."""
        facts = {
            "plan": str(self.plan.guarantee()),
            "steps charged": f"{self.steps_charged} of {self.plan.num_steps}",
            "model": type(self.model).__name__,
            "optimizer": type(self.optimizer).__name__,
        }
        return facts_table("Private session, open" if self._is_open else "Private session", facts)

    def guarantee(self) -> Guarantee:
        """Account what the ledger says was charged: the guarantee of everything released so far.

        Raises:
            WeightsChanged: something that was no private step changed the weights. From then on nothing is promised.
        """
        if self._is_open and not self._run.guard.is_broken:
            self._run.guard.look(waits=True)
        return self.plan.account(self.ledger, assumptions=self._assumptions)

    @contextmanager
    def public_change(self, reason: str) -> Iterator[None]:
        """Let the weights be changed between two steps, without private data, for the length of the block.

        For loading public weights, clamping, merging adapters, re-initialising; weights computed from the session's own
        iterates are fine as well. Not with ``Release.LAST_ITERATE``, whose proof covers steps alone.

        Args:
            reason: What is done, in at most 200 characters. It is written into the ledger before the block runs and
                stands in every guarantee of this run: never put a private value there.
        """
        if not self._is_open:
            raise LoopError("session.public_change() belongs inside the session's with block; after it, it is free.")
        if self._open_step is not None and self._open_step.is_summing:
            raise LoopError("The weights cannot be changed while a step is being summed up. Call step.update() first.")
        for notify in self._run.events.before_public_change:
            notify()
        with self._run.guard.changing():
            self.ledger.note_public_change(reason, step=self.steps_taken)
            yield

    def checkpoint(self) -> None:
        """Write a checkpoint of the run as it stands, between two steps; without a folder nothing is written.

        For loops of other trainers, which decide when checkpoints are due.
        """
        if not self._is_open:
            raise LoopError("session.checkpoint() belongs inside the session's with block; its end writes one itself.")
        if self._open_step is not None and self._open_step.is_summing:
            raise LoopError("A checkpoint cannot be written while a step is being summed up. Call step.update() first.")
        if self._run.checkpoints is not None:
            self._run.checkpoints.write()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the model for the length of the block; during the run or after it."""
        with self._run.average.applied(self._run.guard.changing if self._is_open else nullcontext):
            yield

    def adopt_average(self) -> None:
        """Leave the averaged weights in the model for good; only after the run."""
        if self._is_open:
            raise LoopError("adopt_average() belongs after the session's with block. During the run use averaged().")
        self._run.average.adopt()

    @property
    def steps_charged(self) -> int:
        """How many steps have been charged, by this process and those before it."""
        return self.ledger.charged_rounds * self.plan.sampling.steps_per_round

    @property
    def steps_taken(self) -> int:
        return self._run.state.steps_taken

    @property
    def physical_batch_size(self) -> int:
        return self._run.physical_batch_size

    @property
    def is_complete(self) -> bool:
        """Whether the plan is used up and the model is the one it was made for."""
        return self.plan.is_finished(self.ledger)
