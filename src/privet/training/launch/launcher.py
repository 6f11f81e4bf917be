"""Adds physical batches by replaying recorded programs, after a dry run of the loss function on each of them."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.engine import NotTried, ReplayableEngine
from privet.isolation.parts import Structure, flattened
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.sums import ClippedSum
from privet.training.batching import Draws
from privet.training.launch.calls import End
from privet.training.launch.dry_run import DryRun, MustRestart, Programs
from privet.training.launch.memory import FixedMemory, NotFinite, Precision, Recording, Wanted, check_recording
from privet.training.launch.recording import LossFunction, Outcome, Recorder
from privet.training.launch.values import NotRecordable

_log = logging.getLogger("privet")

# So many runs may end in a program that cannot be recorded, or that is never seen again, before nothing is tried.
_PATIENCE = 12


@dataclass(kw_only=True, eq=False, repr=False)
class _Form:
    """Batches of one form, with their programs and their fixed memory."""

    memory: FixedMemory
    programs: Programs
    places: Sequence[Tensor]


@dataclass(kw_only=True, eq=False, repr=False)
class Replay:
    """Replays programs that were recorded.

    Guarantee:
        As :meth:`privet.training.launch.replay.Launcher.add`. A recording is replayed only after a dry run of the loss
        function made exactly the calls that were recorded, with equal numbers, so a change of Python state never meets
        a frozen value. Only programs that are proven to keep examples apart are recorded.

    Attributes:
        engine: Computes the sums.
        recorder: Makes the recordings.
        device: Of the model.
        warm_up: How often a program is seen before it is recorded.
        max_recordings: How many there may be: each holds memory of its own.
        level: Of messages that say why nothing is recorded.
    """

    engine: ReplayableEngine
    recorder: Recorder
    device: torch.device
    warm_up: int
    max_recordings: int
    level: int
    replays: bool = True
    _forms: dict[Hashable, _Form] = field(default_factory=dict)
    _seen: dict[Hashable, int] = field(default_factory=dict)
    _num_seen: dict[End, int] = field(default_factory=dict)
    _num_recordings: int = 0
    _num_in_vain: int = 0
    _has_given_up: bool = False

    @property
    def uses_graphs(self) -> bool:
        """Whether the recorder makes graphs."""
        return self.recorder.makes_graphs

    def refuse_manual_loop(self) -> None:
        """Log once that only ``step.accumulate`` records."""
        if not self._has_given_up:
            self._give_up("only step.accumulate(loss_function) can record, not a loop over step.microbatches()")

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> Outcome | None:
        """Add a batch; see :meth:`privet.training.launch.replay.Launcher.add`."""
        leaves, spec = flattened(batch)
        is_tensor = all(isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) for leaf in leaves)
        if self._has_given_up or not is_tensor or self.engine.wants_input_gradients:
            return None
        form = self._form(leaves, spec, limit, rule, into)
        if form is None:
            return None
        form.memory.fill(leaves, size, into.keep)
        given = spec.filled(form.memory.leaves)

        def begin() -> None:
            mark_batch(form.memory.leaves)
            self.engine.begin(limit)

        run = DryRun(form.programs, begin)
        try:
            with _uncompiled(), run:
                losses = loss_function(*(given if isinstance(given, tuple | list) else (given,)))
            end = run.end_of(losses)
            if end is None:
                return self._add_new(run, run.true(losses) if not run.is_dry else None, losses, form, size, rule, into)
            del losses
            return self._add_known(run, end, form, size, rule, into)
        except MustRestart:
            self._in_vain("the program changes, and runs Python code in its backward pass")
            return None
        except NotTried:
            self._in_vain("the program is not proven to keep examples apart by rule")
            return None
        finally:
            self.engine.abandon()

    def _form(
        self, leaves: Sequence[Tensor], spec: Structure, limit: int, rule: ClippingRule, into: ClippedSum
    ) -> _Form | None:
        """Return the form of a batch; the first batch of a form is left to the engine, which makes its choices."""
        shapes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        # the rule's numbers are frozen in a recording, so another rule (a learned threshold, a schedule) needs its own
        # a mask's numbers are copied in, so one recording serves all masks of coordinates
        frozen = (into.flat.data_ptr(), into.sensitivity, into.is_held, into.frame, into.keep is None)
        key = (spec, shapes, limit, rule, frozen)
        form = self._forms.get(key)
        if form is not None:
            return form
        if into.squares is not None:
            self._give_up("the plan's noise learns its units from every step")
            return None
        if into.kept is not None and into.kept.rows is not None:
            self._give_up("the plan's mask leaves out whole rows, whose number and place are part of a recording")
            return None
        self._seen[key] = self._seen.get(key, 0) + 1
        if len(self._seen) > 4 * self.max_recordings:
            self._give_up("the form of the batches or the clipping rule changes from step to step")
            return None
        if self._seen[key] == 1:
            return None
        memory = FixedMemory.for_batches_like(leaves, limit, into.keep)
        places = [into.part(position) for position in range(len(into.layout.shapes))]
        programs = Programs(device=self.device, leaves=memory.leaves)
        form = self._forms[key] = _Form(memory=memory, programs=programs, places=places)
        return form

    def _add_new(
        self, run: DryRun, true: Any, losses: Any, form: _Form, size: int, rule: ClippingRule, into: ClippedSum
    ) -> Outcome:
        """Add the batch of a run that departed from every known program, and remember the program."""
        if run.is_dry:  # it ended where no known program ends
            run.carry_out_all()
            true = run.true(losses)
        del losses
        outcome, is_known = self._sum(true, form, size, rule, into)
        kept = run.kept_by_user
        if kept:
            run.give_true_numbers(kept)
            self._give_up("the loss function keeps results of its calls")
        elif is_known:
            try:
                end = run.remember(true)
            except NotRecordable as problem:
                self._in_vain(str(problem))
            else:
                self._num_seen[end] = 1
                self._in_vain("the program changes from step to step")
        return outcome

    def _add_known(
        self, run: DryRun, end: End, form: _Form, size: int, rule: ClippingRule, into: ClippedSum
    ) -> Outcome | None:
        """Add the batch of a run that was dry to the end of a known program; None if it cannot be repeated."""
        kept = run.kept_by_user
        if kept:
            run.carry_out_all()
            outcome, _ = self._sum(run.true(end.program.losses.stand_in), form, size, rule, into)
            run.give_true_numbers(kept)
            self._give_up("the loss function keeps results of its calls")
            return outcome
        self._num_in_vain = 0
        recording: Recording | None = end.recording
        if recording is not None and end.is_where_it_was(self.engine.watch.programs.was_written):
            return recording.replay(size)
        mark_batch(form.memory.leaves)
        self.engine.begin(len(form.memory.present))
        try:
            losses = end.program.run({})
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # whatever its calls say, the function itself may do better
            self._give_up(f"the program cannot be repeated ({(str(error).splitlines() or [''])[0]})")
            return None
        outcome, is_known = self._sum(losses, form, size, rule, into)
        # A graph that is alive keeps the nodes of the weights, which belong to this stream; a recording needs its own.
        del losses
        self._num_seen[end] = self._num_seen.get(end, 0) + 1
        if is_known and self._num_seen[end] >= self.warm_up:
            self._record(end, form, rule, into)
        return outcome

    def _sum(
        self, losses: Tensor, form: _Form, size: int, rule: ClippingRule, into: ClippedSum
    ) -> tuple[Outcome, bool]:
        """Add the batch operation by operation; its padding adds zero."""
        norms, needs_check, is_known = self.engine.add_present(losses, rule, into, form.memory.present)
        if needs_check and not math.isfinite(float(norms.sum())):
            raise NotFinite
        return Outcome(losses.detach()[:size], norms[:size]), is_known

    def _record(self, end: End, form: _Form, rule: ClippingRule, into: ClippedSum) -> None:
        """Record a program, or say why not. The sum is left as it is."""
        if self._num_recordings >= self.max_recordings:
            self._give_up(f"there are {self._num_recordings} recordings already")
            return
        memory, needs_check = form.memory, False
        limit = len(memory.present)

        def program(places: Sequence[Tensor], present: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal needs_check
            total = replace(into, keep=memory.keep, kept=None, squares=None, places=places)
            mark_batch(leaves)
            try:
                self.engine.begin(limit, may_trace=False)  # nobody looks into a recording
                given = {id(mine): leaf for mine, leaf in zip(memory.leaves, leaves, strict=True)}
                losses = end.program.run(given)
                norms, needs, _ = self.engine.add_present(losses, rule, total, present)
                if places is form.places:  # as the recorded run says; the same run outside may say something else
                    needs_check = needs
            finally:
                self.engine.abandon()
            return losses.detach(), norms

        examples, draws = [leaf.clone() for leaf in memory.leaves], Draws.now(self.device)
        try:
            wanted = Wanted.of(program, memory, form.places)
            memory.repeat_first()
            run = self.recorder.record(program, form.places, memory.present, memory.leaves, self.engine)
            for leaf, given in zip(memory.leaves, examples, strict=True):
                leaf.copy_(given)
            recording = Recording(run=run, needs_check=lambda: needs_check)
            precision = Precision.of([slot.dtype for call in end.program.calls for slot in call.slots], self.device)
            check_recording(recording, wanted, memory, form.places, precision)
        except Exception as error:  # noqa: BLE001 -- whatever a model does that cannot be recorded, it still trains
            reason = str(error).strip().splitlines() or [""]
            self._give_up(f"the program cannot be recorded ({type(error).__name__}: {reason[0]})")
        else:
            end.keep(recording)
            self._num_recordings += 1
        finally:
            draws.restore()

    def _in_vain(self, reason: str) -> None:
        self._num_in_vain += 1
        if self._num_in_vain >= _PATIENCE:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        _log.log(self.level, "Nothing more is recorded; batches run operation by operation: %s.", reason)
        self._has_given_up = True


def _uncompiled() -> AbstractContextManager[Any]:
    """Let compiled parts of a model run uncompiled: nobody can look into compiled code."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
