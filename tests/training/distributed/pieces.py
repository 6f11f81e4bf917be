"""Runs of all pieces of a plan in pairs, small enough to be made many times, on one process or on ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet.errors import PrivetError
from privet.gradients.engines.engine import Engine
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.grouping import PerLayer
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.release_masks import ChosenMask
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import MapDataset
from privet.training.performance import Performance
from privet.training.persons import PersonRecords
from privet.training.session import Session
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from tests.contract import noises, samplers, test_clipping, test_engines, test_masks

SIZE, STEPS = samplers.SIZE, 2
FROZEN = np.arange(noises.SIZE) % 3 == 0


class Network(nn.Module):
    """A network with the layout that the suite of noises is written for."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Linear(3, 2, dtype=dtype), nn.Linear(4, 1, bias=False, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.a(inputs[:, :3]).tanh()
        found: Tensor = self.b(torch.cat([hidden, inputs[:, 3:]], 1))
        return found.squeeze(1)

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return (self(inputs) - targets).square()


def records(dtype: torch.dtype, num: int = SIZE) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(num, 5, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randn(num, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(inputs, targets)


SAMPLINGS = [members[0].piece for members in samplers.SAMPLERS.values()]
# the noise of epochs is made for a number of batches, and the first of the suite's banded ones has one band
_NOISES = {kind: members[0].piece for kind, members in noises.NOISES.items()} | {
    BandedGaussian: noises.NOISES[BandedGaussian][-1].piece,
    BandedInverseGaussian: BandedInverseGaussian(coefficients=(1.0, -0.5), batches=8, epochs=2, noise_multiplier=1.2),
}
NOISES = list(_NOISES.values())
CLIPPINGS = [pairs[0][0] for pairs in test_clipping.CLIPPINGS.values()]
MASKS = [
    members[0].mask if kind is not ChosenMask else ChosenMask.freezing(FROZEN)
    for kind, members in test_masks.MASKS.items()
]
ENGINES: Sequence[Engine] = list(test_engines.ENGINES.values())
FAMILIES: Mapping[str, Sequence[Any]] = {
    "sampling": SAMPLINGS, "noise": NOISES, "clipping": CLIPPINGS, "mask": MASKS, "engine": ENGINES,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run: the place of its piece in each family."""

    places: tuple[int, ...]

    def piece(self, family: str) -> Any:
        return FAMILIES[family][self.places[list(FAMILIES).index(family)]]

    @property
    def pairs(self) -> frozenset[tuple[tuple[int, int], tuple[int, int]]]:
        return frozenset(itertools.combinations(enumerate(self.places), 2))

    @property
    def dtype(self) -> torch.dtype:
        return (torch.float32, torch.float64)[sum(self.places) % 2]

    @property
    def unit(self) -> Unit:
        return Unit.PERSON if isinstance(self.piece("sampling"), SampledPersons | BoundedPersons) else Unit.RECORD

    def dataset(self) -> MapDataset:
        found = records(self.dtype)
        return found if self.unit is Unit.RECORD else PersonRecords(dataset=found, persons=np.arange(SIZE) % 90)

    def plan(self) -> Plan:
        refused = samplers.SAMPLERS[type(self.piece("sampling"))][0].refused
        adjacency = next(each for each in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE) if each not in refused)
        return Plan(
            sampling=self.piece("sampling"), clipping=self.piece("clipping"), noise=self.piece("noise"),
            mask=self.piece("mask"), grouping=PerLayer(), delta=1e-5, adjacency=adjacency, unit=self.unit,
        )  # fmt: skip

    def session(self, *, seed: int = 11, **others: Any) -> Session:
        model = Network(self.dtype)
        return privatize(
            model, SGD(model.parameters(), lr=0.1, momentum=0.5), self.dataset(), self.plan(),
            performance=Performance(engine=self.piece("engine"), physical_batch_size=(30, 70, 256)[self.places[1] % 3]),
            averaging=ExponentialAverage(), seed=seed, **others,
        )  # fmt: skip

    def weights(self, **others: Any) -> list[float]:
        """Train for some steps; return the weights and their average."""
        session = self.session(**others)
        model: Any = session.model
        with session:
            for step in itertools.islice(session.steps(), STEPS):
                step.accumulate(model.losses)
                step.update()
        found = torch.cat([value.detach().flatten() for value in model.parameters()])
        with session.averaged():
            average = torch.cat([value.detach().flatten() for value in model.parameters()])
        return [*found.tolist(), *average.tolist()]


# A pair that failed in so many rows, each with other pieces beside it, does not go together.
_TRIES = 4


@cache
def covering() -> dict[Row, list[float]]:
    """Return rows in which every pair of pieces that go together occurs, greedily few, with the weights of each run."""
    sizes = [len(pieces) for pieces in FAMILIES.values()]
    rows = [Row(places=places) for places in itertools.product(*map(range, sizes))]
    left = Counter(dict.fromkeys((pair for row in rows for pair in row.pairs), _TRIES))
    order = np.random.default_rng(0).permutation(len(rows))
    found: dict[Row, list[float]] = {}
    for wanted in range(10, 0, -1):  # first rows with ten new pairs, then with nine, ...
        for row in (rows[place] for place in order):
            if row not in found and sum(left[pair] > 0 for pair in row.pairs) >= wanted:
                try:
                    found[row] = row.weights()
                    left.subtract(dict.fromkeys(row.pairs, _TRIES))
                except PrivetError:
                    left.subtract(dict.fromkeys(row.pairs, 1))
    return found | _partners_of_lonely_pieces(rows, found)


def _partners_of_lonely_pieces(rows: list[Row], found: Mapping[Row, object]) -> dict[Row, list[float]]:
    """Return a row for each piece that goes with so few others that no row was found for it, where there is one."""
    more: dict[Row, list[float]] = {}
    for family, pieces in enumerate(FAMILIES.values()):
        for place in range(len(pieces)):
            if not any(row.places[family] == place for row in (*found, *more)):
                for row in (row for row in rows if row.places[family] == place):
                    with suppress(PrivetError):
                        more[row] = row.weights()
                        break
    return more
