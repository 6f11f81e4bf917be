"""Pre-flight: experiments on a model and its loss with made-up examples, before real ones are used.

The trial of a program looks at gradients on its first real batch. It cannot see mixing through values that carry no
gradient (statistics under ``detach()``, counts of labels), mixing that those numbers do not wake, or what a module
remembers. Here the same program is run on several made-up batches, and what one example does to another, to the
model's state and to the next batch is measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from privet import checks
from privet.errors import DataError, LossError, PrivetError, UnsupportedModel
from privet.gradients.engines.support import check_model, took_no_part
from privet.gradients.engines.trial import trials
from privet.isolation.place import Cause, Fault
from privet.isolation.prove import Finding, prove
from privet.isolation.watch import Check, Evidence, Watch, mixes
from privet.training.batching import tensors_of
from privet.training.launch.recording import LossFunction
from privet.training.preflight.agreeing import agree, gradients_agree
from privet.training.preflight.equal_draws import EqualDraws
from privet.training.preflight.limits import Limit, Limits
from privet.training.preflight.made_up import MadeUpBatches, joined, part_of, spoiled
from privet.training.preflight.model_state import ModelState
from privet.training.preflight.suspects import find_suspect

# Losses that need probabilities, ordinary inputs, and inputs wild enough to wake what sleeps on ordinary ones.
_RANGES = ((0.0, 1.0), (-2.0, 2.0), (-40.0, 40.0))
# So many kinds of programs are all tried.
_FEW_KINDS = 4
# Made-up examples of the experiments on any program, on one that rules have proven, and of the proof itself.
_EXAMPLES, _EXAMPLES_OF_PROVEN, _EXAMPLES_OF_PROOF = 6, 3, 3
FAILS_ON_MADE_UP = "The loss function fails on made-up examples"
"""How the error begins that says that a program ran on no made-up batch."""
SHAPES_REMEDY = "Pass a batch of the shapes and types that the data set gives."
"""How it ends; a caller who made the batch up on somebody's behalf says what that person can change instead."""
_CAUSES = (
    "Usual causes: batch normalisation in any form, centring or scaling by statistics of the batch (also under "
    "detach()), counts of labels, in-batch negatives, a loss divided by the number of examples. Make each example's "
    "loss depend on that example alone."
)


def preflight(model: nn.Module, loss_function: LossFunction, batch: Any, *, num_examples: int = 6) -> None:
    """Try a model and its loss on made-up examples, and refuse what would break the bound on one example's influence.

    A session does this by itself before its first step where the loop uses ``step.accumulate``. Call it for loops over
    ``step.microbatches()``, whose losses a session cannot compute by itself. Weights, buffers and random states are
    left as they were.

    Args:
        model: The model, in the mode and on the device it will be trained in.
        loss_function: From a batch's items to one loss per example, as for ``step.accumulate``.
        batch: A batch such as the data set would give. Only its shapes and types are used: random ones do.
        num_examples: How many examples to make up.

    Guarantee:
        On return, on every made-up batch: exchanging or spoiling examples changed neither the losses nor the gradients
        of the others, for every two places in the batch and in both directions; taking one away changed neither; a
        batch had the same losses after another one; no buffer changed. These are necessary conditions, found by
        experiment: a program may still misbehave on other numbers.

    Raises:
        UnsupportedModel: naming the module, where there is one, and what it did.
        LossError: the losses are not one number per example.
        DataError: the batch is not made of tensors with one row per example.

    Parameters that have no part in the losses are named, with the line that freezes them: a session would only notice
    once a round is charged.
    """
    check_model(model)
    made_up = MadeUpBatches.of(batch, num_examples=checks.count("num_examples", num_examples, minimum=2))
    program, state = _Program(model=model, loss_function=loss_function), ModelState(model)
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
    idle: set[str] | None = None
    try:
        for low, high in _RANGES:
            found = program.idle(made_up.draw(low, high, seed=1))
            idle = found if idle is None else idle & found
    except PrivetError:
        raise
    except Exception:  # noqa: BLE001 (a user's program may raise anything on numbers it never meets)
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
    # On one line, because some readers of this message show its first line alone.
    reason = " ".join(str(last).split())[:200]
    raise UnsupportedModel(f"{FAILS_ON_MADE_UP} ({type(last).__name__}: {reason}). {SHAPES_REMEDY}") from last


