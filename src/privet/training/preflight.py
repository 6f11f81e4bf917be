"""Pre-flight: experiments on a model and its loss with made-up examples, before real ones are used.

The trial of a program looks at gradients on its first real batch. It cannot see mixing through values that carry no
gradient (statistics under ``detach()``, counts of labels), mixing that those numbers do not wake, or what a module
remembers. Here the same program is run on several made-up batches, and what one example does to another, to the
model's state and to the next batch is measured.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from privet import checks
from privet.errors import DataError, LossError, PrivetError, UnsupportedModel
from privet.gradients.support import check_model
from privet.gradients.trial import trials
from privet.training.batching import tensors_of
from privet.training.made_up import MadeUpBatches, joined, part_of, spoiled
from privet.training.model_state import ModelState
from privet.training.recording import LossFunction
from privet.training.suspects import find_suspect

_LOG = logging.getLogger("privet")

# Losses that need probabilities, ordinary inputs, and inputs wild enough to wake what sleeps on ordinary ones.
_RANGES = ((0.0, 1.0), (-2.0, 2.0), (-40.0, 40.0))
# Rows of a batch do not know each other's values, so nothing but rounding may differ; another batch size may be
# computed by another kernel. A device adds gradients up in no fixed order, which shows where one is the small
# difference of large numbers, as that of a trained network is; and some of its kernels round factors to tf32.
_SAME_SHAPE = {torch.float64: 1e-9, torch.float32: 1e-6}
_OTHER_SHAPE = {torch.float64: 1e-8, torch.float32: 1e-4}
_ADDED_UP_ON_DEVICE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OTHER_SHAPE_ON_DEVICE = {torch.float64: 1e-8, torch.float32: 2e-2}
_HALF_PRECISION = 2e-2
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
    """
    check_model(model)
    made_up = MadeUpBatches.of(batch, num_examples=checks.count("num_examples", num_examples, minimum=2))
    failures = [error for error in _experiment(model, loss_function, made_up) if error is not None]
    if len(failures) == len(_RANGES):
        # On one line, because some readers of this message show its first line alone.
        reason = " ".join(str(failures[-1]).split())[:200]
        raise UnsupportedModel(
            f"{FAILS_ON_MADE_UP} ({type(failures[-1]).__name__}: {reason}). {SHAPES_REMEDY}"
        ) from failures[-1]


class Preflight:
    """The pre-flight of one session: once, with the first physical batch's shapes."""

    def __init__(self, model: nn.Module) -> None:
        """Wait for the first batch."""
        self._model = model
        self._is_due = True

    def before(self, batch: Any, loss_function: LossFunction, *, size: int, limit: int) -> None:
        """Try the program on batches like this one of ``size`` examples, once; ``limit`` examples fit into memory."""
        if not self._is_due:
            return
        self._is_due = False
        num_examples = max(2, min(6, limit))
        try:
            made_up = MadeUpBatches.of(batch, num_examples=num_examples, size=size)
            failures: Sequence[Exception | None] = _experiment(self._model, loss_function, made_up)
        except LossError:
            return  # refused on the real batch as well, in the words of that place
        except DataError as error:
            failures = [error]
        if all(error is not None for error in failures):
            _LOG.warning(
                "No pre-flight was held: batches like this data set's cannot be made up for this loss function (%s). "
                "The trial on the first batch still looks for examples that mix.",
                type(failures[-1]).__name__,
            )


def _experiment(model: nn.Module, loss_function: LossFunction, made_up: MadeUpBatches) -> Sequence[Exception | None]:
    """Return for each range what the user's own code raised there, if anything."""
    failures: list[Exception | None] = []
    state = ModelState(model)
    program = _Program(model=model, loss_function=loss_function)
    try:
        for low, high in _RANGES:
            experiment = _Experiment(program=program, made_up=made_up, low=low, high=high, state=state)
            failures.append(_failure_of(experiment.run))
            _failure_of(experiment.spoil)
    finally:
        state.restore()
    return failures


