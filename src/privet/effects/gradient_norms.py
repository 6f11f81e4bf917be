"""Norms of per-example gradients at a given model, which show the effect of clipping on each example.

Not private: exact functions of the examples. Use public data.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from privet import checks
from privet.errors import DataError, UnsupportedModel
from privet.gradients.engines.single_examples import single_example_function
from privet.gradients.engines.support import quiet_vmap


def gradient_norms(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch_size: int = 250) -> NDArray[np.float64]:
    """Return the norm of each example's cross entropy gradient in all trainable parameters.

    Args:
        model: A classifier without interaction between examples. A copy in evaluation mode is used.
        inputs: The examples.
        labels: Their classes.
        batch_size: Number of examples per vmap call, to limit memory.

    Raises:
        UnsupportedModel: the model does not run on single examples.
        DataError: a gradient is not finite.
    """
    frozen_copy = copy.deepcopy(model).eval()
    trained, outputs_of = single_example_function(frozen_copy)
    device = next(frozen_copy.parameters()).device

    def loss_of(parameters: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(outputs_of(parameters, example), label.unsqueeze(0))

    slopes_of = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    size, found = checks.count("batch_size", batch_size), []
    for part, truth in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
        try:
            with quiet_vmap():
                slopes = slopes_of(trained, part.to(device), truth.to(device))
        except (RuntimeError, ValueError) as error:
            raise UnsupportedModel(
                f"Per-example gradients need a model that runs on single examples: {str(error).splitlines()[0]}"
            ) from error
        squares = torch.stack([value.flatten(1).square().sum(1) for value in slopes.values()])
        found.append(squares.sum(0).sqrt().double().cpu())
    norms = torch.cat(found).numpy() if found else np.zeros(0)
    if not np.isfinite(norms).all():
        raise DataError("A per-example gradient is not finite. Use examples with finite losses.")
    return norms
