"""Lengths of single examples' gradients at a given model, for looking at what clipping does to whom.

Not private: exact functions of the examples. Meant for public data.
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
from privet.gradients.engines.support import quiet_vmap


def gradient_norms(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch_size: int = 250) -> NDArray[np.float64]:
    """Return the length of each example's cross entropy gradient in all parameters that training may change.

    Args:
        model: A classifier whose examples do not interact. It is copied, put into evaluation mode, and not changed.
        inputs: The examples.
        labels: Their classes.
        batch_size: Examples whose gradients are held at once.

    Raises:
        UnsupportedModel: the model does not run one example at a time.
        DataError: a gradient is not finite.
    """
    still = copy.deepcopy(model).eval()
    trained = {name: value.detach() for name, value in still.named_parameters() if value.requires_grad}
    fixed = {name: value.detach() for name, value in still.named_parameters() if not value.requires_grad}
    fixed |= dict(still.named_buffers())
    device = next(still.parameters()).device

    def loss_of(parameters: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(still, {**fixed, **parameters}, (example.unsqueeze(0),))
        return functional.cross_entropy(outputs, label.unsqueeze(0))

    slopes_of = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    size, found = checks.count("batch_size", batch_size), []
    for part, truth in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
        try:
            with quiet_vmap():
                slopes = slopes_of(trained, part.to(device), truth.to(device))
        except (RuntimeError, ValueError) as error:
            raise UnsupportedModel(
                f"Gradients of single examples need a model that treats them one by one: {str(error).splitlines()[0]}"
            ) from error
        squares = torch.stack([value.flatten(1).square().sum(1) for value in slopes.values()])
        found.append(squares.sum(0).sqrt().double().cpu())
    norms = torch.cat(found).numpy() if found else np.zeros(0)
    if not np.isfinite(norms).all():
        raise DataError("A gradient is not finite, so nothing can be said about clipping.")
    return norms
