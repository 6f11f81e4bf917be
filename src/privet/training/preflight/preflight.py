"""Pre-flight: experiments on a model and its loss with made-up examples, before real ones are used.

The trial of a program looks at gradients on its first real batch. It misses mixing through values without a gradient
(statistics under ``detach()``, counts of labels), mixing that those inputs do not trigger, and state of a module. Here
the same program runs on several made-up batches. The experiments measure the effect of one example on the others, on
the state of the model and on the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from privet import checks
from privet.errors import DataError, LossError, PrivetError, UnsupportedModel
from privet.gradients.engines.support import check_model, took_no_part
from privet.gradients.engines.trial import trials
from privet.gradients.sharding.local import is_of_messages
from privet.isolation.parts import leaves_of, tensors_of
from privet.isolation.place import Cause, Fault
from privet.isolation.prove import Finding, prove
from privet.isolation.watch import Check, Evidence, Watch, mixes
from privet.training.batching import without_search
from privet.training.launch.recording import LossFunction
from privet.training.preflight.agreeing import agree, gradients_agree
from privet.training.preflight.equal_draws import EqualDraws
from privet.training.preflight.half_precision import HalfPrecision
from privet.training.preflight.limits import Limit, Limits
from privet.training.preflight.made_up import MadeUpBatches, joined, part_of, spoiled
from privet.training.preflight.model_state import ModelState
from privet.training.preflight.repeatable import repeatable
from privet.training.preflight.suspects import find_suspect
from privet.training.preflight.trained_model import TrainedModel, WholeModel

# For losses of probabilities, for usual inputs, and for branches that only extreme inputs trigger.
_RANGES = ((0.0, 1.0), (-2.0, 2.0), (-40.0, 40.0))
# All kinds of programs are tried up to this number.
_FEW_KINDS = 4
# Numbers of made-up examples: for programs without a proof, for proven programs, and for the proof.
_EXAMPLES, _EXAMPLES_OF_PROVEN, _EXAMPLES_OF_PROOF = 6, 3, 3
FAILS_ON_MADE_UP = "The loss function fails on made-up examples"
"""The beginning of the error of a program that fails on every made-up batch."""
SHAPES_REMEDY = "Pass a batch of the shapes and types that the data set gives."
"""The end of that error; a caller that made up the batch for its user replaces it by other advice."""
_CAUSES = (
    "Usual causes: batch normalisation in any form, centring or scaling by statistics of the batch (also under "
    "detach()), counts of labels, in-batch negatives, a loss divided by the number of examples. Make each example's "
    "loss depend on that example alone."
)


def preflight(model: nn.Module, loss_function: LossFunction, batch: Any, *, num_examples: int = 6) -> None:
    """Run a model and its loss on made-up examples; refuse a program that breaks the bound on one example's influence.

    A session does this before its first step if the loop uses ``step.accumulate``. Call it for loops over
    ``step.microbatches()``, whose losses a session cannot compute. Weights, buffers and random states do not change.

    Args:
        model: The model, in the mode and on the device of the training.
        loss_function: From a batch's items to one loss per example, as for ``step.accumulate``.
        batch: A batch with the shapes and types of the data set's batches; the values may be random.
        num_examples: Number of examples to make up.

    Guarantee:
        On return, these conditions held on every made-up batch. Examples that were exchanged or set to NaN changed
        neither the losses nor the gradients of the others, for every two positions and in both directions. The removal
        of an example changed neither. A batch had the same losses after another batch. No buffer changed. The
        conditions are necessary, not sufficient: a program may behave otherwise on other inputs.

    Raises:
        UnsupportedModel: the program violates a condition. The message names the module, if it is one module.
        LossError: the loss function does not return one loss per example.
        DataError: the batch is not made of tensors with one row per example.

    Parameters without a part in the losses are named, before a session would charge a round for them.
    """
    check_model(model)
    made_up = MadeUpBatches.of(batch, num_examples=checks.count("num_examples", num_examples, minimum=2))
    program, state = _Program(trained=WholeModel(model=model), loss_function=loss_function), ModelState(model)
    limits = _limits_of(program, made_up, state)
    _failure_of(lambda: program.losses(made_up.zeros()))
    state.accept_flags()
    _stop_if_none_was_held(_experiment(program, replace(made_up, limits=limits), state, is_short=False))
    finding = _proven(program, made_up, state)
    if finding is not None:
        _refuse(finding)
    _refuse_idle(program, replace(made_up, limits=limits), state)


def _refuse_idle(program: _Program, made_up: MadeUpBatches, state: ModelState) -> None:
    """Refuse parameters that had no part in the losses of any made-up batch, before a round is charged for them."""
    try:
        idle = set.intersection(*(program.idle(made_up.draw(low, high, seed=1)) for low, high in _RANGES))
    except Exception as error:
        if isinstance(error, PrivetError):
            raise
        return
    finally:
        state.restore()
    if idle:
        raise took_no_part(sorted(idle))


def _stop_if_none_was_held(failures: Sequence[Exception | None]) -> None:
    """Raise the last failure if every experiment failed.

    Raises:
        UnsupportedModel: the program ran on no made-up batch.
    """
    last = failures[-1]
    if last is None or any(error is None for error in failures):
        return
    # On one line, because some readers of the message show its first line only.
    reason = " ".join(str(last).split())[:200]
    raise UnsupportedModel(f"{FAILS_ON_MADE_UP} ({type(last).__name__}: {reason}). {SHAPES_REMEDY}") from last


def _refuse(finding: Finding) -> None:
    """Raise an error if the rules prove that the program mixes examples."""
    cause = finding.losses if isinstance(finding.losses, Cause) else finding.sizes.fault
    if cause is not None and cause.fault is Fault.MIXES:
        raise mixes(cause)


def _proven(program: _Program, made_up: MadeUpBatches, state: ModelState) -> Finding | None:
    """Return the finding of the rules on made-up examples; None if the program fails on them."""
    batch = made_up.draw(*_RANGES[0], seed=1)
    try:
        with repeatable(tensors_of(batch)[0].device, 0), torch.enable_grad():
            return prove(lambda parts: _called(program.loss_function, parts), batch)
    except PrivetError:
        raise
    except Exception as error:
        if is_of_messages(error):
            raise
        return None
    finally:
        state.restore()


def _called(loss_function: LossFunction, batch: Any) -> Tensor:
    return loss_function(*(batch if isinstance(batch, tuple | list) else (batch,)))


class Preflight:
    """The pre-flights of one session: one for every new kind of program, and one at steps 0, 1, 2, 4, 8 and so on.

    Programs that rules have proven get a short one, as a second line of defence: three passes of three examples, and
    one more if the program is new and takes integers. All other programs get every experiment.
    """

    def __init__(self, model: nn.Module, watch: Watch, *, trained: TrainedModel | None = None) -> None:
        """Try nothing yet; ``trained`` if the model is shared out between ranks."""
        self._trained: TrainedModel = WholeModel(model=model) if trained is None else trained
        self._watch = watch
        self._num_kinds = -1
        self.next_step = 0  # experiments are due then, whatever program runs
        self.seen: Evidence | None = None  # of the watch at the last count of kinds; they are due if it has changed
        self._is_proven = False
        self._first_kind: tuple[Callable[..., Any], ...] = ()  # that of the first made-up batch
        self._limits: Mapping[int, Limit] | None = None
        self.failures: Sequence[Exception | None] = ()

    def before(self, batch: Any, loss_function: LossFunction, *, step: int, size: int, limit: int) -> None:
        """Run the experiments on batches like this one, if ``next_step`` is reached or a new kind of program was seen.

        Args:
            batch: The next batch; only its shapes and types are used.
            loss_function: The loss function of the user.
            step: Number of steps that this process has taken.
            size: Number of examples of the batch.
            limit: Number of examples that fit into memory.

        Raises:
            UnsupportedModel: the program mixes examples.
            OutOfMemoryError: the made-up examples do not fit into memory.
        """
        if limit == 1:  # a single example has no others to mix with
            return
        is_turn = step >= self.next_step
        self.next_step, self.seen = 1 << step.bit_length(), self._watch.evidence
        # a model that skips layers at random has a new kind at every step: then ever fewer kinds are tried
        kinds = self._watch.num_kinds_besides(self._first_kind)
        is_new = kinds > self._num_kinds and (kinds <= _FEW_KINDS or kinds & (kinds - 1) == 0)
        is_new = not self._trained.everywhere(not is_new)
        if not (is_new or is_turn) or self._watch.has_waived(Check.EXPERIMENTS):
            return
        try:
            made_up = MadeUpBatches.of(batch, num_examples=max(2, min(_EXAMPLES, limit)), size=size)
            program = _Program(trained=self._trained, loss_function=loss_function)
            state = ModelState(self._trained.model, self._trained.settle)
            if self._num_kinds < 0:  # the first program of this session
                self._prove(program, made_up.of_at_most(_EXAMPLES_OF_PROOF), state)
            if is_new:
                self._limits = None
            self._num_kinds = kinds
            self._is_proven = self._is_proven and not self._watch.has_tried
            if self._is_proven:
                made_up = made_up.of_at_most(_EXAMPLES_OF_PROVEN)
            if self._limits is None:
                self._limits = _limits_of(program, made_up, state)
            state.accept_flags()
            failures = _experiment(program, replace(made_up, limits=self._limits), state, is_short=self._is_proven)
        except LossError:
            return  # the real batch raises the same error with a better message
        except DataError as error:
            failures = [error]
        self.failures = failures

    def _prove(self, program: _Program, made_up: MadeUpBatches, state: ModelState) -> None:
        finding = _proven(program, made_up, state)
        self._is_proven = finding is not None and finding.is_proven
        self._first_kind = () if finding is None else finding.calls

    def forget_failures(self) -> None:
        """Make the experiments due again, after those of a step that was given up have failed.

        Its program released nothing, and may be another than that of the next step.
        """
        self.failures, self.next_step = (), 0

    def check_held(self) -> None:
        """Refuse the program if every experiment failed, although the program has run on real examples.

        Raises:
            UnsupportedModel: the user did not waive the experiments.
        """
        failures, self.failures = self.failures, ()
        try:
            _stop_if_none_was_held(failures)
        except UnsupportedModel as error:
            raise UnsupportedModel(
                f"{error} Every experiment on made-up examples failed; they are the second line of defence behind the "
                "rules. If the program is correct, waive them: privatize(..., waive=[pv.Waiver("
                "check=pv.Check.EXPERIMENTS, because='...')])."
            ) from error

    def check_walked(self) -> None:
        """Refuse a loop over ``step.microbatches()`` whose program needs experiments: they call a loss function.

        Raises:
            UnsupportedModel: the user did not waive the experiments.
        """
        if not self._watch.has_tried or self._watch.has_waived(Check.EXPERIMENTS):
            return
        raise UnsupportedModel(
            f"No rule proves that the program keeps its examples apart: {self._watch.evidence.tried[0]}. Experiments "
            "are needed, and a loop over step.microbatches() gives the session no loss function to run them with. "
            "Write step.accumulate(losses) instead of the loop, or, if the program is correct, waive the experiments: "
            "privatize(..., waive=[pv.Waiver(check=pv.Check.EXPERIMENTS, because='...')])."
        )


def _experiment(
    program: _Program, made_up: MadeUpBatches, state: ModelState, *, is_short: bool
) -> Sequence[Exception | None]:
    """Return for each range the error of the user's code; None if it ran."""
    failures: list[Exception | None] = []
    try:
        for low, high in _RANGES:
            experiment = _Experiment(program=program, made_up=made_up, low=low, high=high, state=state)
            failures.append(_failure_of(experiment.run_short if is_short else experiment.run))
            if is_short and failures[-1] is None:
                break
            if not is_short:
                _failure_of(experiment.spoil)
    finally:
        state.restore()
    return failures


