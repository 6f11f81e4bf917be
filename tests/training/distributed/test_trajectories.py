"""A run on ranks is the run of one process: every sampling, noise, clipping, mask and engine, in pairs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from privet.mechanism import registry
from tests.training.distributed.pieces import FAMILIES, Row, covering
from tests.training.distributed.tools import results

# Sums of parts are rounded in another order than one sum. The errors of two steps are a few units in the last place
# of the largest weight, which is near one.
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}


def train_rows(rank: int, size: int, rows: list[Any]) -> list[list[float]]:
    return [Row(places=tuple(places)).weights() for places in rows]


def train_twice(rank: int, size: int, rows: list[Any]) -> list[list[list[float]]]:
    return [[Row(places=tuple(places)).weights() for _ in range(2)] for places in rows]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(covering())


def test_every_kind_of_piece_takes_part(rows: list[Row]) -> None:
    tables = {"sampling": registry.SAMPLERS, "noise": registry.NOISES, "clipping": registry.CLIPPINGS}
    tables["mask"] = registry.MASKS
    for family, table in tables.items():
        # a plan without noise is refused by every session
        missing = set(table.kinds.values()) - {type(row.piece(family)) for row in rows}
        assert {kind.__name__ for kind in missing} <= {"NoNoise"}, family
    assert len({row.places[-1] for row in rows}) == len(FAMILIES["engine"])


@pytest.mark.parametrize(("size", "part"), [(2, 0), (4, 1)])
def test_weights_and_averages_are_those_of_one_process(rows: list[Row], size: int, part: int) -> None:
    chosen = rows[part::2]
    found = results(train_rows, size, [row.places for row in chosen])
    assert all(json.dumps(each) == json.dumps(found[0]) for each in found), "ranks end with different weights"
    for row, weights in zip(chosen, found[0], strict=True):
        alone = np.array(covering()[row])
        distance = np.abs(np.array(weights) - alone).max() / np.abs(alone).max()
        assert distance <= CLOSE[row.dtype], row


def test_a_group_of_one_changes_no_bit_and_equal_ranks_repeat_bit_for_bit(rows: list[Row]) -> None:
    few = rows[:3]
    for twice, row in zip(results(train_twice, 1, [row.places for row in few])[0], few, strict=True):
        assert twice == [covering()[row]] * 2
    for first, second in results(train_twice, 2, [row.places for row in few])[0]:
        assert first == second
