from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from privet.datasets.two_patch import CELL_NAMES, TwoPatch
from privet_research.studies.laboratory import (
    LabSettings,
    random_cells,
    rank_correlation,
    run_groups,
    run_phase_map,
    run_rotation,
)
from privet_research.studies.patch_training import PatchTraining

CPU = torch.device("cpu")
Row = dict[str, Any]


def mean(rows: Sequence[Row], key: str, **chosen: object) -> float:
    return statistics.fmean(row[key] for row in rows if all(row[name] == value for name, value in chosen.items()))


@pytest.fixture(scope="module")
def groups() -> list[Row]:
    levels = (0.05, 0.5)
    return [row for seed in range(3) for row in run_groups(TwoPatch(), levels, LabSettings(), seed=seed, device=CPU)]


def test_groups_of_larger_features_lose_less_and_gaps_widen_with_noise(groups: list[Row]) -> None:
    by_size = {
        noise: [mean(groups, "loss", noise_std=noise, feature_size=size) for size in (6.0, 4.0, 2.0)]
        for noise in (0.05, 0.5)
    }
    for losses in by_size.values():
        assert losses == sorted(losses)
    assert by_size[0.5][2] - by_size[0.5][0] > by_size[0.05][2] - by_size[0.05][0]


def test_noise_makes_every_group_easier_to_attack(groups: list[Row]) -> None:
    for name in CELL_NAMES:
        quiet, loud = (mean(groups, "attacked_accuracy", noise_std=noise, cell=name) for noise in (0.05, 0.5))
        assert loud < quiet
    lengths = [mean(groups, "weight_length", noise_std=noise) for noise in (0.05, 0.5)]
    assert lengths[1] > 5 * lengths[0]


def test_the_theory_ranks_the_groups_as_training_does(groups: list[Row]) -> None:
    loud = [row for row in groups if row["noise_std"] == 0.5]
    losses = np.array([mean(loud, "loss", cell=name) for name in CELL_NAMES])
    floors = np.array([mean(loud, "floor", cell=name) for name in CELL_NAMES])
    assert rank_correlation(losses, floors) >= 0.8


def test_share_times_feature_to_noise_ranks_the_errors_of_random_settings() -> None:
    found = random_cells(400, seed=0, device=CPU)
    assert len(found.errors) == 400
    assert found.correlation <= -0.7
    assert found.correlation < found.control - 0.1


def test_fine_tuning_gets_worse_with_the_angle_and_in_the_end_worse_than_from_scratch() -> None:
    settings = LabSettings(training=PatchTraining(num_steps=100))
    rows = [row for seed in range(3) for row in run_rotation((0, 60, 90, 180), settings, seed=seed, device=CPU)]
    losses = [mean(rows, "loss", angle=angle) for angle in (0, 60, 90, 180)]
    assert losses == sorted(losses)
    scratch = mean(rows, "loss", arm="from scratch")
    assert losses[0] < scratch < losses[-1]


def test_accuracy_falls_off_a_cliff_in_the_plane_of_feature_and_noise() -> None:
    settings = LabSettings(training=PatchTraining(num_steps=160))
    rows = list(run_phase_map((1.0, 8.0), (0.1, 10.0), settings, seed=0, device=CPU))
    found = {(row["feature_size"], row["noise_std"]): row["accuracy"] for row in rows}
    assert found[8.0, 0.1] > 0.97
    assert found[8.0, 10.0] < 0.6
    assert found[1.0, 10.0] < 0.6


def test_rank_correlation_is_one_for_any_rising_function_and_averages_ties() -> None:
    values = np.array([3.0, 1.0, 2.0, 5.0])
    assert rank_correlation(values, np.exp(values)) == pytest.approx(1.0)
    assert rank_correlation(values, -values) == pytest.approx(-1.0)
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(0.8660254)
    assert rank_correlation(values, np.ones(4)) == 0.0
