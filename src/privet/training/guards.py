"""The checks that stand between a user's loop and a silently broken guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

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


class ParameterGuard:
    """Notices when other parameters are trained than those a session was begun with."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Remember what is trained."""
        self._model, self._optimizer = model, optimizer
        self._trained = {id(value) for _, value in trainable_parameters(model)}

    def check(self) -> None:
        """Refuse a change of what is trained, and gradients that did not come from a private step.

        Raises:
            LoopError: naming the parameters.
        """
        changed = [name for name, value in self._model.named_parameters() if self._has_changed(value)]
        if changed:
            raise LoopError(
                f"The parameters {changed} were frozen or unfrozen since the session began, which its plan knows "
                "nothing of. Decide what is trained before privatize(); for training in stages use pv.ChosenMask, or "
                "one session per stage, whose costs add up."
            )
        held = (value for group in self._optimizer.param_groups for value in group["params"])
        if any(value.grad is not None and id(value) not in self._trained for value in held):
            raise LoopError(
                "The optimizer holds a parameter that this session does not train, and it has a gradient, which would "
                "be applied without noise. Set its .grad to None, or take it out of the optimizer."
            )

    def _has_changed(self, value: nn.Parameter) -> bool:
        return value.requires_grad is not (id(value) in self._trained)


class StateGuard:
    """Notices when a forward pass writes private data into a model's buffers or weights."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the version of every tensor of the model."""
        self._model = model
        self._sums: dict[str, str] = {}
        self._versions = self._now()

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._model.named_buffers()
        yield from self._model.named_parameters()

    def _now(self) -> dict[str, tuple[int, int]]:
        # a tensor can be changed in place, or another one put in its place
        return {name: (id(tensor), tensor._version) for name, tensor in self._tensors()}

    def check(self) -> None:
        """Raise if a tensor changed since the state was accepted."""
        now = self._now()
        changed = {name for name in now.keys() | self._versions if now.get(name) != self._versions.get(name)}
        if self._sums:
            found = self._contents()
            changed |= {name for name in found.keys() | self._sums if found.get(name) != self._sums.get(name)}
        if changed:
            raise UnsupportedModel(
                f"The forward pass changed the buffers or parameters {sorted(changed)}, which carries private data "
                "past the noise. Put the layers that own them into eval() mode, or replace them."
            )

    def accept(self, *, looks_inside: bool = False) -> None:
        """Take the present state as the one to compare with; ``looks_inside`` also compares what is in it.

        Versions do not tell of what is written through ``.data``. Looking inside takes a pass over the whole model.
        """
        self._versions = self._now()
        self._sums = self._contents() if looks_inside else {}

    @torch.no_grad()
    def _contents(self) -> dict[str, str]:
        # one number for each tensor, as text, in which what is not a number equals itself
        return {name: repr(tensor.sum(dtype=_sum_type(tensor)).item()) for name, tensor in self._tensors()}


def _sum_type(tensor: Tensor) -> torch.dtype:
    if tensor.is_complex():
        return torch.complex128
    return torch.float32 if tensor.device.type == "mps" else torch.float64
