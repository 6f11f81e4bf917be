"""What an architecture of the table is: a model, batches for it, and one loss per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
MakeBatch = Callable[[int], Batch]
Loss = Callable[[Batch], Tensor]
Built = tuple[nn.Module, MakeBatch, Loss]
Build = Callable[[], Built]

CLASSES = 5


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One row of the table.

    Attributes:
        name: What people call it.
        build: Makes a small model with random weights, in training mode.
        needs: The packages it comes from, besides torch.
    """

    name: str
    build: Build
    needs: tuple[str, ...] = ()


def logits_of(output: Any) -> Tensor:
    """Return the scores in what a model returns."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    return output[0]


def per_example(values: Tensor) -> Tensor:
    """Return the mean of everything that belongs to one example."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def class_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of scores [examples, classes]."""
    return nn.functional.cross_entropy(scores, labels, reduction="none")


def token_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of scores [examples, time, classes], averaged over an example's labelled tokens."""
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)


def images(num: int, shape: tuple[int, ...] = (3, 32, 32)) -> Batch:
    """Return images with classes."""
    return {"x": torch.randn(num, *shape), "y": torch.randint(0, CLASSES, (num,))}


def padded(num: int, length: int, shortest: int = 3) -> Tensor:
    """Return a mask of sequences of different lengths, padded at their ends."""
    lengths = torch.tensor([length - (number * 3) % (length - shortest + 1) for number in range(num)])
    return (torch.arange(length)[None, :] < lengths[:, None]).long()


def tokens(num: int, *, length: int = 16, vocabulary: int = 64) -> Batch:
    """Return padded sequences with a class for each, and a label for each token that is no padding."""
    mask = padded(num, length)
    ids = torch.randint(5, vocabulary, (num, length)) * mask + (1 - mask)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "y": torch.randint(0, CLASSES, (num,)),
        "labels": torch.where(mask.bool(), ids, -100),
    }