def _refuse(finding: Finding) -> None:
    """Raise what the rules found against a program on made-up examples, if they found something for certain."""
    cause = finding.losses if isinstance(finding.losses, Cause) else finding.sizes.fault
    if cause is not None and cause.fault is Fault.MIXES:
        raise mixes(cause)


def _proven(program: _Program, made_up: MadeUpBatches, state: ModelState) -> Finding | None:
    """Return what the rules say of the program on made-up examples; None if it fails on them."""
    batch = made_up.draw(*_RANGES[0], seed=1)
    try:
        with _repeatable(tensors_of(batch)[0].device, 0), torch.enable_grad():
            return prove(lambda parts: _called(program.loss_function, parts), batch)
    except PrivetError:
        raise
    except Exception:  # noqa: BLE001 (a user's program may raise anything on numbers it never meets)
        return None
    finally:
        state.restore()


def _called(loss_function: LossFunction, batch: Any) -> Tensor:
    return loss_function(*(batch if isinstance(batch, tuple | list) else (batch,)))


class Preflight:
    """The pre-flights of one session: for every new kind of program, and at the first, second, fourth step and so on.

    Programs that are proven by rule get a short one, a second line behind the rules: three passes of three examples,
    and one more where the program is new and takes whole numbers. All others get every experiment.
    """

    def __init__(self, model: nn.Module, watch: Watch) -> None:
        """Wait for the first batch."""
        self._model, self._watch = model, watch
        self._last_step, self._num_kinds = -1, -1
        self._evidence: Evidence | None = None  # of the watch when its kinds of programs were counted
        self._is_proven = False
        self._first_kind: tuple[Callable[..., Any], ...] = ()  # of the program that ran on the first made-up batch
        self._limits: Mapping[int, Limit] | None = None
        self.failures: Sequence[Exception | None] = ()

    def before(self, batch: Any, loss_function: LossFunction, *, step: int, size: int, limit: int) -> None:
        """Try the program on batches like this one of ``size`` examples, if it is time to.

        Args:
            batch: The batch that comes next; its shapes and types are used.
            loss_function: The user's.
            step: How many steps this process has taken.
            size: How many examples the batch has.
            limit: How many examples fit into memory.

        Raises:
            UnsupportedModel: the program mixes examples.
            OutOfMemoryError: so many examples do not fit into memory.
        """
        if limit == 1:  # nobody to mix with
            return
        is_turn = step != self._last_step and step & (step - 1) == 0
        if not is_turn and self._watch.evidence is self._evidence:
            return
        self._evidence = self._watch.evidence
        # a model that skips layers at random is of a new kind at every step: then fewer and fewer of them are tried
        kinds = self._watch.num_kinds_besides(self._first_kind)
        is_new = kinds > self._num_kinds and (kinds <= _FEW_KINDS or kinds & (kinds - 1) == 0)
        if not (is_new or is_turn) or self._watch.has_waived(Check.EXPERIMENTS):
            return
        self._last_step = step
        try:
            made_up = MadeUpBatches.of(batch, num_examples=max(2, min(_EXAMPLES, limit)), size=size)
            program, state = _Program(model=self._model, loss_function=loss_function), ModelState(self._model)
            if self._num_kinds < 0:  # nothing of this session has run yet
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
            return  # refused on the real batch as well, in the words of that place
        except DataError as error:
            failures = [error]
        self.failures = failures

    def _prove(self, program: _Program, made_up: MadeUpBatches, state: ModelState) -> None:
        finding = _proven(program, made_up, state)
        self._is_proven = finding is not None and finding.is_proven
        self._first_kind = () if finding is None else finding.calls

    def check_held(self) -> None:
        """Refuse to go on if no experiment could be held, once the program has run on real examples.

        Raises:
            UnsupportedModel: the user did not waive the experiments.
        """
        failures, self.failures = self.failures, ()
        try:
            _stop_if_none_was_held(failures)
        except UnsupportedModel as error:
            raise UnsupportedModel(
                f"{error} No experiment on made-up examples could be held, and they are the second line behind the "
                "rules. If the program is right all the same, say so: privatize(..., waive=[pv.Waiver("
                "check=pv.Check.EXPERIMENTS, because='...')])."
            ) from error

    def check_walked(self) -> None:
        """Refuse a loop of the user's own whose program only experiments could judge: it gives no function to run.

        Raises:
            UnsupportedModel: the user did not waive the experiments.
        """
        if not self._watch.has_tried or self._watch.has_waived(Check.EXPERIMENTS):
            return
        raise UnsupportedModel(
            f"No rule says whether the program keeps its examples apart: {self._watch.evidence.tried[0]}. Only "
            "experiments can tell, and a loop over step.microbatches() gives the session no function to run them with. "
            "Write step.accumulate(losses) instead of the loop, or, if the program is right all the same, say so: "
            "privatize(..., waive=[pv.Waiver(check=pv.Check.EXPERIMENTS, because='...')])."
        )


