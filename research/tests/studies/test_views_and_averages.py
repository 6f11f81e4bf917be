"""The study of views and averages: its rows at one guarantee, and a table whose gains are paired by seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from privet_research.studies.catalogue import STUDIES
from privet_research.studies.views_and_averages import (
    AVERAGED,
    COURSES,
    PLAIN,
    Course,
    run_views_study,
    views_table,
)


def row(arm: str, seed: int, accuracy: float, rate: float = 4.0) -> dict[str, Any]:
    facts = {"epsilon": 2.9999, "delta": 1e-5, "steps": 98, "num_test": 2_000, "seconds": 1.0}
    return {"arm": arm, "rate": rate, "seed": seed, "accuracy": accuracy, **facts}


def test_every_course_gives_last_and_averaged_weights_at_one_guarantee() -> None:
    courses = (COURSES[0], Course(name="2 views", num_views=2, falls=True))
    rows = list(run_views_study(seeds=[3], device=torch.device("cpu"), epochs=1, courses=courses, rates=[4.0]))
    assert [found["arm"] for found in rows] == [PLAIN, PLAIN + AVERAGED, "2 views", "2 views" + AVERAGED]
    assert len({found["epsilon"] for found in rows}) == 1
    assert rows[0]["epsilon"] <= 3.0
    assert all(0.1 < found["accuracy"] < 1 for found in rows)
    assert rows[0]["accuracy"] != rows[1]["accuracy"]


def test_gains_are_differences_within_a_seed() -> None:
    rows = [row(PLAIN, 0, 0.80), row("4 views", 0, 0.81), row(PLAIN, 1, 0.70), row("4 views", 1, 0.73)]
    table = views_table(rows)
    assert "| 4 views | 77.0 ± 50.8 | +2.0 ± 12.7 |" in table
    assert f"| {PLAIN} | 75.0 ± 63.5 |  |" in table
    assert "epsilon 3.000" in table


def test_gains_are_against_the_plain_arm_at_the_same_rate() -> None:
    rows = [
        row(PLAIN, 0, 0.80),
        row("4 views", 0, 0.81),
        row(PLAIN, 0, 0.60, rate=8.0),
        row("4 views", 0, 0.55, rate=8.0),
    ]
    table = views_table(rows)
    assert "| arm | accuracy %, rate 4 | gain, rate 4 | accuracy %, rate 8 | gain, rate 8 |" in table
    assert "| 4 views | 81.0 | +1.0 | 55.0 | -5.0 |" in table


def test_an_arm_that_has_not_run_yet_leaves_its_cell_empty() -> None:
    table = views_table([row(PLAIN, 0, 0.80), row(PLAIN, 0, 0.60, rate=8.0), row("4 views", 0, 0.81)])
    assert "| 4 views | 81.0 | +1.0 |  |  |" in table


def test_one_seed_has_no_interval_and_no_rows_have_no_table() -> None:
    assert "| 4 views | 81.0 | +1.0 |" in views_table([row(PLAIN, 0, 0.80), row("4 views", 0, 0.81)])
    assert views_table([]) == "No rows yet.\n"


@pytest.mark.parametrize("views", [1, 3])
def test_one_view_is_the_record_itself(views: int) -> None:
    images = torch.rand(5, 1, 8, 8)
    same = torch.equal(Course(name="any", num_views=views).transform(images), images)
    assert same is (views == 1)


def test_the_study_can_be_called_by_name() -> None:
    assert STUDIES["views-and-averages"].num_seeds == 3
