"""Averages of the weights over the course of training: free of charge, and often better than the last weights.

Every iterate of a run is covered by its guarantee, so whatever is computed from iterates alone is covered as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet import checks
from privet.errors import CheckpointError, LoopError
from privet.gradients.sharding.local import placed_like, settle
from privet.mechanism.noise import Noise
from privet.mechanism.sums import ClippedSum
from privet.training.loop_events import Observer


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """Keep a moving average of the trainable weights: ``average = decay * average + (1 - decay) * weights``.

    Attributes:
        decay: How much of the average is kept in each step. Early steps keep less, ``(1 + step) / (10 + step)``, so
            that the initial weights are soon forgotten (De et al. 2022).
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        """Refuse a decay outside (0, 1)."""
        object.__setattr__(self, "decay", checks.probability("decay", self.decay))

    def start(self, model: nn.Module) -> RunningAverage:
        """Begin with the model's present weights."""
        return RunningAverage(model, self.decay)


class RunningAverage(Observer):
    """The average of one model's weights during one run.

    Not torch's ``AveragedModel``: that one copies the whole model, frozen weights included, takes the first weights it
    meets for the average instead of the initial ones, counts updates instead of steps of the plan (which differ after
    a crash), and cannot be put into the model for a while.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Copy the present weights."""
        self._decay, self._model = decay, model
        self._weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._average = {name: value.detach().clone() for name, value in self._weights.items()}
        self._is_applied = False

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        self.check_not_applied()

    def before_public_change(self) -> None:
        self.check_not_applied()

    def check_not_applied(self) -> None:
        """Refuse to go on while the model holds the average instead of its own weights."""
        if self._is_applied:
            raise LoopError("The averaged weights are in the model. Leave the averaged() block before training on.")

    def after_update(self, step: int, num_examples: int) -> None:
        self.update(step)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step number ``step``."""
        decay = min(self._decay, (1 + step) / (10 + step))
        weights = [value.detach() for value in self._weights.values()]
        torch._foreach_lerp_(list(self._average.values()), weights, 1 - decay)

    @contextmanager
    def applied(self, changing: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
        """Put the averaged weights into the model for the length of the block.

        Args:
            changing: The context in which the weights may change. They may not while the block runs: what changed them
                then would end up in the average.
        """
        if self._is_applied:
            raise LoopError("The averaged weights are in the model already; averaged() blocks cannot be nested.")
        with changing():
            self._exchange()
        self._is_applied = True
        try:
            yield
        finally:
            self._is_applied = False
            with changing():
                self._exchange()

    def adopt(self) -> None:
        """Put the averaged weights into the model and leave them there."""
        self.check_not_applied()
        self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        settle(self._model)
        for name, value in self._weights.items():
            kept = value.detach().clone()
            value.copy_(self._average[name])
            self._average[name].copy_(kept)

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the averaged weights by the names of the parameters, for a checkpoint."""
        return self._average

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint's average.

        Raises:
            CheckpointError: if the checkpoint holds no average, or that of another model.
        """
        fits = tensors.keys() == self._average.keys()
        if not fits or any(tensors[name].shape != value.shape for name, value in self._average.items()):
            raise CheckpointError(
                "The checkpoint holds no average of this model's weights. Resume without averaging, or start in a new "
                "folder."
            )
        for name, value in self._average.items():
            value.copy_(placed_like(value, tensors[name]))
