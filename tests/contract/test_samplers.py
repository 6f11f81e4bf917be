"""Laws of every sampler, and the proof that the tests of the Poisson law can fail."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from dp_accounting import DpEvent, PoissonSampledDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privet.accounting.accountants import curve
from privet.errors import DataError
from privet.mechanism.codec import SAMPLING, decode_piece, encode_piece
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.events import decode_event, encode_event, same_event
from privet.mechanism.sampling import Poisson, Sampling
from privet.vocabulary import Adjacency
from tests.contract import statistics as stats
from tests.contract.samplers import (
    ADD_REMOVE,
    NOISE,
    REPLACE_ONE,
    SAMPLERS,
    SIZE,
    TINY,
    TINY_MEMBERS,
    Member,
    each_member,
    each_random_member,
    each_tiny_member,
)

PUBLIC = Cyclic(batches=8, epochs=2, expected_batch_size=25)
Batches = Callable[[int, np.random.Generator], Iterator[NDArray[np.int64]]]


def test_every_kind_of_sampler_is_tried_over_a_handful_of_records() -> None:
    assert {type(member.piece) for member in TINY_MEMBERS} == set(SAMPLERS)


def batches_of(piece: Sampling, num_examples: int, rng: np.random.Generator, count: int) -> list[NDArray[np.int64]]:
    found: list[NDArray[np.int64]] = []
    while len(found) < count:
        found.extend(piece.round_batches(num_examples, rng))
    return found[:count]


def inclusion(batches: list[NDArray[np.int64]], num_examples: int) -> NDArray[np.float64]:
    table = np.zeros((len(batches), num_examples))
    for row, indices in zip(table, batches, strict=True):
        row[indices] = 1
    return table


@each_member
def test_is_a_sampler_by_protocol(member: Member) -> None:
    assert isinstance(member.piece, Sampling)


@each_member
def test_inclusion_and_epochs_are_told_as_they_are_drawn(member: Member) -> None:
    piece = member.piece
    assert piece.inclusion == pytest.approx(member.marginal)
    assert piece.steps_per_epoch == max(1, round(1 / member.marginal))
    assert member.sizes(piece.declared_size or SIZE)
    if piece.declared_size is not None:
        assert not member.sizes(piece.declared_size + 1)
    assert piece.has_exact_size == (piece.declared_size is not None and not member.sizes(piece.declared_size - 1))
    longest = max(len(batch) for batch in batches_of(piece, SIZE, np.random.default_rng(0), 50))
    assert piece.batch_limit is None or longest <= piece.batch_limit


@each_member
def test_batches_that_are_told_as_fixed_come_back_in_every_epoch(member: Member) -> None:
    first, second = (list(member.piece.round_batches(SIZE, np.random.default_rng(5))) for _ in range(2))
    others = list(member.piece.round_batches(SIZE, np.random.default_rng(6)))
    if member.piece.fixed_batches is not None:
        assert len(first) == member.piece.fixed_batches
        assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    is_same = all(np.array_equal(one, other) for one, other in zip(first, others, strict=True))
    assert is_same or not member.piece.same_batches_after_restart


@each_member
def test_a_round_yields_exactly_the_declared_number_of_batches(member: Member) -> None:
    for num_examples in filter(member.sizes, (0, 1, 5, 100, SIZE)):
        rounds = list(member.piece.round_batches(num_examples, np.random.default_rng(0)))
        assert len(rounds) == member.piece.steps_per_round


@each_member
@given(num_examples=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_indices_are_unique_and_in_range(member: Member, num_examples: int, seed: int) -> None:
    if not member.sizes(num_examples):
        num_examples = SIZE
    for indices in member.piece.round_batches(num_examples, np.random.default_rng(seed)):
        assert indices.dtype == np.int64
        assert len(set(indices.tolist())) == len(indices)
        assert all(0 <= index < num_examples for index in indices.tolist())


@each_member
def test_a_round_uses_each_record_as_often_as_its_event_says(member: Member) -> None:
    """One event covers one use of each record, however many steps the round has."""
    for seed in range(20):
        batches = list(member.piece.round_batches(SIZE, np.random.default_rng(seed)))
        uses = inclusion(batches, SIZE).sum(0)
        assert uses.max() <= 1
        if member.marginal * member.piece.steps_per_round == 1:
            assert uses.min() == 1


@each_member
def test_numbers_of_records_that_the_plan_does_not_cover_are_refused(member: Member) -> None:
    for num_examples in (0, 1, 199, 201, 301):
        if not member.sizes(num_examples):
            with pytest.raises(DataError, match="records"):
                list(member.piece.round_batches(num_examples, np.random.default_rng(0)))


@each_member
def test_every_example_joins_at_the_declared_rate(member: Member) -> None:
    steps = 400
    draws = batches_of(member.piece, SIZE, np.random.default_rng(1), steps)
    if member.same_every_round:  # the key decides about the place in the round, if it decides anything
        rounds = [list(member.piece.round_batches(SIZE, np.random.default_rng(key))) for key in range(steps)]
        draws = [batches[key % len(batches)] for key, batches in enumerate(rounds)]
    table = inclusion(draws, SIZE)
    if member.marginal == 1:
        assert (table == 1).all()
        return
    for count in table.sum(0).astype(int):
        assert stats.binomial(int(count), steps, member.marginal) > stats.ALPHA / SIZE


@each_member
def test_the_divisor_is_the_mean_size_of_a_batch_at_the_declared_number_of_records(member: Member) -> None:
    size = getattr(member.piece, "dataset_size", SIZE)
    found = [len(batch) for batch in batches_of(member.piece, size, np.random.default_rng(2), 400)]
    assert np.mean(found) == pytest.approx(member.piece.expected_batch_size, abs=5 * np.std(found) / 20 + 1e-9)


@each_random_member
def test_no_step_draws_from_what_an_earlier_one_drew(member: Member) -> None:
    found = batches_of(member.piece, SIZE, np.random.default_rng(4), 64)
    assert len({tuple(batch.tolist()) for batch in found}) == 64


@each_member
def test_the_key_alone_decides_who_is_drawn(member: Member) -> None:
    first = batches_of(member.piece, SIZE, np.random.default_rng(7), 16)
    again = batches_of(member.piece, SIZE, np.random.default_rng(7), 16)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    is_public = member.marginal == 1 or member.piece == PUBLIC
    other = batches_of(member.piece, SIZE, np.random.default_rng(8), 16)
    assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True)) == is_public


@each_member
def test_the_size_of_the_data_changes_no_constant(member: Member) -> None:
    def constants() -> tuple[object, ...]:
        piece = member.piece
        return (
            piece.num_rounds,
            piece.steps_per_round,
            piece.expected_batch_size,
            piece.assumptions,
            repr(piece.amplify(NOISE)),
        )

    before = constants()
    for num_examples in filter(member.sizes, (0, 1, 199, 200, 201)):
        list(member.piece.round_batches(num_examples, np.random.default_rng(0)))
        assert constants() == before


@each_member
def test_a_round_is_charged_as_declared(member: Member) -> None:
    assert same_event(member.piece.amplify(NOISE), member.round_event, rel_tol=1e-9)


@each_member
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_refuses_exactly_the_adjacencies_without_a_proof(member: Member, adjacency: Adjacency) -> None:
    refusal = member.piece.refusal(adjacency)
    assert (refusal is not None) == (adjacency in member.refused)
    if refusal is not None:
        assert "Poisson" in refusal, "a refusal names what to use instead"


@each_member
def test_piece_and_event_survive_json(member: Member) -> None:
    written = json.loads(json.dumps(encode_piece(member.piece, SAMPLING, where="sampling")))
    assert decode_piece(written, SAMPLING, where="sampling") == member.piece
    event = member.piece.amplify(NOISE)
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


@each_member
def test_pieces_are_immutable(member: Member) -> None:
    assert dataclasses.is_dataclass(member.piece)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(member.piece, dataclasses.fields(member.piece)[0].name, 3)


# ------------------------------------------------------------------------------------------- what a round really tells


def sums(member: Member, values: NDArray[np.float64], rounds: int, seed: int) -> NDArray[np.float64]:
    """Return the noisy sums of many rounds, added up over the round's steps, in units of the bound."""
    rng = np.random.default_rng(seed)
    found = [
        sum(values[batch].sum() for batch in member.piece.round_batches(len(values), rng)) for _ in range(rounds)
    ]  # fmt: skip
    return np.array(found) + rng.normal(0.0, 1.3 * math.sqrt(member.piece.steps_per_round), rounds)


