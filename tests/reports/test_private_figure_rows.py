"""Figures of a private evaluation as text."""

from __future__ import annotations

import pytest

from privet.effects.noisy_counts.figures import Figure
from privet.reports.private_figure_rows import interval, shown


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("accuracy", 0.875, "87.5 %"), ("log loss", 0.12345, "0.123"), ("R2", -1e6, "< -10"), ("R2", -9.5, "-9.5")],
)
def test_shares_are_percents_and_a_hopeless_r2_has_no_long_number(name: str, value: float, text: str) -> None:
    assert shown(Figure(name=name, value=value, low=value, high=value), value) == text


def test_an_interval_that_says_nothing_reads_so() -> None:
    assert interval(Figure(name="R2", value=0.1, low=-1e6, high=1.0)) == "< -10 to 1"
