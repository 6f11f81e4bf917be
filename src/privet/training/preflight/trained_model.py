"""The model of an experiment, as far as it may lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class TrainedModel(Protocol):
    """A model whose weights may be shared out between ranks, all of which run the same experiments.

    Attributes:
        model: The model.
    """

    @property
    def model(self) -> nn.Module: ...

    def settle(self) -> None:
        """Let the model hold nothing but the weights that it holds between two steps."""
        ...

    def gradient(self, total: Tensor) -> Sequence[Tensor | None]:
        """Return the gradient of a number, one tensor per trained parameter; of sharded ones this rank's part."""
        ...

    def everywhere(self, holds: bool) -> bool:
        """Whether something holds on all ranks."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeModel:
    """A model in one process."""

    model: nn.Module

    def settle(self) -> None:
        """Do nothing: the model holds its weights."""

    def gradient(self, total: Tensor) -> Sequence[Tensor | None]:
        parameters = [value for value in self.model.parameters() if value.requires_grad]
        return torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)

    def everywhere(self, holds: bool) -> bool:
        return holds