def _failure_of(experiment: Callable[[], None]) -> Exception | None:
    try:
        experiment()
    except PrivetError:
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

    def gradient(self, losses: Tensor, chosen: Tensor) -> Tensor:
        """Return the gradient of the chosen examples' losses, parameter after parameter."""
        parameters = [value for value in self.model.parameters() if value.requires_grad]
        total = losses[chosen.to(losses.device)].sum()
        found: Sequence[Tensor | None] = torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)
        pairs = zip(found, parameters, strict=True)
        return torch.cat([(torch.zeros_like(value) if part is None else part).reshape(-1) for part, value in pairs])


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


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch the known dropout layers off, so that batches of two sizes can be compared."""
    switched = [module for module in model.modules() if isinstance(module, _DropoutNd) and module.training]
    for module in switched:
        module.training = False
    try:
        yield
    finally:
        for module in switched:
            module.training = True


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
        first, second, third = (self.made_up.draw(self.low, self.high, seed=seed) for seed in (1, 2, 3))
        losses = self.program.losses(first)
        self.state.check_unchanged()
        for mine in self._stayers():
            found = self._losses_beside(first, second, losses.detach(), mine)
            one, other = (self.program.gradient(values, mine) for values in (losses, found))
            if not _agree(one, other, added_up=True):
                raise UnsupportedModel(
                    "The backward pass mixes the examples of a batch: other examples beside them changed the gradient "
                    "of those that stayed the same, though not their losses. Look for custom autograd functions and "
                    "hooks on tensors that compute with the whole batch."
                )
            self._losses_beside(first, third, losses.detach(), mine)
        self._nothing_is_remembered(first, second, losses.detach())
        self._number_does_not_matter(first)
        self.state.check_unchanged()

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
        if not _agree(losses[where], found.detach()[where]):
            suspect = find_suspect(self.program.model, self.program.losses, first, mixed, mine)
            raise UnsupportedModel(
                f"{suspect} mixes the examples of a batch: other examples beside them changed the losses of those "
                f"that stayed the same. {_CAUSES}"
            )
        return found

    def _nothing_is_remembered(self, first: Any, second: Any, losses: Tensor) -> None:
        self.program.losses(second)
        if not _agree(losses, self.program.losses(first).detach()):
            raise UnsupportedModel(
                f"{self.state.describe_changes()} remembers earlier batches: the same examples had other losses after "
                "another batch. Remove caches, running averages, queues and states that are kept between forward "
                "passes; draw random numbers from torch's global generator."
            )

    def _number_does_not_matter(self, first: Any) -> None:
        fewer = self.made_up.num_examples - 1
        staying = torch.arange(fewer + 1) < fewer
        with _without_dropout(self.program.model):
            whole = self.program.losses(first)
            if not _agree(whole.detach(), self.program.losses(first, seed=1).detach()):
                return  # random in other ways: two sizes draw different numbers, and cannot be compared
            part = self.program.losses(part_of(first, fewer))
            if not _agree(whole.detach()[:fewer], part.detach(), same_shape=False):
                raise UnsupportedModel(
                    "An example's loss depends on how many examples are in its batch: taking one away changed the "
                    f"losses of the others. {_CAUSES}"
                )
            everyone = torch.ones(fewer, dtype=torch.bool)
            before, after = self.program.gradient(whole, staying), self.program.gradient(part, everyone)
        if not _agree(before, after, same_shape=False, added_up=True):
            raise UnsupportedModel(
                "An example's gradient depends on how many examples are in its batch: taking one away changed the "
                f"gradient of the others. {_CAUSES}"
            )


def _tolerances(device: torch.device, *, same_shape: bool, added_up: bool) -> dict[torch.dtype, float]:
    """How far two results may lie apart, as a share of the largest number, by their precision."""
    if device.type == "cpu":
        return _SAME_SHAPE if same_shape else _OTHER_SHAPE
    if not same_shape:
        return _OTHER_SHAPE_ON_DEVICE
    return _ADDED_UP_ON_DEVICE if added_up else _SAME_SHAPE


def _agree(one: Tensor, other: Tensor, *, same_shape: bool = True, added_up: bool = False) -> bool:
    """Whether two results are the same up to rounding; what is not finite must be so in both.

    Args:
        one: Losses, or a gradient.
        other: The same, found in another way.
        same_shape: Whether both come from batches of one size.
        added_up: Whether they are gradients, which are sums over examples and places.
    """
    tolerances = _tolerances(one.device, same_shape=same_shape, added_up=added_up)
    tolerance = tolerances.get(one.dtype, _HALF_PRECISION)
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    finite = one.isfinite()
    one, other = one[finite], other[finite]
    return one.numel() == 0 or bool((one - other).abs().max() <= tolerance * one.abs().max())
