"""The laboratory's own training: many two-layer networks at once, by the gradient in closed form.

One step is ``w -= eta (mean of clipped gradients + noise)`` with noise of deviation ``noise_std`` on the *averaged*
gradient, as in Xu and Chen (2026, Equation 3). It simulates: batches are drawn without secrecy and there is no ledger,
so nothing that it trains is private. It is for made-up data, where hundreds of settings must be compared in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from privet import checks
from privet.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class PatchTraining:
    """Constants of a simulated training.

    Attributes:
        learning_rate: Of plain gradient steps.
        batch_size: Examples per step, the same in each.
        num_steps: How many steps.
        clip_norm: Bound on one example's gradient, all filters together.
    """

    learning_rate: float = 0.5
    batch_size: int = 100
    num_steps: int = 320
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        checks.count("batch_size", self.batch_size)
        checks.count("num_steps", self.num_steps, minimum=0)
        checks.positive("clip_norm", self.clip_norm)


class PatchOutcome(NamedTuple):
    """Losses of single examples and whether each is right, ``[runs, examples]``."""

    losses: Tensor
    is_right: Tensor


def initial_filters(
    num_runs: int, *, dimension: int, num_filters: int, seed: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Return fresh filters ``[runs, 2 * num_filters, dimension]``, uniform within ``1 / sqrt(dimension)``."""
    generator = torch.Generator().manual_seed(checks.count("seed", seed, minimum=0))
    shape = (checks.count("num_runs", num_runs), 2 * checks.count("num_filters", num_filters), dimension)
    return ((2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(dimension)).to(device)


def patch_logits(filters: Tensor, inputs: Tensor) -> Tensor:
    """Return the outputs ``[runs, examples, 2]`` of runs on their own inputs ``[runs, examples, 2, dimension]``."""
    return _outputs(_products(filters, inputs))


def clipped_mean_gradients(filters: Tensor, inputs: Tensor, labels: Tensor, *, clip_norm: float) -> Tensor:
    """Return the mean of each run's clipped gradients, ``[runs, 2 * num_filters, dimension]``.

    The gradient of an example in filter ``(j, r)`` is ``(s_j - [y = j]) / m`` times the sum of its active patches, so
    its length follows from counts of active filters and the three products of the patches.

    Args:
        filters: ``[runs, 2 * num_filters, dimension]``.
        inputs: ``[runs, examples, 2, dimension]``.
        labels: ``[runs, examples]``.
        clip_norm: Bound on one example.
    """
    num_runs, size = labels.shape
    products = _products(filters, inputs)
    active = (products > 0).to(inputs.dtype).reshape(num_runs, size, 2, 2, -1)
    num_filters = active.shape[-1]
    pulls = (_outputs(products).softmax(2) - torch.nn.functional.one_hot(labels, 2)) / num_filters
    lengths = inputs.square().sum(3)
    crossed = (inputs[:, :, 0] * inputs[:, :, 1]).sum(2)
    alone = active.sum(4)
    together = (active[:, :, 0] * active[:, :, 1]).sum(3)
    per_class = (alone * lengths[..., None]).sum(2) + 2 * together * crossed[..., None]
    norms = (pulls.square() * per_class).sum(2).clamp_min(0).sqrt()
    factors = (clip_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)
    weights = active * (pulls * factors[..., None] / size)[:, :, None, :, None]
    flat = weights.reshape(num_runs, size * 2, 2 * num_filters)
    return flat.mT @ inputs.reshape(num_runs, size * 2, -1)


def _products(filters: Tensor, inputs: Tensor) -> Tensor:
    num_runs, size = inputs.shape[:2]
    return (inputs.reshape(num_runs, size * 2, -1) @ filters.mT).reshape(num_runs, size, 2, -1)


def _outputs(products: Tensor) -> Tensor:
    num_runs, size = products.shape[:2]
    return products.relu().sum(2).reshape(num_runs, size, 2, -1).mean(3)


def train_patches(
    filters: Tensor, inputs: Tensor, labels: Tensor, training: PatchTraining, *, noise_stds: Tensor, seed: int
) -> Tensor:
    """Train every run on its own examples and return its filters; what was given is left alone.

    Args:
        filters: Where to begin, ``[runs, 2 * num_filters, dimension]``.
        inputs: ``[runs, examples, 2, dimension]``.
        labels: ``[runs, examples]``.
        training: Constants that all runs share.
        noise_stds: Deviation of each run's noise on the averaged gradient, ``[runs]``; zero trains without noise.
        seed: Of batches and noise.
    """
    num_examples = labels.shape[1]
    if training.batch_size > num_examples:
        raise ArgumentError(f"batch_size is {training.batch_size}, and there are only {num_examples} examples.")
    generator = torch.Generator().manual_seed(checks.count("seed", seed, minimum=0))
    current, scales = filters.clone(), noise_stds.to(filters)[:, None, None]
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(training.num_steps):
        if len(order) < training.batch_size:
            order = torch.randperm(num_examples, generator=generator)
        chosen, order = order[: training.batch_size], order[training.batch_size :]
        mean = clipped_mean_gradients(current, inputs[:, chosen], labels[:, chosen], clip_norm=training.clip_norm)
        noise = torch.randn(current.shape, generator=generator).to(current) * scales
        current -= training.learning_rate * (mean + noise)
    return current


def measure_patches(filters: Tensor, inputs: Tensor, labels: Tensor) -> PatchOutcome:
    """Return the loss of every example in every run, and whether it is classified rightly."""
    logits = patch_logits(filters, inputs)
    losses = -logits.log_softmax(2).gather(2, labels[..., None]).squeeze(2)
    return PatchOutcome(losses=losses, is_right=logits.argmax(2) == labels)
