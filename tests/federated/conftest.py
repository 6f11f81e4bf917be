"""A small federation that every test of this folder can take part in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privet.federated.agreement import Agreement
from privet.federated.contributions import ClippedSums, Contribution
from privet.federated.coordinator import Coordinator
from privet.federated.party import Party
from privet.mechanism.clipping import Threshold
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import SharedRandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit

NUM_PARTIES, RECORDS, FEATURES, CLASSES = 3, 8, 5, 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def all_records() -> TensorDataset:
    rng = torch.Generator().manual_seed(1)
    size = NUM_PARTIES * RECORDS
    features = torch.randn(size, FEATURES, generator=rng)
    return TensorDataset(features, torch.randint(CLASSES, (size,), generator=rng))


def losses_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: nn.functional.cross_entropy(model(x), y, reduction="none")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A folder, an agreement, and the parties made from them."""

    folder: Path
    agreement: Agreement

    def with_agreement(self, agreement: Agreement) -> Federation:
        return replace(self, agreement=agreement)

    def coordinator(self, *, seed: int | None = 5) -> Coordinator:
        folder = self.folder / "coordinator"
        return Coordinator(agreement=self.agreement, model=network(), folder=folder, seed=seed, checkpoint_every=1)

    def party(self, number: int, *, seed: int | None = 9, agreement: Agreement | None = None) -> Party:
        model, every = network(), all_records().tensors
        mine = slice(number * RECORDS, (number + 1) * RECORDS)
        return Party(
            agreement=agreement or self.agreement,
            model=model,
            dataset=TensorDataset(*(part[mine] for part in every)),
            losses=losses_of(model),
            folder=self.folder / f"party{number}",
            seed=None if seed is None else seed + number,
        )

    def parties(self) -> dict[int, Party]:
        return {number: self.party(number) for number in range(NUM_PARTIES)}


def plan_of(
    sampling: Sampling | None = None, *, rate: float = 0.5, noise_multiplier: float = 1.0, unit: Unit = Unit.RECORD
) -> Plan:
    return Plan(
        sampling=sampling or FullBatch(steps=4, expected_batch_size=NUM_PARTIES * RECORDS),
        clipping=Threshold(norm=0.5),
        noise=Gaussian(noise_multiplier=noise_multiplier),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=unit,
        mask=SharedRandomMask(schedule=Constant(value=rate), seed=3, refresh_every=1),
    )


def agreement_of(plan: Plan, contribution: Contribution | None = None, *, learning_rate: float = 1.0) -> Agreement:
    return Agreement(
        plan=plan,
        contribution=contribution or ClippedSums(),
        learning_rate=learning_rate,
        max_records=RECORDS,
    )


def poisson(steps: int, *, rate: float = 0.5, size: float = NUM_PARTIES * RECORDS) -> Poisson:
    return Poisson(rate=rate, steps=steps, expected_batch_size=rate * size)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(folder=tmp_path, agreement=agreement_of(plan_of()))
