"""The conditions of a session that releases only its last iterate.

The proof is about one chain of steps: plain gradient descent at one rate, on one proven loss, through the same batches
in the same order, whole epochs only. Whatever would leave that chain is refused before it happens, or makes the session
fall back to charging every iterate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from privet.accounting.ledger import Ledger
from privet.errors import LoopError, PlanError
from privet.mechanism.noise import Noise
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.training.loop_events import Observer

_LOG = logging.getLogger("privet")
_INSTEAD = "Use Release.EVERY_ITERATE for any other training."
_ROUNDING = 1e-9


@runtime_checkable
class ProvenLoss(Protocol):
    """A model that carries its loss and the constants proven of it."""

    @property
    def gradient_bound(self) -> float:
        """Bound on the l2 norm of one record's gradient, at all weights."""
        ...

    @property
    def smoothness(self) -> float:
        """Lipschitz constant of that gradient; the loss of every record is convex in the weights."""
        ...

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per example."""
        ...


class LastIterateChain(Observer):
    """The chain of steps of a plan that releases the last iterate.

    Guarantee:
        ``is_complete`` only if every step was taken by plain SGD with the plan's rate and ridge, on the model's own
        proven loss, from the weights that the step before it left, in whole epochs. Weights changed in ways that torch
        does not count (through ``.data``) are noticed by the session's watch over them.
    """

    def __init__(
        self, *, plan: Plan, descent: StronglyConvexDescent, model: nn.Module, optimizer: Optimizer, num_examples: int
    ) -> None:
        """Check everything that can be checked without data."""
        self._plan, self._descent, self._model, self._optimizer = plan, descent, model, optimizer
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._in_round = self._is_broken = self.is_complete = False
        self._ledger: Ledger
        self._compare_weights: Callable[[], None]
        self._seen: Sequence[tuple[int, int]] = ()
        self._losses = _proven(model, descent).losses
        check_descent_optimizer(optimizer, descent)
        # under these adjacencies the number of records is public
        largest = -(-num_examples // plan.sampling.steps_per_round)
        if largest > plan.sampling.expected_batch_size * (1 + _ROUNDING):
            raise PlanError(
                f"Batches of this data set hold up to {largest} records, but their sums are divided by "
                f"{plan.sampling.expected_batch_size:g}: the mean is then steeper than the proven smoothness. Use more "
                "batches or a larger expected_batch_size."
            )

    def bind(self, ledger: Ledger, compare_weights: Callable[[], None]) -> None:
        """Take the run's ledger, and a function that refuses weights which no step left."""
        self._ledger, self._compare_weights = ledger, compare_weights

    @property
    def may_checkpoint(self) -> bool:
        """Only between epochs: a chain that is taken up again must go on with a whole one."""
        return not self._in_round and not self._is_broken

    def check_start(self, charged_rounds: int) -> None:
        """Check the optimizer again, since a checkpoint brings its own settings, and whether the batches are the same.

        Raises:
            PlanError: naming the assumption that fails.
        """
        check_descent_optimizer(self._optimizer, self._descent)
        sampling = self._plan.sampling
        if charged_rounds and not sampling.same_batches_after_restart:
            raise PlanError(
                "This run was begun by another process, whose secret partition is gone with its key. The proof about "
                "the last iterate follows a record through the same batches, so the run cannot be resumed: start anew "
                "in another folder, or use a public partition (secret_partition=False)."
            )
        self._seen = self._now()

    def loss_is_chosen(self, loss_function: Callable[..., Tensor] | None) -> None:
        """Accept the model's own ``losses`` only: the constants of the plan are about no other function."""
        if loss_function != self._losses:
            raise PlanError(
                "Release.LAST_ITERATE is proven for the loss that the model carries. Call "
                f"step.accumulate(model.losses) and step.update(), and compute no losses in the loop. {_INSTEAD}"
            )

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        """Refuse changed settings and changed weights."""
        check_descent_optimizer(self._optimizer, self._descent)
        if self._seen != self._now():
            self._is_broken = True
            raise LoopError(
                "The weights were changed between two steps. With Release.LAST_ITERATE each step must start from the "
                f"weights that the last one left: no averaging, no projection, no reset. {_INSTEAD}"
            )

    def after_update(self, step: int, num_examples: int) -> None:
        """Remember where the weights are and how often torch saw them change."""
        self._seen = self._now()

    def before_public_change(self) -> None:
        """Refuse it: the proof is about steps alone, and covers no iterate but the last one.

        Raises:
            LoopError: always.
        """
        raise LoopError(
            "With Release.LAST_ITERATE nothing but a step may change the weights, public data or not: the bound is "
            f"about the chain of steps. Change them before the session's with block or after it. {_INSTEAD}"
        )

    def _now(self) -> Sequence[tuple[int, int]]:
        return [(parameter.data_ptr(), parameter._version) for parameter in self._parameters]

    def walk_begins(self) -> None:
        """A walk that was broken off inside an epoch cannot be continued as the same chain."""
        self._is_broken |= self._in_round

    def round_begins(self) -> None:
        """From here to the end of the epoch the chain is not whole."""
        self._in_round, self.is_complete = True, False

    def round_ends(self) -> None:
        """The chain is whole again."""
        self._in_round = False

    def walk_ends(self) -> None:
        """The plan is used up: if the chain is whole, the ledger says so after a last comparison of the weights."""
        self.is_complete = not self._in_round and not self._is_broken
        if self.is_complete:
            self._compare_weights()
            self._ledger.complete()

    def run_ended(self) -> None:
        """Warn of a run that broke off: the bound on the last iterate holds at the planned end only."""
        plan, ledger = self._plan, self._ledger
        if plan.is_finished(ledger) or not ledger.charged_rounds or ledger.why_not_private:
            return
        _LOG.warning(
            "The run ended before its plan did, so the bound on the last model does not apply: as it stands the "
            "model costs epsilon %.3f, and the plan promised %.3f at its end. Continue the run, or do not show it.",
            plan.account(ledger).epsilon, plan.guarantee().epsilon,
        )  # fmt: skip

    def is_due(self, steps_ended: int, every: int) -> bool:
        """Whether a checkpoint is due: at the end of the first epoch that passes a multiple."""
        length = self._plan.sampling.steps_per_round
        return steps_ended % length == 0 and steps_ended // every > (steps_ended - length) // every


