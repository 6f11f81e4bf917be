"""Measuring a trained network on the test split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.datasets.info import DatasetInfo
from privet.runs.measures import Measure, mean, share

_BATCH = 1000


@torch.no_grad()
def measure_model(model: nn.Module, test: ArrayDataset, info: DatasetInfo) -> tuple[Measure, ...]:
    """Return every measure of the task with its interval: accuracy and loss of classes, errors of numbers.

    Not covered by the guarantee: exact functions of the test data. A mean that is not finite is left out.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found: dict[str, Tally] = {}
    try:
        for start in range(0, len(test), _BATCH):
            indices = torch.arange(start, min(start + _BATCH, len(test)))
            features, targets = (part.to(device) for part in test.take(indices))
            for name, values in info.task.scores(model(features), targets).items():
                found.setdefault(name, Tally(name=name, is_share=values.dtype == torch.bool)).add(values)
    finally:
        model.train(was_training)
    return tuple(tally.measure() for tally in found.values() if tally.is_finite)


@dataclass(kw_only=True)
class Tally:
    """The running sums of one measure over examples.

    Attributes:
        name: Name of the measure.
        is_share: Whether its values are true or false.
    """

    name: str
    is_share: bool
    num_examples: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Tensor) -> None:
        """Add the values of some examples."""
        wide = values.double()
        self.num_examples += len(values)
        self.total += float(wide.sum())
        self.squares += float(wide.square().sum())

    @property
    def is_finite(self) -> bool:
        """Whether the mean and its interval are finite."""
        return math.isfinite(self.squares)

    def measure(self) -> Measure:
        """Return the share or the mean, with its interval."""
        if self.is_share:
            return share(self.name, round(self.total), self.num_examples)
        return mean(self.name, self.total, self.squares, self.num_examples)
