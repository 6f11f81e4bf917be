from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.known import describe
from privet_research.studies import augmentation
from privet_research.studies.augmentation import (
    ONE,
    SEVERAL,
    AugmentationSettings,
    augmentation_table,
    run_augmentation_study,
)
from privet_research.studies.residual_networks import residual_network, resnet18

SMALL = replace(AugmentationSettings().shortened(), held_out=20, num_examples=120)


def _images(name: str, **_: object) -> Split:
    generator = torch.Generator().manual_seed(0)
    parts = [
        ArrayDataset(
            features=torch.rand(size, 3, 32, 32, generator=generator),
            labels=torch.randint(0, 10, (size,), generator=generator),
        )
        for size in (120, 20)
    ]
    return Split(train=parts[0], test=parts[1], info=describe(name))


def test_both_arms_have_one_guarantee_and_try_the_same_rates_on_images_that_do_not_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[float, int, int]] = []
    monkeypatch.setattr(augmentation, "load", _images)

    def trained(settings: AugmentationSettings, views: int, rate: float, seed: int, train: ArrayDataset) -> object:
        seen.append((rate, views, len(train)))
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)), 3.0

    monkeypatch.setattr(augmentation, "_trained", trained)
    settings = replace(SMALL, learning_rates=(0.5, 1.0))
    rows = list(run_augmentation_study(settings, seeds=[3, 4], device=torch.device("cpu")))
    assert [(row["arm"], row["is_trial"]) for row in rows] == [
        (arm, trial) for arm in (ONE, SEVERAL) for trial in (True, True, False, False)
    ]
    # Trials train without the held-out images, runs with all.
    assert {(views, size) for _, views, size in seen} == {(1, 100), (1, 120), (4, 100), (4, 120)}
    again = list(run_augmentation_study(settings, seeds=[3, 4], device=torch.device("cpu"), earlier=rows))
    assert (again, len(seen)) == (rows, 8)
    assert "trial on held-out" in augmentation_table(rows)


def test_a_run_keeps_its_epsilon_however_many_views_a_record_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "load", _images)
    settings = replace(SMALL, training=replace(SMALL.training, batch_size=20))
    rows = list(run_augmentation_study(settings, seeds=[0], device=torch.device("cpu")))
    assert len({row["epsilon"] for row in rows}) == 1
    assert 2.9 < rows[0]["epsilon"] <= 3.0


def test_the_residual_network_has_the_published_size_and_its_examples_do_not_mix() -> None:
    assert sum(weights.numel() for weights in resnet18().parameters()) == pytest.approx(11.17e6, rel=0.01)
    small = residual_network((1, 1), width=16)
    images = torch.rand(3, 3, 32, 32)
    changed = images.clone()
    changed[1] = 0.0
    same = (small(images) - small(changed)).abs().amax(1) < 1e-5
    assert same.tolist() == [True, False, True]
