"""A party's clipped sums: the part of a private step that comes before noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.federated.contributions import ClientUpdates
from privet.gradients.capture.marks import mark_batch
from privet.gradients.engines.engine import RunningEngine
from privet.gradients.engines.holding import held_factors
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.granularity import Kept
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.training.batching import MapDataset, fetch, split, tensors_of, with_gradients
from privet.training.guards import trainable_parameters
from privet.training.weights import StateGuard

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """What a party holds: its records, and what turns a batch of them into one loss each. Secret."""

    dataset: MapDataset
    losses: LossFunction
    physical_batch_size: int

    def __len__(self) -> int:
        return len(self.dataset)


def _of(batch: object) -> Sequence[object]:
    return batch if isinstance(batch, tuple | list) else (batch,)


def clipped_sum(
    model: nn.Module,
    records: Records,
    indices: NDArray[np.int64],
    *,
    engine: RunningEngine,
    layout: Layout,
    rule: ClippingRule,
    kept: Kept | None,
) -> ClippedSum:
    """Return the sum of the clipped gradients of some records. Secret.

    Guarantee:
        One record more or less moves the sum by at most ``rule.sensitivity``; masked coordinates are exactly zero. A
        record whose gradient is not finite adds zero, and no records make a sum of zeros.
    """
    device = next(model.parameters()).device
    total = ClippedSum(
        flat=torch.zeros(layout.num_coordinates, device=device),
        layout=layout,
        sensitivity=rule.sensitivity,
        keep=None if kept is None else kept.coordinates,
        kept=kept,
    )
    state = StateGuard(model)
    try:
        for part in split(indices, records.physical_batch_size):
            batch = fetch(records.dataset, part, None, device)
            leaves: Sequence[Tensor] = ()
            if engine.wants_input_gradients:
                batch, leaves = with_gradients(batch, len(part))
            mark_batch(tensors_of(batch))
            engine.begin(len(part), leaves)
            losses = records.losses(*_of(batch))
            state.check()
            engine.add_clipped(losses, rule, total)
    finally:
        engine.abandon()
    return total


def clipped_update(
    model: nn.Module,
    records: Records,
    way: ClientUpdates,
    *,
    layout: Layout,
    rule: ClippingRule,
    kept: Kept | None,
    rng: np.random.Generator,
) -> ClippedSum:
    """Train on all records without noise, and return the clipped way the weights went. Secret.

    Guarantee:
        The result is no longer than ``rule.sensitivity``, whatever the records are; masked coordinates are zero. An
        update that is not finite, and one from no records, is zero.
    """
    named = trainable_parameters(model)
    device = named[0][1].device
    before = [parameter.detach().clone() for _, parameter in named]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=way.learning_rate)
    weights = None if kept is None else [kept.weights[where] for where in layout.slices]
    for _ in range(way.local_epochs):
        order = rng.permutation(len(records)).astype(np.int64)
        for part in split(order, way.local_batch_size):
            optimizer.zero_grad()
            records.losses(*_of(fetch(records.dataset, part, None, device))).mean().backward()  # type: ignore[no-untyped-call]
            if weights is not None:
                for (_, parameter), factor in zip(named, weights, strict=True):
                    assert parameter.grad is not None
                    parameter.grad.mul_(factor.view(parameter.shape))
            optimizer.step()
    moved = [parameter.detach() - old for (_, parameter), old in zip(named, before, strict=True)]
    return ClippedSum(
        flat=clip(torch.cat([part.reshape(-1) for part in moved]), layout=layout, rule=rule),
        layout=layout,
        sensitivity=rule.sensitivity,
        keep=None if kept is None else kept.coordinates,
        kept=kept,
    )


def clip(flat: Tensor, *, layout: Layout, rule: ClippingRule) -> Tensor:
    """Return one vector, clipped as the rule clips the gradient of one example; zero if it is not finite."""
    squares = flat.new_zeros(layout.num_groups, dtype=torch.float64)
    for where, group in zip(layout.slices, layout.groups, strict=True):
        squares[group] += flat[where].double().square().sum()
    factors = held_factors(rule, squares.sqrt().unsqueeze(0), rule.sensitivity, layout.num_coordinates).squeeze(0)
    clipped = torch.zeros_like(flat)
    for where, group in zip(layout.slices, layout.groups, strict=True):
        if float(factors[group]) > 0:
            clipped[where] = (flat[where].double() * factors[group]).to(flat.dtype)
    return clipped
