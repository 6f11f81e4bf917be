"""Measuring a trained network on the test split."""

from __future__ import annotations

import math

import torch
from torch import nn

from privet.datasets.arrays import ArrayDataset
from privet.datasets.info import DatasetInfo
from privet.runs.building import losses_of
from privet.runs.measures import Measure, mean, share

_BATCH = 1000


@torch.no_grad()
def measure_model(model: nn.Module, test: ArrayDataset, info: DatasetInfo) -> tuple[Measure, ...]:
    """Return accuracy and loss (or the squared error of a regression), each with its interval.

    Not covered by the guarantee: exact functions of the test data. A loss that is not finite is left out.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    num_right, total, squares = 0, 0.0, 0.0
    try:
        for start in range(0, len(test), _BATCH):
            indices = torch.arange(start, min(start + _BATCH, len(test)))
            features, labels = (part.to(device) for part in test.take(indices))
            outputs = model(features)
            losses = losses_of(info, outputs, labels).double()
            total, squares = total + float(losses.sum()), squares + float(losses.square().sum())
            if info.num_classes is not None:
                num_right += int((outputs.argmax(1) == labels).sum())
    finally:
        model.train(was_training)
    found = [] if info.num_classes is None else [share("accuracy", num_right, len(test))]
    if math.isfinite(squares):
        name = "squared error" if info.num_classes is None else "cross entropy"
        found.append(mean(name, total, squares, len(test)))
    return tuple(found)
