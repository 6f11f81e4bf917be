"""Laws of columns that are counted: every cell falls into one declared place or none, whatever it holds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from privet.datasets.counted_columns import GRID, NOT_COUNTED, BucketColumn, WordColumn, grid_within
from privet.errors import ArgumentError


@pytest.mark.parametrize(
    ("cell", "low", "high"),
    [("0", 0.0, 0.001), ("17", 10.0, 20.0), ("20", 20.0, 50.0), ("-3.5", -5.0, -2.0), ("1e3", 1000.0, 2000.0)],
)
def test_a_number_falls_into_the_bucket_that_holds_it(cell: str, low: float, high: float) -> None:
    bucket = int(BucketColumn(name="x").value(cell))
    assert (GRID[bucket], GRID[bucket + 1]) == (low, high)


@pytest.mark.parametrize(("cell", "bucket"), [("inf", len(GRID) - 2), ("-1e300", 0), ("1e999", len(GRID) - 2)])
def test_a_number_beyond_the_grid_falls_into_its_last_bucket(cell: str, bucket: int) -> None:
    assert BucketColumn(name="x").value(cell) == bucket


@pytest.mark.parametrize("cell", ["", None, "nan", "north", "1_000", "\N{REPLACEMENT CHARACTER}"])
def test_a_cell_without_a_number_is_not_counted(cell: str | None) -> None:
    assert BucketColumn(name="x").value(cell) == NOT_COUNTED


def test_a_word_that_is_not_declared_is_not_counted() -> None:
    column = WordColumn(name="town", words=("north", "south"))
    assert [column.value(cell) for cell in (" south ", "west", "", None)] == [1, NOT_COUNTED, NOT_COUNTED, NOT_COUNTED]


def test_the_grids_are_in_order_and_a_declared_one_has_the_ends_of_its_range() -> None:
    declared = grid_within(0, 120)
    assert (declared[0], declared[-1]) == (0.0, 120.0)
    assert all(low < high for grid in (GRID, declared) for low, high in pairwise(grid))


def test_a_range_without_numbers_is_refused() -> None:
    with pytest.raises(ArgumentError):
        grid_within(3, 3)
