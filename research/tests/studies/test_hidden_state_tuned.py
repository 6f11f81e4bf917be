from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.known import describe
from privet_research.studies import hidden_state_tuned
from privet_research.studies.hidden_state import Row, Setting
from privet_research.studies.hidden_state_tuned import EPSILONS, RATES, run_tuned_study, tuned_table


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Setting, int, Split]]:
    """Stand-ins for trainings: what was asked of each; the second rate of an arm is the best on held-out images."""
    asked: list[tuple[str, Setting, int, Split]] = []

    def load(name: str, **_: Any) -> Split:
        parts = [ArrayDataset(features=torch.arange(size)[:, None], labels=torch.zeros(size)) for size in (50, 7)]
        return Split(train=parts[0], test=parts[1], info=replace(describe(name), train_size=50))

    def run_arm(name: str, setting: Setting, *, seed: int, device: torch.device, given: Split) -> Row:
        asked.append((name, setting, seed, given))
        is_best = setting.learning_rate == RATES[name][1]
        return Row(
            arm=name, status="proven", seed=seed, epsilon=1.0, epsilon_claimed=1.0, noise_multiplier=1.0,
            accuracy=0.9 if is_best else 0.1, seconds=1.0, examples_per_second=1.0, device="cpu", setting=setting,
        )  # fmt: skip

    monkeypatch.setattr(hidden_state_tuned, "load", load)
    monkeypatch.setattr(hidden_state_tuned, "run_arm", run_arm)
    return asked


def test_rates_are_chosen_on_training_images_that_do_not_train_and_runs_see_all(
    runs: list[tuple[str, Setting, int, Split]],
) -> None:
    rows = list(run_tuned_study("mnist", seeds=[0, 1], device=torch.device("cpu"), held_out=10))
    trials = [one for one in runs if one[2] not in (0, 1)]
    ends = [one for one in runs if one[2] in (0, 1)]
    assert len(trials) == sum(map(len, RATES.values())) * len(EPSILONS)
    for _, _, _, split in trials:
        assert (len(split.train), split.info.train_size) == (40, 40)
        assert split.test.features.flatten().tolist() == list(range(40, 50))
    for arm, setting, _, split in ends:
        assert setting.learning_rate == RATES[arm][1]
        assert (len(split.train), len(split.test)) == (50, 7)
    assert "Trials on held-out training images" in tuned_table(rows)


def test_an_interrupted_study_runs_only_what_is_missing(runs: list[tuple[str, Setting, int, Split]]) -> None:
    rows = list(run_tuned_study("mnist", seeds=[0], device=torch.device("cpu"), held_out=10))
    before = len(runs)
    again = list(run_tuned_study("mnist", seeds=[0, 1], device=torch.device("cpu"), held_out=10, earlier=rows))
    assert len(runs) - before == len(RATES) * len(EPSILONS)
    assert [row for row in again if row["seed"] != 1] == rows
