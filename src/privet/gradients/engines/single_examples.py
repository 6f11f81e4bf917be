"""A model as a function of its trainable parameters and one example, for ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def single_example_function(
    model: nn.Module,
) -> tuple[dict[str, Tensor], Callable[[Mapping[str, Tensor], Tensor], Tensor]]:
    """Return the detached trainable parameters, and the function from parameters and one example to its outputs.

    The function adds the batch axis, so its outputs have a batch axis of size one.
    """
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    fixed = {name: value.detach() for name, value in model.named_parameters() if not value.requires_grad}
    fixed |= dict(model.named_buffers())

    def outputs_of(parameters: Mapping[str, Tensor], example: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(model, {**fixed, **parameters}, (example.unsqueeze(0),))
        return outputs

    return trained, outputs_of
