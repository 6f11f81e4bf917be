"""Every sampler in small, with what it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from scipy.special import bdtrc

from privet.mechanism.balls_in_bins import BallsInBins
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.events import RandomAllocationDpEvent, SampledRecordsDpEvent, TotalVariationDpEvent
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson, Sampling
from privet.mechanism.truncated import TruncatedPoisson, Truncation
from privet.vocabulary import Adjacency

ADD_REMOVE, REPLACE_ONE, ZERO_OUT = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT


@dataclass(frozen=True, kw_only=True)
class Member:
    """A sampler with what it declares.

    Attributes:
        piece: The sampler.
        marginal: How often an example joins a step.
        round_event: What a round costs.
        refused: For which adjacencies it has no proof.
        sizes: The numbers of records it takes; None for all.
        same_every_round: Whether the same batches come back, as planned and told.
    """

    piece: Sampling
    marginal: float
    round_event: DpEvent
    refused: frozenset[Adjacency] = frozenset()
    sizes: Callable[[int], bool] = lambda size: True
    same_every_round: bool = False

    def __str__(self) -> str:
        return repr(self.piece)


NOISE = GaussianDpEvent(1.3)
SIZE = 200
SAMPLERS: Mapping[type, Sequence[Member]] = {
    Poisson: [
        Member(
            piece=Poisson(rate=0.1, steps=7, expected_batch_size=20),
            marginal=0.1,
            round_event=PoissonSampledDpEvent(0.1, NOISE),
        ),
        Member(piece=Poisson(rate=1, steps=3, expected_batch_size=SIZE), marginal=1.0, round_event=NOISE),
    ],
    FullBatch: [Member(piece=FullBatch(steps=4, expected_batch_size=SIZE), marginal=1.0, round_event=NOISE)],
    FixedSize: [
        Member(
            piece=FixedSize(dataset_size=SIZE, batch_size=25, steps=7),
            marginal=1 / 8,
            round_event=SampledWithoutReplacementDpEvent(SIZE, 25, NOISE),
            refused=frozenset([ADD_REMOVE, ZERO_OUT]),
            sizes=lambda size: size == SIZE,
        ),
        Member(
            piece=FixedSize(dataset_size=SIZE, batch_size=SIZE, steps=2),
            marginal=1.0,
            round_event=NOISE,
            refused=frozenset([ADD_REMOVE, ZERO_OUT]),
            sizes=lambda size: size == SIZE,
        ),
    ],
    Shuffle: [
        Member(
            piece=Shuffle(batches=8, epochs=2, expected_batch_size=25),
            marginal=1 / 8,
            round_event=NOISE,
            refused=frozenset([ADD_REMOVE]),
        )
    ],
    Cyclic: [
        Member(
            piece=Cyclic(batches=8, epochs=2, expected_batch_size=25, secret_partition=is_secret),
            marginal=1 / 8,
            round_event=NOISE,
            refused=frozenset([ADD_REMOVE]),
            same_every_round=True,
        )
        for is_secret in (True, False)
    ],
    BallsInBins: [
        Member(
            piece=BallsInBins(batches=8, epochs=2, expected_batch_size=25),
            marginal=1 / 8,
            round_event=RandomAllocationDpEvent(steps=8, event=NOISE),
            refused=frozenset([REPLACE_ONE]),
        )
    ],
    CyclicPoisson: [
        Member(
            piece=CyclicPoisson(groups=4, rate=0.4, cycles=3, expected_batch_size=20),
            marginal=0.1,
            round_event=PoissonSampledDpEvent(0.4, NOISE),
        ),
        Member(
            piece=CyclicPoisson(groups=5, rate=1, cycles=2, expected_batch_size=40),
            marginal=0.2,
            round_event=NOISE,
            same_every_round=True,
        ),
    ],
    TruncatedPoisson: [
        # limits so far above the expected 30 that what they drop cannot be seen in the rates
        Member(
            piece=TruncatedPoisson(rate=0.1, steps=7, dataset_size=300, max_batch_size=70),
            marginal=0.1,
            round_event=TruncatedSubsampledGaussianDpEvent(300, 0.1, 70, 1.3),
            sizes=lambda size: size <= 300,
        ),
        Member(
            piece=TruncatedPoisson(
                rate=0.1, steps=7, dataset_size=300, max_batch_size=50, truncation=Truncation.TOTAL_VARIATION
            ),
            marginal=0.1,
            round_event=ComposedDpEvent(
                [PoissonSampledDpEvent(0.1, NOISE), TotalVariationDpEvent(distance=float(bdtrc(50, 300, 0.1)))]
            ),
            sizes=lambda size: size <= 300,
        ),
    ],
    SampledPersons: [
        Member(
            piece=SampledPersons(sampling=Poisson(rate=0.1, steps=7, expected_batch_size=20), max_records=3),
            marginal=0.1,
            round_event=PoissonSampledDpEvent(0.1, NOISE),
        ),
        Member(
            piece=SampledPersons(sampling=FixedSize(dataset_size=SIZE, batch_size=25, steps=7), max_records=1),
            marginal=1 / 8,
            round_event=SampledWithoutReplacementDpEvent(SIZE, 25, NOISE),
            refused=frozenset([ADD_REMOVE, ZERO_OUT]),
            sizes=lambda size: size == SIZE,
        ),
        Member(
            piece=SampledPersons(sampling=Shuffle(batches=8, epochs=2, expected_batch_size=25), max_records=2),
            marginal=1 / 8,
            round_event=NOISE,
            refused=frozenset([ADD_REMOVE]),
        ),
    ],
    BoundedPersons: [
        Member(
            piece=BoundedPersons(sampling=Poisson(rate=0.1, steps=7, expected_batch_size=20), max_records=3),
            marginal=0.1,
            round_event=SampledRecordsDpEvent(sampling_probability=0.1, num_records=3, noise_multiplier=1.3),
            refused=frozenset([REPLACE_ONE]),
        ),
        Member(
            piece=BoundedPersons(sampling=Poisson(rate=0.1, steps=7, expected_batch_size=20), max_records=1),
            marginal=0.1,
            round_event=PoissonSampledDpEvent(0.1, NOISE),
        ),
        Member(
            piece=BoundedPersons(sampling=FullBatch(steps=4, expected_batch_size=SIZE), max_records=2),
            marginal=1.0,
            round_event=GaussianDpEvent(0.65),
        ),
    ],
}
MEMBERS = [member for members in SAMPLERS.values() for member in members]
each_member = pytest.mark.parametrize("member", MEMBERS, ids=str)
each_random_member = pytest.mark.parametrize(
    "member", [member for member in MEMBERS if member.marginal < 1 and not member.same_every_round], ids=str
)


TINY = 6
# the same kinds over a handful of records, where one more or less is easiest to see
TINY_MEMBERS = [
    Member(piece=piece, marginal=0.0, round_event=NOISE, refused=SAMPLERS[type(piece)][0].refused)
    for piece in (
        Poisson(rate=0.5, steps=1, expected_batch_size=3),
        FullBatch(steps=1, expected_batch_size=TINY),
        FixedSize(dataset_size=TINY, batch_size=2, steps=1),
        Shuffle(batches=3, epochs=1, expected_batch_size=2),
        Cyclic(batches=3, epochs=1, expected_batch_size=2),
        BallsInBins(batches=3, epochs=1, expected_batch_size=2),
        CyclicPoisson(groups=2, rate=0.5, cycles=1, expected_batch_size=1.5),
        TruncatedPoisson(rate=0.5, steps=1, dataset_size=TINY, max_batch_size=2),
        TruncatedPoisson(rate=0.5, steps=1, dataset_size=TINY, max_batch_size=4, truncation=Truncation.TOTAL_VARIATION),
        SampledPersons(sampling=Poisson(rate=0.5, steps=1, expected_batch_size=3), max_records=2),
        BoundedPersons(sampling=Poisson(rate=0.5, steps=1, expected_batch_size=3), max_records=2),
    )
]
each_tiny_member = pytest.mark.parametrize("member", TINY_MEMBERS, ids=str)
