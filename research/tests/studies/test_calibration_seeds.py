from __future__ import annotations

import statistics

import pytest
import torch

from privet_research.studies.arms import GLOBAL, LOCAL
from privet_research.studies.calibration_seeds import calibration_gains, drawn_clusters_table, run_drawn_clusters
from privet_research.studies.catalogue import clusters_settings
from privet_research.studies.regression_table import half_width


def row(arm: str, seed: int, error: float) -> dict[str, object]:
    figures = {"accuracy": 0.7, "loss": 1.0, "ece_15": error, "ece_10": error, "mce_15": 0.3, "over_confidence": 0.1}
    facts = {"dataset": "made up", "seed": seed, "epsilon": 2.0, "delta": 1e-5, "epochs": 3, "num_test": 10}
    return {"arm": arm, **facts, **figures}


def test_gains_are_differences_within_a_draw() -> None:
    rows = [row(LOCAL, 0, 0.2), row(GLOBAL, 0, 0.1), row(LOCAL, 1, 0.3), row(GLOBAL, 1, 0.1), row(LOCAL, 2, 0.9)]
    assert calibration_gains(rows) == pytest.approx([0.1, 0.2])
    assert "by 15.0 ± 63.5 points" in drawn_clusters_table(rows)
    assert "single draws: 10.0, 20.0" in drawn_clusters_table(rows)
    assert "single draws" not in drawn_clusters_table(rows[:2])


@pytest.mark.slow
def test_the_mean_calibration_gain_over_draws_exceeds_five_points_and_is_no_accident() -> None:
    rows = list(run_drawn_clusters(clusters_settings().shortened(50), seeds=range(5), device=torch.device("cpu")))
    gains = calibration_gains(rows)
    width = half_width(gains)
    assert width is not None
    # Draws differ: the interval of five excludes zero, but not five points.
    assert statistics.fmean(gains) > 0.05
    assert statistics.fmean(gains) - width > 0