def _experiment(
    program: _Program, made_up: MadeUpBatches, state: ModelState, *, is_short: bool
) -> Sequence[Exception | None]:
    """Return for each range what the user's own code raised there, if anything."""
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
    """Return which whole numbers the program takes; nothing where it fails on zeros."""
    batch, limits = made_up.zeros(), Limits()
    for number, leaf in enumerate(pytree.tree_leaves(batch)):
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
    except (PrivetError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 (a user's program may raise anything on numbers it never meets)
        return error
    return None


@dataclass(frozen=True, kw_only=True)
class _Program:
    """A model and its loss, run under the same random state every time."""

    model: nn.Module
    loss_function: LossFunction

    def losses(self, batch: Any, *, seed: int = 0) -> Tensor:
        """Return one loss per example."""
        tensors = tensors_of(batch)
        with _repeatable(tensors[0].device, seed), torch.enable_grad():
            parts = batch if isinstance(batch, tuple | list) else (batch,)
            losses: object = self.loss_function(*parts)
        if not isinstance(losses, Tensor) or losses.shape != (len(tensors[0]),) or not losses.requires_grad:
            raise LossError(
                f"The loss function must return one loss per example, a tensor of shape [{len(tensors[0])}] that "
                f"depends on trainable parameters; got {_described(losses)}."
            )
        return losses

    def idle(self, batch: Any) -> set[str]:
        """Return the names of the trainable parameters that have no part in the losses of a batch."""
        named = [(name, value) for name, value in self.model.named_parameters() if value.requires_grad]
        found: Sequence[Tensor | None] = torch.autograd.grad(
            self.losses(batch).sum(), [value for _, value in named], allow_unused=True
        )
        return {name for (name, _), gradient in zip(named, found, strict=True) if gradient is None}

    def gradient(self, losses: Tensor, chosen: Tensor) -> Sequence[Tensor | None]:
        """Return the gradient of the chosen examples' losses, parameter after parameter."""
        parameters = [value for value in self.model.parameters() if value.requires_grad]
        total = losses[chosen.to(losses.device)].sum()
        return torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)


def _described(losses: object) -> str:
    return f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__


@contextmanager
def _repeatable(device: torch.device, seed: int) -> Iterator[None]:
    """Seed every global generator for the length of the block, and give each its state back."""
    outer, global_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(outer)
            np.random.set_state(global_numpy)


@dataclass(frozen=True, kw_only=True)
class _Experiment:
    """All experiments in one range of numbers."""

    program: _Program
    made_up: MadeUpBatches
    low: float
    high: float
    state: ModelState

    def run(self) -> None:
        """Raise ``UnsupportedModel`` at the first thing that should not happen."""
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
        """Exchange every other example, both ways: for programs that rules have proven already."""
        first = self.made_up.draw(self.low, self.high, seed=1)
        second = self.made_up.draw(self.low, self.high, seed=2, ignores=True)
        losses = self.program.losses(first)
        self.state.check_unchanged()
        mine = torch.arange(self.made_up.num_examples) % 2 == 0
        found = self._losses_beside(first, second, losses.detach(), mine)
        if self._is_sound(found, ~mine):
            self._gradients_agree(losses, found, mine)
        self._losses_beside(first, second, losses.detach(), ~mine)
        self.state.check_unchanged()

    def _is_sound(self, losses: Tensor, chosen: Tensor) -> bool:
        """Whether the gradient of some examples is finite: zero times what is not would spoil that of the others."""
        return all(part is None or bool(part.isfinite().all()) for part in self.program.gradient(losses, chosen))

    def _gradients_agree(self, losses: Tensor, found: Tensor, mine: Tensor) -> None:
        one, other = (self.program.gradient(values, mine) for values in (losses, found))
        if not gradients_agree(one, other):
            raise UnsupportedModel(
                "The backward pass mixes the examples of a batch: other examples beside them changed the gradient "
                "of those that stayed the same, though not their losses. Look for custom autograd functions and "
                "hooks on tensors that compute with the whole batch."
            )

    def spoil(self) -> None:
        """Put examples that are not numbers beside sound ones: a zero does not hide them if they are multiplied."""
        if self.made_up.has_real_numbers:
            first = self.made_up.draw(self.low, self.high, seed=1)
            losses = self.program.losses(first).detach()
            for mine in self._stayers():
                self._losses_beside(first, spoiled(first), losses, mine)

    def _stayers(self) -> Iterator[Tensor]:
        """Yield sets of examples that stay, such that of every two each stays once while the other is exchanged."""
        for exchanged in trials(self.made_up.num_examples, torch.device("cpu")):
            yield exchanged.logical_not()

    def _losses_beside(self, first: Any, strangers: Any, losses: Tensor, mine: Tensor) -> Tensor:
        """Exchange all examples but mine for strangers; return the losses if those of mine stayed the same."""
        mixed, where = joined(first, strangers, mine), mine.to(losses.device)
        found = self.program.losses(mixed)
        if not agree(losses[where], found.detach()[where]):
            suspect = find_suspect(self.program.model, self.program.losses, first, mixed, mine)
            raise UnsupportedModel(
                f"{suspect} mixes the examples of a batch: other examples beside them changed the losses of those "
                f"that stayed the same. {_CAUSES}"
            )
        return found

    def _nothing_is_remembered(self, first: Any, second: Any, losses: Tensor) -> None:
        self.program.losses(second)
        if not agree(losses, self.program.losses(first).detach()):
            raise UnsupportedModel(
                f"{self.state.describe_changes()} remembers earlier batches: the same examples had other losses after "
                "another batch. Remove caches, running averages, queues and states that are kept between forward "
                "passes; draw random numbers from torch's global generator."
            )

    def _number_does_not_matter(self, first: Any) -> None:
        fewer = self.made_up.num_examples - 1
        staying = torch.arange(fewer + 1) < fewer
        with EqualDraws():
            whole = self.program.losses(first)
            part = self.program.losses(part_of(first, fewer))
            if not agree(whole.detach()[:fewer], part.detach(), same_shape=False):
                raise UnsupportedModel(
                    "An example's loss depends on how many examples are in its batch: taking one away changed the "
                    f"losses of the others. {_CAUSES}"
                )
            everyone = torch.ones(fewer, dtype=torch.bool)
            before, after = self.program.gradient(whole, staying), self.program.gradient(part, everyone)
        if not gradients_agree(before, after, same_shape=False):
            raise UnsupportedModel(
                "An example's gradient depends on how many examples are in its batch: taking one away changed the "
                f"gradient of the others. {_CAUSES}"
            )