def _limits_of(program: _Program, made_up: MadeUpBatches, state: ModelState) -> Mapping[int, Limit]:
    """Return the integers that the program accepts; empty if it fails on zeros."""
    batch, limits = made_up.zeros(), Limits()
    for number, leaf in enumerate(leaves_of(batch)):
        if not leaf.is_floating_point() and not leaf.is_complex():
            limits.follow(number, leaf)
    if limits.found:
        try:
            with limits:
                _failure_of(lambda: program.losses(batch))
        finally:
            state.restore()
    return limits.found


def _failure_of(experiment: Callable[[], object]) -> Exception | None:
    try:
        experiment()
    except Exception as error:  # a user's program may raise any error on unusual inputs
        if isinstance(error, PrivetError | torch.OutOfMemoryError) or is_of_messages(error):
            raise
        return error
    return None


@dataclass(kw_only=True)
class _Program:
    """A model and its loss; every run starts from the same random state."""

    trained: TrainedModel
    loss_function: LossFunction
    is_half: bool = False  # whether parts of it were seen to run in half precision

    def losses(self, batch: Any, *, seed: int = 0) -> Tensor:
        tensors, precision = tensors_of(batch), HalfPrecision()
        with repeatable(tensors[0].device, seed), torch.enable_grad(), without_search(), precision:
            parts = batch if isinstance(batch, tuple | list) else (batch,)
            losses: object = self.loss_function(*parts)
        self.is_half = self.is_half or precision.is_met
        if not isinstance(losses, Tensor) or losses.shape != (len(tensors[0]),) or not losses.requires_grad:
            raise LossError(
                f"The loss function must return one loss per example, a tensor of shape [{len(tensors[0])}] that "
                f"depends on trainable parameters; got {_described(losses)}."
            )
        return losses

    def idle(self, batch: Any) -> set[str]:
        """Return the names of the trainable parameters that have no part in the losses of a batch."""
        names = [name for name, value in self.trained.model.named_parameters() if value.requires_grad]
        found = self.trained.gradient(self.losses(batch).sum())
        return {name for name, gradient in zip(names, found, strict=True) if gradient is None}

    def gradient(self, losses: Tensor, chosen: Tensor) -> Sequence[Tensor | None]:
        """Return the gradient of the chosen examples' losses, one tensor per parameter."""
        total = losses[chosen.to(losses.device)].sum()
        with without_search():
            return self.trained.gradient(total)