def chain_of(
    plan: Plan, model: nn.Module, optimizer: Optimizer, num_examples: int, *, keeps_average: bool
) -> LastIterateChain | None:
    """Return the chain that a session must hold to; None for a plan whose iterates may all be seen.

    Raises:
        PlanError: a plan that hides iterates, with a model, an optimizer or options that its proof does not cover.
    """
    if plan.descent is None:
        return None
    if keeps_average:
        raise PlanError(
            "A moving average of the weights is made of all iterates, and Release.LAST_ITERATE covers the last one "
            f"only. Remove averaging. {_INSTEAD}"
        )
    return LastIterateChain(
        plan=plan, descent=plan.descent, model=model, optimizer=optimizer, num_examples=num_examples
    )


def check_descent_optimizer(optimizer: Optimizer, descent: StronglyConvexDescent) -> None:
    """Refuse every optimizer but plain SGD with the rate and ridge of the plan.

    Raises:
        PlanError: naming the setting that differs.
    """
    if type(optimizer) is not SGD:
        raise PlanError(
            f"{type(optimizer).__name__} is not proven to bring two models closer together at every step. Use plain "
            f"torch.optim.SGD with Release.LAST_ITERATE. {_INSTEAD}"
        )
    wanted = {"lr": descent.learning_rate, "weight_decay": descent.ridge, "momentum": 0, "dampening": 0}
    for group in optimizer.param_groups:
        for name, value in (wanted | {"nesterov": False, "maximize": False}).items():
            found: Any = group[name]
            if isinstance(found, Tensor) or found != value:
                raise PlanError(
                    f"The optimizer's {name} is {found!r}, and the plan's proof about the last iterate is for "
                    f"{value!r}. Make it torch.optim.SGD(model.parameters(), lr={descent.learning_rate!r}, "
                    f"weight_decay={descent.ridge!r}) and leave it so: no schedule, no momentum."
                )


def _proven(model: nn.Module, descent: StronglyConvexDescent) -> ProvenLoss:
    if not isinstance(model, ProvenLoss):
        raise PlanError(
            f"{type(model).__name__} carries no proven loss (gradient_bound, smoothness and losses), so nothing shows "
            f"that its steps contract. Use a model such as privet.models.ConvexRelu. {_INSTEAD}"
        )
    for name in ("gradient_bound", "smoothness"):
        found, planned = getattr(model, name), getattr(descent, name)
        if found > planned * (1 + _ROUNDING):
            raise PlanError(
                f"The model's {name} is {found!r}, above the {planned!r} that the plan was accounted with. Build the "
                "plan from the model's own constants."
            )
    return model
