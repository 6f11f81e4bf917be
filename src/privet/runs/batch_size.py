"""The physical batch size of a run: the recipe's number, or one that is found by trying."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from privet.plan import Plan
from privet.training.batching import MapDataset, fetch
from privet.training.physical_batch import suggest_physical_batch


def find_physical_batch_size(
    model: nn.Module, losses: Callable[..., Tensor], dataset: MapDataset, plan: Plan, device: torch.device
) -> int:
    """Try sizes up to the expected logical batch on made-up examples of the data's shape.

    One record is looked at for its shape; none of its values enters the trials. The model is left as it was.
    """
    shape_of = fetch(dataset, np.zeros(1, dtype=np.int64), None, device)
    limit = max(1, math.ceil(plan.sampling.expected_batch_size))
    was_training = model.training
    model.train()
    try:
        return suggest_physical_batch(model, losses, pytree.tree_map_only(Tensor, _made_up, shape_of), limit=limit)
    finally:
        model.train(was_training)


def _made_up(tensor: Tensor) -> Tensor:
    """Return other values of the same shape and type: normal numbers, or zeros, which every label and id may be."""
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    generator = torch.Generator(tensor.device).manual_seed(0)
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)
