"""What samplers waste: exact shares, against published figures and against the samplers themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.batch_sizes import Waste, never_seen_share, waste_table
from privet.errors import ArgumentError
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.sampling import FixedSize, Poisson, Sampling
from privet.mechanism.truncated import TruncatedPoisson


def test_a_poisson_epoch_misses_one_record_in_e() -> None:
    share = never_seen_share(rate=64 / 1e5, steps=1e5 / 64)
    assert share == pytest.approx(0.367761688348, rel=1e-11)
    assert 1e5 * (1 - share) == pytest.approx(63223.83, abs=0.01)
    assert never_seen_share(rate=256 / 60000, steps=234) == pytest.approx(0.36768, abs=5e-6)


def test_four_percent_of_the_steps_straggle_at_230_of_256() -> None:
    # The limit of many records is P[Poisson(230) > 256] = 0.042163575254855.
    rows = {row.sampler: row for row in waste_table(dataset_size=10**7, batch_size=230, physical_batch_size=256)}
    assert rows["Poisson"].stragglers == pytest.approx(0.042163575254855, rel=1e-3)
    assert rows["TruncatedPoisson"].stragglers == 0


def measured(sampling: Sampling, size: int, physical: int, epochs: int) -> dict[str, float]:
    rng = np.random.default_rng(3)
    unseen, slots, used, late, steps = 0, 0, 0, 0, 0
    for _ in range(epochs):
        seen = np.zeros(size, dtype=bool)
        batches: list[np.ndarray] = []
        while len(batches) < sampling.num_rounds * sampling.steps_per_round:
            batches.extend(sampling.round_batches(size, rng))
        for batch in batches:
            seen[batch] = True
            passes = -(-len(batch) // physical)
            slots, used, late, steps = slots + passes * physical, used + len(batch), late + (passes > 1), steps + 1
        unseen += int((~seen).sum())
    return {"never_seen": unseen / size / epochs, "padding": 1 - used / slots, "stragglers": late / steps}


@pytest.mark.parametrize("physical", [40, 60, 64, 25])
def test_the_table_is_what_the_samplers_do(physical: int) -> None:
    size, batch, steps = 1000, 50, 20
    rows = {row.sampler: row for row in waste_table(dataset_size=size, batch_size=batch, physical_batch_size=physical)}
    pieces: dict[str, Sampling] = {
        "Poisson": Poisson(rate=batch / size, steps=steps, expected_batch_size=batch),
        "TruncatedPoisson": TruncatedPoisson(
            rate=batch / size, steps=steps, dataset_size=size, max_batch_size=physical
        ),
        "FixedSize": FixedSize(dataset_size=size, batch_size=batch, steps=steps),
        "Shuffle": Shuffle(batches=steps, epochs=1, expected_batch_size=batch),
        "Cyclic": Cyclic(batches=steps, epochs=1, expected_batch_size=batch),
    }
    for name, piece in pieces.items():
        for figure, value in measured(piece, size, physical, epochs=60).items():
            assert getattr(rows[name], figure) == pytest.approx(value, abs=0.02), (name, figure)


@given(st.integers(1, 5000), st.integers(1, 500), st.integers(1, 600))
@settings(deadline=None, max_examples=60)
def test_every_share_is_a_share(size: int, batch: int, physical: int) -> None:
    for row in waste_table(dataset_size=size, batch_size=min(batch, size), physical_batch_size=physical):
        for share in (row.never_seen, row.stragglers, row.dropped, row.padding):
            assert 0 <= share <= 1
        assert row.physical_batches > 0


def test_a_row_is_plain_values() -> None:
    row = waste_table(dataset_size=10, batch_size=5, physical_batch_size=5)[3]
    assert row == Waste(
        sampler="Shuffle", steps=2, physical_batches=2.0, never_seen=0.0, stragglers=0.0, dropped=0.0, padding=0.0
    )
    assert row.to_dict()["sampler"] == "Shuffle"


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ArgumentError, match="larger than the dataset_size"):
        waste_table(dataset_size=10, batch_size=11, physical_batch_size=5)