def neighbours(adjacency: Adjacency, other: float, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two data sets whose first record differs; the others all pull one way, or not at all."""
    present = np.full(size, other)
    present[0] = 1.0
    if adjacency is ADD_REMOVE:
        return present, present[1:]
    absent = present.copy()
    absent[0] = -1.0 if adjacency is REPLACE_ONE else 0.0
    return present, absent


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda adjacency: adjacency.value)
@pytest.mark.parametrize("other", [0.0, -1.0])
@each_tiny_member
def test_no_threshold_tells_of_a_record_more_than_a_round_is_charged(
    member: Member, other: float, adjacency: Adjacency
) -> None:
    if adjacency in member.refused:
        return
    assert largest_excess(member, other, adjacency, member.piece.amplify(NOISE)) < 4.5


def largest_excess(member: Member, other: float, adjacency: Adjacency, charge: DpEvent) -> float:
    """Return by how many standard errors the best threshold tells more than a charge admits."""
    rounds, epsilons, worst = 3000, np.array([0.0, 0.2, 0.5]), -math.inf
    charged = curve(charge, adjacency).deltas(epsilons)
    present, absent = (
        sums(member, values, rounds, seed) for seed, values in enumerate(neighbours(adjacency, other, TINY))
    )  # fmt: skip
    for threshold in np.quantile(np.concatenate([present, absent]), np.linspace(0.05, 0.95, 15)):
        hits, alarms = (present > threshold).mean(), (absent > threshold).mean()
        error = np.sqrt((hits * (1 - hits) + np.exp(2 * epsilons) * alarms * (1 - alarms)) / rounds)
        worst = max(worst, float(((hits - np.exp(epsilons) * alarms - charged) / error).max()))
    return worst


@pytest.mark.parametrize("place", [1, 2, 3], ids=["a full batch", "a fixed size", "a shuffled epoch"])
def test_a_round_that_is_charged_as_a_sample_by_coins_is_noticed(place: int) -> None:
    member = TINY_MEMBERS[place]
    assert largest_excess(member, -1.0, REPLACE_ONE, PoissonSampledDpEvent(1 / 3, NOISE)) > 4.5


# ------------------------------------------------------------------------------------------------- the Poisson law


def poisson_p_values(draw: Batches, rate: float, *, seed: int = 2024) -> dict[str, float]:
    """Draw steps and say, test by test, how odd they are under independent coins of this rate."""
    rng = np.random.default_rng(seed)
    steps, size = 400, 200
    table = inclusion([next(draw(size, rng)) for _ in range(steps)], size)
    spread = rate * (1 - rate)
    sizes, counts = table.sum(1), table.sum(0)
    tiny = 300
    empties = sum(len(next(draw(5, rng))) == 0 for _ in range(tiny))
    return {
        "rate": stats.normal(float(table.sum() - steps * size * rate) / (steps * size * spread) ** 0.5),
        "batch sizes": stats.chi_square(float(((sizes - size * rate) ** 2).sum() / (size * spread)), steps),
        "inclusions": stats.chi_square(float(((counts - steps * rate) ** 2).sum() / (steps * spread)), size),
        "next step": stats.normal(
            float(((table[1:] - rate) * (table[:-1] - rate)).sum()) / spread / table[1:].size ** 0.5
        ),
        "empties": stats.binomial(empties, tiny, (1 - rate) ** 5),
        "joint law": joint_law(draw, rate, rng),
    }


def joint_law(draw: Batches, rate: float, rng: np.random.Generator) -> float:
    """Compare the frequencies of all eight subsets of three examples with the product of three coins."""
    draws = 4000
    found = np.zeros(8)
    for _ in range(draws):
        found[sum(1 << int(index) for index in next(draw(3, rng)))] += 1
    members = np.array([subset.bit_count() for subset in range(8)])
    expected = draws * rate**members * (1 - rate) ** (3 - members)
    return stats.chi_square(float(((found - expected) ** 2 / expected).sum()), 7)


def dealt_batches(rate: float) -> Batches:
    pending: dict[int, list[NDArray[np.int64]]] = {}
    deal = Shuffle(batches=round(1 / rate), epochs=1, expected_batch_size=1)

    def draw(num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        left = pending.setdefault(num_examples, [])
        if not left:
            left.extend(deal.round_batches(num_examples, rng))
        yield left.pop()

    return draw


def fixed_size(rate: float) -> Batches:
    def draw(num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        yield rng.choice(num_examples, size=round(rate * num_examples), replace=False)

    return draw


def poisson_distributed_size(rate: float) -> Batches:
    def draw(num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        size = min(num_examples, rng.poisson(rate * num_examples))
        yield rng.choice(num_examples, size=size, replace=False)

    return draw


def coins(rates: Callable[[int], NDArray[np.float64]]) -> Batches:
    def draw(num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        yield np.flatnonzero(rng.random(num_examples) < rates(num_examples))

    return draw


def never_empty(rate: float) -> Batches:
    def draw(num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        indices = np.flatnonzero(rng.random(num_examples) < rate)
        while not len(indices):
            indices = np.flatnonzero(rng.random(num_examples) < rate)
        yield indices

    return draw


def reused_coins(rate: float) -> Batches:
    def draw(num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        yield np.flatnonzero(np.random.default_rng(num_examples).random(num_examples) < rate)

    return draw


MUTANTS = {
    "shuffled batches": (dealt_batches(0.1), 0.1),
    "batches of one size": (fixed_size(0.1), 0.1),
    "a Poisson-distributed size": (poisson_distributed_size(0.5), 0.5),
    "empty batches drawn again": (never_empty(0.1), 0.1),
    "low indices favoured": (coins(lambda size: np.linspace(0.15, 0.05, size)), 0.1),
    "the same coins every step": (reused_coins(0.1), 0.1),
    "a rate ten percent too high": (coins(lambda size: np.full(size, 0.11)), 0.1),
}


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3, 0.5])
def test_poisson_sampling_follows_the_law_of_independent_coins(rate: float) -> None:
    found = poisson_p_values(Poisson(rate=rate, steps=1, expected_batch_size=1).round_batches, rate)
    assert min(found.values()) > stats.ALPHA, found


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_of_independent_coins_rejects_other_samplers(name: str) -> None:
    draw, rate = MUTANTS[name]
    assert min(poisson_p_values(draw, rate).values()) < stats.CERTAIN


def test_five_examples_at_a_rate_of_one_tenth_are_empty_59_percent_of_the_time() -> None:
    rng, draws = np.random.default_rng(3), 2000
    sampling = Poisson(rate=0.1, steps=1, expected_batch_size=1)
    empties = sum(len(batch) == 0 for _ in range(draws) for batch in sampling.round_batches(5, rng))
    assert stats.binomial(empties, draws, 0.9**5) > stats.ALPHA
    assert stats.binomial(0, draws, 0.9**5) < stats.CERTAIN


# --------------------------------------------------------------------------------------------------- the other laws


@pytest.mark.parametrize("num_examples", [0, 3, 8, 23, 200])
def test_an_epoch_of_shuffled_batches_uses_every_example_once_in_even_batches(num_examples: int) -> None:
    sampling = Shuffle(batches=8, epochs=1, expected_batch_size=1)
    batches = list(sampling.round_batches(num_examples, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(num_examples))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) - min(sizes) <= 1


def test_a_shuffled_example_is_as_likely_in_one_batch_as_in_another() -> None:
    sampling, epochs = Shuffle(batches=4, epochs=1, expected_batch_size=1), 2000
    rng, found = np.random.default_rng(5), np.zeros(4)
    for _ in range(epochs):
        place = [0 in batch for batch in sampling.round_batches(12, rng)].index(True)
        found[place] += 1
    expected = epochs / 4
    assert stats.chi_square(float(((found - expected) ** 2 / expected).sum()), 3) > stats.ALPHA


def test_two_epochs_are_dealt_differently() -> None:
    sampling, rng = Shuffle(batches=4, epochs=2, expected_batch_size=1), np.random.default_rng(6)
    first, second = (np.concatenate(list(sampling.round_batches(50, rng))) for _ in range(2))
    assert not np.array_equal(first, second)
