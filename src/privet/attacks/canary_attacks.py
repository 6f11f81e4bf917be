"""Attackers of a training run: what they look at, and how they score canaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet import checks
from privet.attacks.canaries import Losses
from privet.training.weight_watch.guards import trainable_parameters

Array = NDArray[np.float64]
_AT_ONCE = 512


class AttackRun(Protocol):
    """An attack under way."""

    def after_step(self, index: int) -> None:
        """Look at the model and its noisy gradients after a step."""
        ...

    def scores(self) -> Array:
        """Return one number per canary, larger where the attacker believes that it was in."""
        ...


class Attack(Protocol):
    """The view of an attacker."""

    @property
    def name(self) -> str:
        """The attack in words."""
        ...

    @property
    def sees_every_iterate(self) -> bool:
        """Whether it looks at more than the final model."""
        ...

    def start(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor]) -> AttackRun:
        """Begin, before the first step."""
        ...


@dataclass(frozen=True, kw_only=True)
class LossAttack:
    """The fall of a canary's loss between the first model and the last: models know what they were trained on."""

    @property
    def name(self) -> str:
        """The attack in words."""
        return "loss, final model"

    @property
    def sees_every_iterate(self) -> bool:
        """The first model is public, the last is released."""
        return False

    def start(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor]) -> LossAttackRun:
        """Remember the losses before training."""
        return LossAttackRun(losses, canaries)


class LossAttackRun:
    """:class:`LossAttack` under way."""

    def __init__(self, losses: Losses, canaries: Sequence[Tensor]) -> None:
        """Measure the losses of the model as it is."""
        self._losses, self._canaries = losses, canaries
        self._before = self._measured()

    def after_step(self, index: int) -> None:
        """Nothing: only the final model counts."""

    def scores(self) -> Array:
        """Return how far each loss has fallen."""
        return self._before - self._measured()

    def _measured(self) -> Array:
        with torch.no_grad():
            parts = [self._losses(*part).double().cpu().numpy() for part in _portions(self._canaries)]
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class GradientAttack:
    """The inner product of noisy gradients and a canary's own gradient, summed over steps: a white-box attack.

    Attributes:
        every: Number of steps between looks; 1 by default.
    """

    every: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no count."""
        object.__setattr__(self, "every", checks.count("every", self.every))

    @property
    def name(self) -> str:
        """The attack in words."""
        return "noisy gradients"

    @property
    def sees_every_iterate(self) -> bool:
        """It needs the intermediate steps."""
        return True

    def start(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor]) -> GradientAttackRun:
        """Begin with nothing seen."""
        return GradientAttackRun(model, losses, canaries, self.every)


class GradientAttackRun:
    """:class:`GradientAttack` under way."""

    def __init__(self, model: nn.Module, losses: Losses, canaries: Sequence[Tensor], every: int) -> None:
        """Take the parameters that training changes."""
        self._parameters = [value for _, value in trainable_parameters(model)]
        self._losses, self._canaries, self._every = losses, canaries, every
        self._total = np.zeros(len(canaries[0]))

    def after_step(self, index: int) -> None:
        """Add the inner products of the released gradient with each canary's own gradient."""
        if index % self._every:
            return
        released = [value.grad.detach().clone() for value in self._parameters if value.grad is not None]
        parts = [self._products(part, released) for part in _portions(self._canaries)]
        self._total += np.concatenate(parts)

    def _products(self, part: Sequence[Tensor], released: Sequence[Tensor]) -> Array:
        losses = self._losses(*part)
        weights = torch.ones_like(losses, requires_grad=True)
        # The gradient of a weighted sum of losses is linear in the weights, so its derivative along the released
        # direction is every canary's own inner product: two passes back for all of them.
        together = torch.autograd.grad(losses, self._parameters, weights, create_graph=True)
        along = torch.stack([(one * other).sum() for one, other in zip(together, released, strict=True)]).sum()
        return np.asarray(torch.autograd.grad(along, weights)[0].double().cpu().numpy())

    def scores(self) -> Array:
        """Return the sums."""
        return self._total


def _portions(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    size = len(tensors[0])
    return [[tensor[start : start + _AT_ONCE] for tensor in tensors] for start in range(0, size, _AT_ONCE)]
