"""A party's clipped sums: the part of a private step that comes before noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.accounting.ledger import Ledger
from privet.federated.contributions import ClientUpdates
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.holding import held_factors
from privet.isolation.watch import Watch
from privet.mechanism.clipping import ClippingRule, FixedRun
from privet.mechanism.granularity import Kept
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Noise
from privet.mechanism.sampling import Sampling
from privet.mechanism.sums import ClippedSum
from privet.training.batching import MapDataset, split, tensors_held
from privet.training.evidence import EvidenceRecorder
from privet.training.launch.replay import EagerLauncher
from privet.training.loading import fetch, in_process
from privet.training.loop_events import Events
from privet.training.persons import PersonDraws
from privet.training.preflight.preflight import Preflight
from privet.training.randomness import Streams
from privet.training.reading import Indices
from privet.training.summing import LogicalBatch, Summation, examples_at_once
from privet.training.trained import trainable_parameters
from privet.training.weight_watch.guard import LoopGuard

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """A party's records and its loss function. Secret.

    Attributes:
        dataset: The data set that is read; one item is one record.
        losses: Maps the items of a batch to one loss each.
        physical_batch_size: The number of records in one forward pass.
        persons: Draws records of persons; None if items are drawn as they are.
    """

    dataset: MapDataset
    losses: LossFunction
    physical_batch_size: int
    persons: PersonDraws | None = None

    @property
    def records_per_item(self) -> int:
        return 1 if self.persons is None else self.persons.contribution.records_per_item

    def drawn(self, sampling: Sampling, streams: Streams) -> Indices:
        """Draw the batch of a round with one step."""
        if self.persons is None:
            return next(sampling.round_batches(len(self), streams.sampling))
        return next(self.persons.round(streams.sampling, streams.records))

    def __len__(self) -> int:
        return len(self.dataset)


def _as_sequence(batch: object) -> Sequence[object]:
    return batch if isinstance(batch, tuple | list) else (batch,)


class PartySums:
    """Computes the clipped sums of a party, with the guards of a training session.

    The first batch of an engine includes slow checks of the network, so one object serves all rounds.
    """

    def __init__(
        self, model: nn.Module, records: Records, *, engine: Engine, layout: Layout, device: torch.device
    ) -> None:
        self._model, self._layout, self._device = model, layout, device
        self._parameters = [parameter for _, parameter in trainable_parameters(model)]
        self._watch = Watch()
        for tensor in tensors_held(records.dataset):
            self._watch.programs.write(tensor)
        self._preflight = Preflight(model, self._watch)
        self._engine = engine.start(model, self._parameters, layout, self._watch)
        self._records = records

    def clipped_sum(
        self,
        indices: NDArray[np.int64],
        *,
        rule: ClippingRule,
        kept: Kept | None,
        noise: Noise,
        ledger: Ledger,
        number: int,
    ) -> ClippedSum:
        """Return the sum of the clipped gradients of some records. Secret.

        Args:
            indices: Positions of the records.
            rule: The clipping rule.
            kept: The kept coordinates; None for all.
            noise: The noise of the coordinator.
            ledger: Records evidence from trials and unexplained changes of weights.
            number: Number of the round.

        Guarantee:
            One record more or less changes the sum by at most ``rule.sensitivity``; masked coordinates are exactly
            zero. A record whose gradient is not finite adds zero; without records the sum is zero.
        """
        total = ClippedSum(
            flat=torch.zeros(self._layout.num_coordinates, device=self._device),
            layout=self._layout,
            sensitivity=rule.sensitivity,
            keep=None if kept is None else kept.coordinates,
            kept=kept,
        )
        optimizer = torch.optim.SGD(self._parameters, lr=0.0)  # never steps: broadcasts set the weights of a party
        guard = LoopGuard(self._model, optimizer, found=lambda: ledger.note_unexplained_change(step=number))
        evidence = EvidenceRecorder(ledger=ledger, watch=self._watch, preflight=self._preflight)
        events = Events.of([guard, evidence])
        at_once = examples_at_once(self._records.physical_batch_size, self._records.records_per_item)
        summation = Summation(
            loader=in_process(
                self._records.dataset, None, self._device, records_per_item=self._records.records_per_item
            ),
            device=self._device,
            engine=self._engine,
            launcher=EagerLauncher(),
            watch=self._watch,
            preflight=self._preflight,
            clipping=FixedRun(rule=rule),
            events=events,
            physical_batch_size=at_once,
            usual_size=at_once,
            records_per_item=self._records.records_per_item,
            cuts=False,  # a process may serve one round only: its sums must not depend on earlier rounds
        )
        batch = LogicalBatch(summation, indices, rule=rule, clipped=total, index=number, steps_taken=number)
        try:
            batch.accumulate(self._records.losses)
            batch.check_complete()
            for notify in events.before_noise:
                notify(total, noise)
        finally:
            guard.close()
        return total


def clipped_update(
    model: nn.Module,
    records: Records,
    contribution: ClientUpdates,
    *,
    layout: Layout,
    rule: ClippingRule,
    kept: Kept | None,
    rng: np.random.Generator,
) -> ClippedSum:
    """Train on all records without noise, and return the clipped change of the weights. Secret.

    Guarantee:
        The norm of the result is at most ``rule.sensitivity`` for any records; masked coordinates are zero. An update
        that is not finite, or without records, is zero.
    """
    named = trainable_parameters(model)
    device = named[0][1].device
    before = [parameter.detach().clone() for _, parameter in named]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=contribution.learning_rate)
    weights = None if kept is None else [kept.weights[where] for where in layout.slices]
    for _ in range(contribution.local_epochs):
        order = rng.permutation(len(records)).astype(np.int64)
        for part in split(order, contribution.local_batch_size):
            optimizer.zero_grad()
            records.losses(*_as_sequence(fetch(records.dataset, part, None, device))).mean().backward()  # type: ignore[no-untyped-call]
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
    """Clip one vector like the gradient of one example; the result is zero if it is not finite."""
    squares = flat.new_zeros(layout.num_groups, dtype=torch.float64)
    for where, group in zip(layout.slices, layout.groups, strict=True):
        squares[group] += flat[where].double().square().sum()
    factors = held_factors(rule, squares.sqrt().unsqueeze(0), rule.sensitivity, layout.num_coordinates).squeeze(0)
    clipped = torch.zeros_like(flat)
    for where, group in zip(layout.slices, layout.groups, strict=True):
        if float(factors[group]) > 0:
            clipped[where] = (flat[where].double() * factors[group]).to(flat.dtype)
    return clipped
