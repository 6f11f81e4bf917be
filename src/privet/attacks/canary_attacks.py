"""Attackers of a training run, which give every canary a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet import checks
from privet.attacks.canaries import Losses
from privet.training.trained import trainable_parameters

Array = NDArray[np.float64]
_CHUNK = 512


class AttackRun(Protocol):
    """A running attack."""

    def after_step(self, index: int) -> None:
        """Observe the model and its noisy gradients after a step."""
        ...

    def scores(self) -> Array:
        """Return one score per canary; a larger score means more likely a member."""
        ...


class Attack(Protocol):
    """An attacker of a training run.

    Attributes:
        name: Name of the attack, for reports.
        sees_every_iterate: Whether the attacker observes more than the final model.
    """

    @property
    def name(self) -> str: ...
    @property
    def sees_every_iterate(self) -> bool: ...

    def start(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor]) -> AttackRun:
        """Start the attack before the first step."""
        ...


@dataclass(frozen=True, kw_only=True)
class LossAttack:
    """Score a canary by the decrease of its loss between the initial model, which is public, and the final model."""

    name: ClassVar[str] = "loss, final model"
    sees_every_iterate: ClassVar[bool] = False

    def start(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor]) -> LossAttackRun:
        return LossAttackRun(losses, canaries)


class LossAttackRun:
    """A running :class:`LossAttack`."""

    def __init__(self, losses: Losses, canaries: Sequence[Tensor]) -> None:
        self._losses, self._canaries = losses, canaries
        self._before = self._measured()

    def after_step(self, index: int) -> None:
        """Do nothing: only the final model matters."""

    def scores(self) -> Array:
        return self._before - self._measured()

    def _measured(self) -> Array:
        with torch.no_grad():
            parts = [self._losses(*part).double().cpu().numpy() for part in _chunks(self._canaries)]
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class GradientAttack:
    """Score a canary by the inner product of its gradient and the noisy gradient, summed over steps (white box).

    Attributes:
        every: Number of steps between two observations.
    """

    name: ClassVar[str] = "noisy gradients"
    sees_every_iterate: ClassVar[bool] = True
    every: int = 1

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "every")

    def start(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor]) -> GradientAttackRun:
        return GradientAttackRun(model, losses, canaries, self.every)


class GradientAttackRun:
    """A running :class:`GradientAttack`."""

    def __init__(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor], every: int) -> None:
        self._parameters = [value for _, value in trainable_parameters(model)]
        self._losses, self._canaries, self._every = losses, canaries, every
        self._total = np.zeros(len(canaries[0]))

    def after_step(self, index: int) -> None:
        if index % self._every:
            return
        released = [value.grad.detach().clone() for value in self._parameters if value.grad is not None]
        parts = [self._products(part, released) for part in _chunks(self._canaries)]
        self._total += np.concatenate(parts)

    def _products(self, part: Sequence[Tensor], released: Sequence[Tensor]) -> Array:
        losses = self._losses(*part)
        weights = torch.ones_like(losses, requires_grad=True)
        # The gradient of a weighted sum of losses is linear in the weights. The derivative of its inner product with
        # the released gradient by a weight is that canary's inner product: two backward passes for all canaries.
        together = torch.autograd.grad(losses, self._parameters, weights, create_graph=True)
        along = torch.stack([(one * other).sum() for one, other in zip(together, released, strict=True)]).sum()
        return np.asarray(torch.autograd.grad(along, weights)[0].double().cpu().numpy())

    def scores(self) -> Array:
        return self._total


def _chunks(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    size = len(tensors[0])
    return [[tensor[start : start + _CHUNK] for tensor in tensors] for start in range(0, size, _CHUNK)]
