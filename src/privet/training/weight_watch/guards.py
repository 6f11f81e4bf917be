"""The checks that stand between a user's loop and a silently broken guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from privet.accounting.ledger import Ledger
from privet.errors import LoopError, PlanError, UnsupportedModel, WeightsChanged
from privet.isolation.watch import Evidence, Watch
from privet.mechanism.noise import Noise
from privet.mechanism.sums import ClippedSum
from privet.training.loop_events import Observer
from privet.training.preflight.preflight import Preflight
from privet.training.weight_watch.following import Following, strangers_in
from privet.training.weight_watch.weights import Holdings, WeightWatch


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the named parameters that training would change, in a fixed order."""
    return [(name, value) for name, value in model.named_parameters() if value.requires_grad]


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that covers more or fewer parameters than the model trains, or that re-evaluates losses.

    Raises:
        PlanError: naming the parameters that are missing, foreign or frozen.
    """
    if isinstance(optimizer, LBFGS):
        raise PlanError(
            "LBFGS evaluates the loss several times per step, outside the guarantee. Use a first-order optimizer."
        )
    if isinstance(optimizer, SparseAdam):
        raise PlanError("SparseAdam takes sparse gradients, and noise is added to every coordinate. Use Adam.")
    owned = {id(value) for group in optimizer.param_groups for value in group["params"]}
    named = {id(value): name for name, value in model.named_parameters()}
    missing = [name for name, value in trainable_parameters(model) if id(value) not in owned]
    foreign = sum(1 for identity in owned if identity not in named)
    if missing:
        raise PlanError(
            f"The optimizer does not hold the trainable parameters {missing}. Add them to it, or freeze them with "
            "requires_grad_(False)."
        )
    if foreign:
        raise PlanError(
            f"The optimizer holds {foreign} parameter(s) that are not part of the model. Every parameter it moves must "
            "go through the private step: make one session per model and optimizer."
        )


class StepGuard:
    """Lets the optimizer step only while a private step is being applied, and only with that step's gradients.

    Guarantee:
        torch's own optimizers and this library's are trusted to move the weights by the gradients they are given.
        Whatever else runs during an update (an optimizer of another make, hooks, a replaced ``step``) is followed
        operation by operation (:mod:`privet.training.weight_watch.following`).
    """

    def __init__(self, optimizer: Optimizer, *, held: Callable[[], Iterable[Tensor]]) -> None:
        """Hook the optimizer's ``step``; ``held`` gives what is watched between steps."""
        self._optimizer, self._held = optimizer, held
        self._open = False
        self._handle = optimizer.register_step_pre_hook(self._check)

    def _check(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._open:
            raise LoopError(
                "optimizer.step() was called outside a private step, which would train without privacy. Call "
                "step.update(): it adds the noise and steps the optimizer. (Gradient scalers and trainers that call "
                "optimizer.step() themselves cannot be used here.)"
            )

    @contextmanager
    def opened(self, gradients: Sequence[Tensor]) -> Iterator[None]:
        """Allow a step with these gradients for the length of the block.

        Raises:
            WeightsChanged: the step used something else.
            LoopError: the session's own hook was taken off the optimizer.
        """
        if self._handle.id not in self._optimizer._optimizer_step_pre_hooks:
            raise LoopError("The session's hook was taken off the optimizer. Leave the hooks of others in place.")
        strangers = strangers_in(self._optimizer, own_hook=self._handle.id)
        following = Following(allowed=[*gradients, *self._held()], whom=strangers) if strangers else nullcontext()
        self._open = True
        try:
            with following:
                yield
        finally:
            self._open = False

    def close(self) -> None:
        """Give the optimizer back."""
        self._handle.remove()


class LoopGuard(Observer):
    """Watches a model and its optimizer during a run: nothing but a private update may change what they hold.

    Attributes:
        weights: Compares what they hold with what the last update left.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, found: Callable[[], None]) -> None:
        """Accept the present state.

        Args:
            model: Watched.
            optimizer: Watched, and kept from stepping outside ``updating``.
            found: Called once, before the first error of a change is raised.
        """
        self.weights = WeightWatch(model, optimizer, found=found)
        self.steps = StepGuard(optimizer, held=self.weights.held)
        self._trained = ParameterGuard(self.weights.holdings, optimizer)
        self.resume(0)

    def resume(self, steps_taken: int) -> None:
        """Count from the steps that are in the model."""
        self._num_updates = steps_taken
        # the bits of all weights are compared at powers of two, for it takes a pass
        self._is_deep = steps_taken & (steps_taken - 1) == 0

    def pass_begins(self) -> None:
        self.weights.begin_step(looks_inside=self._is_deep)
        self._trained.check()

    def forward_ends(self) -> None:
        self.weights.check_forward()

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        self.weights.look(waits=self._is_deep)
        self._trained.check()

    @contextmanager
    def updating(self, *, is_kept: bool) -> Iterator[None]:
        """Let a private update change the weights; also one that broke off is accepted, for its gradients had noise.

        Args:
            is_kept: Whether the weights will be written to a checkpoint or are the last, so that all are compared.

        Raises:
            WeightsChanged: of the update itself, if it used anything but the gradients it was given.
        """
        try:
            yield
            self.resume(self._num_updates + 1)
        except WeightsChanged:
            self.weights.note()
            raise
        finally:
            if not self.weights.is_broken:
                self.weights.accept(looks_everywhere=is_kept or self._is_deep)

    def last_look(self) -> WeightsChanged | UnsupportedModel | None:
        """Compare the weights for the last time; return the error of a change, unless one was raised before."""
        try:
            if not self.weights.is_broken:
                self.weights.look(waits=True)
        except (WeightsChanged, UnsupportedModel) as found:
            return found
        return None

    def close(self) -> None:
        """Give the optimizer back."""
        self.steps.close()


class EvidenceRecorder(Observer):
    """Writes into the ledger what was tried instead of proven, before gradients of such a program are used."""

    def __init__(self, *, ledger: Ledger, watch: Watch, preflight: Preflight) -> None:
        """Read from the watch and the pre-flight, write to the ledger."""
        self._ledger, self._watch, self._preflight = ledger, watch, preflight
        self._noted: Evidence | None = None

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        self._preflight.check_held()
        found = self._watch.evidence
        if found is not self._noted:
            self._ledger.note_evidence(tried=found.tried, settled=found.settled, vouched=found.waived)
            self._noted = found


class ParameterGuard:
    """Notices when other parameters are trained than those a session was begun with."""

    def __init__(self, holdings: Holdings, optimizer: Optimizer) -> None:
        """Remember what is trained; ``holdings`` lists the model's parameters."""
        self._holdings, self._optimizer = holdings, optimizer
        self._trained = {id(value) for value in holdings.parameters.values() if value.requires_grad}

    def check(self) -> None:
        """Refuse a change of what is trained, and gradients that did not come from a private step.

        Raises:
            LoopError: naming the parameters.
        """
        changed: list[str] = []
        for name, value in self._holdings.parameters.items():
            if value.requires_grad is not (id(value) in self._trained):
                changed.append(name)
        if changed:
            raise LoopError(
                f"The parameters {changed} were frozen or unfrozen since the session began, which its plan knows "
                "nothing of. Decide what is trained before privatize(); for training in stages use a mask, or "
                "one session per stage, whose costs add up."
            )
        for group in self._optimizer.param_groups:
            for value in group["params"]:
                if value.grad is not None and id(value) not in self._trained:
                    raise LoopError(
                        "The optimizer holds a parameter that this session does not train, and it has a gradient, "
                        "which would be applied without noise. Set its .grad to None, or take it out of the optimizer."
                    )
