"""Runs with masks on a made-up task: what is looked at, what is counted, and what an earlier run spares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from privet.datasets.arrays import ArrayDataset
from privet_research.studies.mask_statistics import (
    MASKED,
    NO_MASK,
    RANKED,
    WAYS,
    mask_statistics_table,
    run_mask_statistics,
)
from privet_research.studies.mask_tasks import CIFAR10, DIGITS, MaskTask, accuracy
from privet_research.studies.momentum_grid import METHODS, momentum_table, run_momentum_study
from privet_research.studies.sparsification_signs import CLIP_ONLY, NOISE_ONLY, PANELS, PRIVATE, run_signs_study

CPU = torch.device("cpu")


def made_up(device: torch.device) -> tuple[ArrayDataset, ArrayDataset]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 6, generator=generator)
    parts = []
    for size in (300, 60):
        labels = torch.randint(0, 3, (size,), generator=generator)
        features = centres[labels] + 0.5 * torch.randn(size, 6, generator=generator)
        parts.append(ArrayDataset(features=features, labels=labels))
    return parts[0], parts[1]


TASK = MaskTask(
    name="made up",
    load=made_up,
    build=lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)),
    dataset_size=300,
    batch_size=50,
    physical_batch_size=100,
    epochs=10,
    learning_rate=1.0,
    unclipped_rate=0.5,
    statistics_rate=1.0,
    momentum_rate=1.0,
    momentum_noise=1.0,
    adam_rate=0.01,
    short_epochs=2,
)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(run_mask_statistics(TASK, seeds=[0], device=CPU))


def test_every_way_ends_with_its_accuracy_and_the_table_shows_all_parts(rows: list[dict[str, Any]]) -> None:
    ends = [row for row in rows if row["part"] == "accuracy"]
    assert [row["way"] for row in ends] == list(WAYS)
    assert all(row["accuracy"] > 0.5 for row in ends)
    table = mask_statistics_table(rows)
    for part in ("length with mask over without", "| mask | projection", "largest gap", "training accuracy"):
        assert part in table


def test_gradients_are_longer_on_what_is_kept_and_by_no_more_than_full_clipping_allows(
    rows: list[dict[str, Any]],
) -> None:
    found = [row for row in rows if row["part"] == "gradient norm"]
    assert {row["epoch"] for row in found} == {0, 2, 4, 6, 7}, "looks of a run of 100 epochs, at a tenth of it"
    for row in found:
        # fully clipped gradients are longer by the inverse share of their length that is kept, which varies
        assert 1 - 1e-6 <= row["value"] <= 2 * row["theory"]


def test_symmetry_is_looked_at_without_and_with_random_masks(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if row["part"] == "deviations"]
    assert {row["mask"] for row in found} == {NO_MASK, MASKED}
    assert all(0 <= row["effect"] < 1 and row["refuted"] == (row["p_value"] < 0.05) for row in found)


def test_random_masks_are_as_frequent_as_independent_ones(rows: list[dict[str, Any]]) -> None:
    found = {row["mask"]: row for row in rows if row["part"] == "frequency"}
    assert found[MASKED]["value"] < 0.25
    assert found[RANKED]["value"] >= 0
    assert sum(found[MASKED]["histogram"]) == 6 * 16 + 16 + 16 * 3 + 3


def test_ended_runs_are_not_made_again(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this run had ended")

    monkeypatch.setattr(MaskTask, "steps", refuse)
    assert list(run_mask_statistics(TASK, seeds=[0], device=CPU, earlier=rows)) == rows
    cut = [row for row in rows if (row["way"], row["part"]) != (NO_MASK, "accuracy")]
    with pytest.raises(AssertionError, match="had ended"):
        list(run_mask_statistics(TASK, seeds=[0], device=CPU, earlier=cut))


def test_a_grid_that_was_cut_short_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(run_momentum_study(TASK, seeds=[0], device=CPU, methods=METHODS[:1]))
    assert [row["part"] for row in whole] == ["grid"] * 9 + ["interaction"]
    calls: list[int] = []
    train = MaskTask.train
    monkeypatch.setattr(MaskTask, "train", lambda self, *args, **how: (calls.append(1), train(self, *args, **how)))
    again = list(run_momentum_study(TASK, seeds=[0], device=CPU, methods=METHODS[:1], earlier=whole[:7]))
    assert len(calls) == 2
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in whole], "seeded"
    assert "momentum 0.75" in momentum_table(again)


def test_panels_that_claims_rest_on_come_first_and_each_kind_has_its_rate() -> None:
    assert [panel.title for panel in PANELS[:4]] == [
        "sigma 2, C 1",
        "sigma 4, C 0.5",
        "sigma 1, C 0.25",
        "sigma 2, C 0.5",
    ]
    kinds = [panel.kind for panel in PANELS]
    assert [kinds.count(kind) for kind in (PRIVATE, CLIP_ONLY, NOISE_ONLY)] == [9, 3, 3]
    assert len({panel.title for panel in PANELS}) == 15
    short = replace(TASK, epochs=2)
    chosen = [PANELS[0], PANELS[4], PANELS[7]]
    found = list(run_signs_study(short, seeds=[0], device=CPU, panels=chosen))
    assert [row["learning_rate"] for row in found] == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
    assert list(run_signs_study(short, seeds=[0], device=CPU, panels=chosen, earlier=found)) == found


def test_the_full_task_is_the_published_one() -> None:
    assert (CIFAR10.batch_size, CIFAR10.epochs, CIFAR10.learning_rate) == (1_000, 100, 1.0)
    assert sum(value.numel() for value in CIFAR10.build().parameters()) == 550_570
    assert DIGITS.shortened(3).epochs == DIGITS.shortened(3).short_epochs == 3


def test_accuracy_is_the_share_of_right_answers() -> None:
    part = ArrayDataset(features=torch.eye(3), labels=torch.tensor([0, 1, 0]))
    assert accuracy(nn.Identity(), part) == pytest.approx(2 / 3)