def _described(losses: object) -> str:
    return f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__


@dataclass(frozen=True, kw_only=True)
class _Experiment:
    """All experiments in one range of numbers."""

    program: _Program
    made_up: MadeUpBatches
    low: float
    high: float
    state: ModelState

    def run(self) -> None:
        """Raise ``UnsupportedModel`` at the first violation."""
        first, second = (self.made_up.draw(self.low, self.high, seed=seed) for seed in (1, 2))
        third = self.made_up.draw(self.low, self.high, seed=3, ignores=True)
        losses = self.program.losses(first)
        self.state.check_unchanged()
        for mine in self._stayers():
            found = self._losses_beside(first, second, losses.detach(), mine)
            self._gradients_agree(losses, found, mine)
            self._losses_beside(first, third, losses.detach(), mine)
        self._nothing_is_remembered(first, second, losses.detach())
        self._number_does_not_matter(first)
        self.state.check_unchanged()

    def run_short(self) -> None:
        """Exchange every second example, then the others; for programs that rules have proven."""
        first = self.made_up.draw(self.low, self.high, seed=1)
        second = self.made_up.draw(self.low, self.high, seed=2, ignores=True)
        losses = self.program.losses(first)
        self.state.check_unchanged()
        mine = torch.arange(self.made_up.num_examples) % 2 == 0
        # at most one of the passes holds its activations: recorded steps have theirs beside them
        one, losses = self.program.gradient(losses, mine), losses.detach()
        found = self._losses_beside(first, second, losses, mine)
        if self._is_sound(found, ~mine):
            self._check_gradients(one, self.program.gradient(found, mine))
        del one, found
        self._losses_beside(first, second, losses, ~mine)
        self.state.check_unchanged()

    def _is_sound(self, losses: Tensor, chosen: Tensor) -> bool:
        """Whether the gradient of some examples is finite: zero times infinity would spoil that of the others."""
        found = self.program.gradient(losses, chosen)
        is_finite = all(part is None or bool(part.isfinite().all()) for part in found)
        return self.program.trained.everywhere(is_finite)

    def _gradients_agree(self, losses: Tensor, found: Tensor, mine: Tensor) -> None:
        self._check_gradients(*(self.program.gradient(values, mine) for values in (losses, found)))

    def _check_gradients(self, one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> None:
        if not self.program.trained.everywhere(gradients_agree(one, other, is_half=self.program.is_half)):
            raise UnsupportedModel(
                "The backward pass mixes the examples of a batch: an exchange of some examples changed the gradient of "
                "the others, but not their losses. Look for custom autograd functions and tensor hooks that compute "
                "with the whole batch."
            )

    def spoil(self) -> None:
        """Exchange examples for NaN, which a product with zero does not hide."""
        if self.made_up.has_real_numbers:
            first = self.made_up.draw(self.low, self.high, seed=1)
            losses = self.program.losses(first).detach()
            for mine in self._stayers():
                self._losses_beside(first, spoiled(first), losses, mine)

    def _stayers(self) -> Iterator[Tensor]:
        """Yield sets of unchanged examples; every ordered pair of examples is separated by one of them."""
        for exchanged in trials(self.made_up.num_examples, torch.device("cpu")):
            yield exchanged.logical_not()

    def _losses_beside(self, first: Any, strangers: Any, losses: Tensor, mine: Tensor) -> Tensor:
        """Exchange all examples other than ``mine``; return the losses, and refuse a change of those of ``mine``."""
        mixed, where = joined(first, strangers, mine), mine.to(losses.device)
        found = self.program.losses(mixed)
        if not self.program.trained.everywhere(agree(losses[where], found.detach()[where])):
            suspect = find_suspect(self.program.trained.model, self.program.losses, first, mixed, mine)
            raise UnsupportedModel(
                f"{suspect} mixes the examples of a batch: an exchange of some examples changed the losses of the "
                f"others. {_CAUSES}"
            )
        return found

    def _nothing_is_remembered(self, first: Any, second: Any, losses: Tensor) -> None:
        self.program.losses(second)
        if not agree(losses, self.program.losses(first).detach()):
            raise UnsupportedModel(
                f"{self.state.describe_changes()} remembers earlier batches: the same examples had other losses after "
                "another batch. Remove caches, running averages, queues and other state between forward passes; draw "
                "random numbers from torch's global generator."
            )

    def _number_does_not_matter(self, first: Any) -> None:
        fewer = self.made_up.num_examples - 1
        staying = torch.arange(fewer + 1) < fewer
        with EqualDraws():
            whole = self.program.losses(first)
            part = self.program.losses(part_of(first, fewer))
            if not agree(whole.detach()[:fewer], part.detach(), same_shape=False):
                raise UnsupportedModel(
                    "The loss of an example depends on the number of examples in its batch: the removal of one example "
                    f"changed the losses of the others. {_CAUSES}"
                )
            everyone = torch.ones(fewer, dtype=torch.bool)
            before, after = self.program.gradient(whole, staying), self.program.gradient(part, everyone)
        is_same = gradients_agree(before, after, is_half=self.program.is_half, same_shape=False)
        if not self.program.trained.everywhere(is_same):
            raise UnsupportedModel(
                "The gradient of an example depends on the number of examples in its batch: the removal of one example "
                f"changed the gradient of the others. {_CAUSES}"
            )
