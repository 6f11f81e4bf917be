"""The checks that stand between a user's loop and a silently broken guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from privet.errors import LoopError, PlanError, UnsupportedModel


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
    """Lets the optimizer step only while a private step is being applied."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Hook the optimizer's ``step``."""
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
    def opened(self) -> Iterator[None]:
        """Allow steps for the length of the block."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def close(self) -> None:
        """Give the optimizer back."""
        self._handle.remove()


class BufferGuard:
    """Notices when a forward pass writes private data into a model's buffers."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the version of every buffer."""
        self._model = model
        self._versions = self._now()

    def _now(self) -> dict[str, tuple[int, int]]:
        # a buffer can be changed in place, or another tensor put in its place
        return {name: (id(buffer), buffer._version) for name, buffer in self._model.named_buffers()}

    def check(self) -> None:
        """Raise if a buffer changed since the last check."""
        now = self._now()
        changed = sorted(name for name in now.keys() | self._versions if now.get(name) != self._versions.get(name))
        if changed:
            raise UnsupportedModel(
                f"The forward pass changed the buffers {changed}, which carries private data past the noise. Put the "
                "layers that own them into eval() mode, or replace them."
            )

    def accept(self) -> None:
        """Take the present state as the one to compare with (after a restore or an optimizer step)."""
        self._versions = self._now()
