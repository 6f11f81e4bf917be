"""Plots of a report: what stands at a mark is what the mark shows."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from privet.reports.plots import spending_plot


@pytest.mark.parametrize("with_evaluations", [False, True])
def test_the_dot_of_the_budget_names_the_evaluations_that_it_counts(with_evaluations: bool) -> None:
    found = spending_plot([(1, 0.5), (2, 0.8)], rounds_charged=2, epsilon_spent=0.9, with_evaluations=with_evaluations)
    axes = MagicMock()
    found.draw(axes)
    assert axes.plot.call_args.args[:2] == ([2], [0.9])
    assert ("evaluations" in axes.annotate.call_args.args[0]) is with_evaluations
    assert ("private evaluations" in found.note) is with_evaluations
