"""Cyclic Poisson sampling: groups that last, coins within them, and uses of a record that are far apart."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.errors import ArgumentError
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.sampling import Poisson
from tests.contract import statistics as stats


def uses(piece: CyclicPoisson, size: int, seed: int, rounds: int) -> NDArray[np.int64]:
    """Return a table of steps by records."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(rounds):
        for batch in piece.round_batches(size, rng):
            row = np.zeros(size, dtype=np.int64)
            row[batch] = 1
            found.append(row)
    return np.array(found)


def test_two_uses_of_a_record_are_whole_cycles_apart() -> None:
    piece = CyclicPoisson(groups=6, rate=0.7, cycles=20, expected_batch_size=1)
    table = uses(piece, 100, seed=3, rounds=20)
    for record in table.T:
        steps = np.flatnonzero(record)
        assert (np.diff(steps) % 6 == 0).all()
        assert (np.diff(steps) >= piece.separation).all()


def test_one_group_draws_what_poisson_sampling_draws() -> None:
    cyclic = CyclicPoisson(groups=1, rate=0.2, cycles=9, expected_batch_size=10)
    poisson = Poisson(rate=0.2, steps=9, expected_batch_size=10)
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(9):
        assert np.array_equal(*(next(p.round_batches(50, rng)) for p, rng in ((cyclic, one), (poisson, other))))


def groups_of(size: int, seed: int, groups: int) -> NDArray[np.int64]:
    batches = CyclicPoisson(groups=groups, rate=1, cycles=1, expected_batch_size=1).round_batches(
        size, np.random.default_rng(seed)
    )
    found = np.zeros(size, dtype=np.int64)
    for group, batch in enumerate(batches):
        found[batch] = group
    return found


@pytest.mark.parametrize("size", [1, 2, 77, 4096])
def test_one_more_record_moves_no_other_one(size: int) -> None:
    for seed in range(5):
        assert np.array_equal(groups_of(size, seed, 7), groups_of(size + 1, seed, 7)[:-1])


def test_groups_are_uniform_and_records_are_dealt_independently() -> None:
    counts = np.bincount(groups_of(20_000, 5, 8), minlength=8)
    assert stats.chi_square(float(((counts - 2500) ** 2 / 2500).sum()), 7) > stats.ALPHA
    pairs = np.array([groups_of(2, seed, 3) for seed in range(3000)])
    table = np.bincount(pairs[:, 0] * 3 + pairs[:, 1], minlength=9)
    assert stats.chi_square(float(((table - 3000 / 9) ** 2 / (3000 / 9)).sum()), 8) > stats.ALPHA


def test_rate_and_cycles_follow_from_a_declared_size() -> None:
    piece = CyclicPoisson.for_dataset(dataset_size=60_000, batch_size=250, groups=16, epochs=3)
    assert piece.rate == pytest.approx(16 * 250 / 60_000)
    assert piece.inclusion == pytest.approx(250 / 60_000)
    assert piece.cycles == 45
    again = CyclicPoisson.for_dataset(dataset_size=60_000, batch_size=250, groups=16, epochs=3, restarts=2)
    assert again.cycles == 47


def test_more_groups_than_the_data_can_fill_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Use at most 4 groups"):
        CyclicPoisson.for_dataset(dataset_size=1000, batch_size=250, groups=5, epochs=1)
