"""A loss function that gets one example at a time, for models whose batches no rule can take apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.errors import DataError
from privet.isolation.parts import tensors_of, with_tensors

LossFunction = Callable[..., Tensor]


def one_at_a_time(losses: LossFunction) -> LossFunction:
    """Turn a function from a batch to its losses into one that calls it for each example by itself.

    For models that join the examples of a batch into something larger, such as one wide graph, and still give each a
    loss of its own; and for those that cannot take a batch. A pass through the model has one example, so a step takes
    as many passes as examples. Tensors of the batch keep their first axis, of length one.

    Guarantee:
        Each loss is computed from a batch of one example, so it depends on that example, on public values and on
        randomness alone, whatever the model does with a batch. The rules hold this as they hold any program.

    Raises:
        DataError: if the batch has no tensor with an axis of examples, or the function returns more or less than one
            loss for an example.
    """

    def alone(*batch: Any) -> Tensor:
        lengths = [len(tensor) for tensor in tensors_of(batch) if tensor.dim()]
        if not lengths:
            raise DataError("one_at_a_time needs a batch with tensors whose first axis is that of the examples.")
        size = lengths[0]
        found = []
        for place in range(size):
            example = with_tensors(batch, lambda tensor, place=place: _row(tensor, place, size))  # type: ignore[misc]
            loss = losses(*example)
            if loss.numel() != 1:
                raise DataError(
                    f"The loss function under one_at_a_time returned {loss.numel()} losses for one example; it must "
                    "return one."
                )
            found.append(loss.reshape(1))
        return torch.cat(found)

    return alone


def _row(tensor: Tensor, place: int, size: int) -> Tensor:
    has_examples = tensor.dim() > 0 and len(tensor) == size
    return tensor[place : place + 1] if has_examples else tensor
