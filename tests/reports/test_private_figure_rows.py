"""Figures of a private evaluation as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from privet.effects.noisy_counts.figures import Figure
from privet.reports.private_figure_rows import headline_rows, interval, shown


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("accuracy", 0.875, "87.5 %"), ("log loss", 0.12345, "0.123"), ("R2", -1e6, "< -10"), ("R2", -9.5, "-9.5")],
)
def test_shares_are_percents_and_a_hopeless_r2_has_no_long_number(name: str, value: float, text: str) -> None:
    assert shown(Figure(name=name, value=value, low=value, high=value), value) == text


def test_an_interval_that_says_nothing_reads_so() -> None:
    assert interval(Figure(name="R2", value=0.1, low=-1e6, high=1.0)) == "< -10 to 1"


@pytest.mark.parametrize(("ends", "text"), [((0.0, 1.0), "not known"), ((0.2, 1.0), "0.5")])
def test_an_area_of_which_nothing_is_known_shows_no_value(ends: tuple[float, float], text: str) -> None:
    area = Figure(name="area under the ROC curve", value=0.5, low=ends[0], high=ends[1])
    found = SimpleNamespace(figures=SimpleNamespace(constant=(), headline=(area,)))
    assert headline_rows(cast(Any, found)) == [[area.name, text, f"{ends[0]:g} to 1", "0.5"]]
