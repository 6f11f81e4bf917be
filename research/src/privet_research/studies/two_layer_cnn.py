"""The two-layer ReLU network of the two-patch task: filters shared by both patches, a fixed second layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privet import checks


class TwoLayerCnn(nn.Module):
    """``F_j(x) = (1/m) sum_r [relu<w_jr, x1> + relu<w_jr, x2>]`` for classes ``j`` (Xu and Chen, 2026, Equation 1).

    Only the filters are trained. They begin with PyTorch's default, uniform within ``1 / sqrt(dimension)``.

    Args:
        dimension: Length of a patch.
        num_filters: Filters of each class, the paper's ``m``.
        num_classes: Outputs.
    """

    def __init__(self, dimension: int, *, num_filters: int = 20, num_classes: int = 2) -> None:
        super().__init__()
        self.num_filters = checks.count("num_filters", num_filters)
        self.num_classes = checks.count("num_classes", num_classes)
        self.filters = nn.Linear(checks.count("dimension", dimension), self.num_classes * self.num_filters, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one output per class for inputs ``[examples, patches, dimension]``."""
        active = torch.relu(self.filters(inputs)).sum(1)
        return active.reshape(len(inputs), self.num_classes, self.num_filters).mean(2)
