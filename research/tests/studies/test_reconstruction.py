"""The reconstruction study: what it attacks, and a table that says what the rows say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.known import describe
from privet.models.dense import mlp
from privet_research.studies import reconstruction
from privet_research.studies.catalogue import STUDIES
from privet_research.studies.reconstruction import (
    FULL,
    RESNET,
    ReconstructionSettings,
    decoded,
    encoded,
    reconstruction_table,
    run_reconstruction_study,
)
from privet_research.studies.residual_networks import residual_network


@pytest.fixture
def made_up_data(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    part = ArrayDataset(features=images, labels=torch.arange(8))
    monkeypatch.setattr(reconstruction, "load", lambda name: Split(train=part, test=part, info=describe(name)))
    monkeypatch.setattr(reconstruction, "dp_cnn", lambda: mlp((3, 32, 32), 10, hidden_widths=(4,)))
    return images


def test_every_seed_attacks_images_of_its_own_and_the_originals_are_kept_once(made_up_data: torch.Tensor) -> None:
    settings = ReconstructionSettings(num_images=4, num_steps=2, rates={0.0: (0.0, 0.5)}, num_pictures=2)
    rows = list(run_reconstruction_study(settings, seeds=[0, 1], device=torch.device("cpu")))
    assert [(row["seed"], row["rate"]) for row in rows] == [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5)]
    assert [("originals" in row) for row in rows] == [True, False, True, False]
    for row, start in ((rows[0], 0), (rows[2], 4)):
        torch.testing.assert_close(
            decoded(row["originals"]), made_up_data[start : start + 2], rtol=0, atol=0.5 / 255 + 1e-6
        )
    assert all(len(row["mse_by_image"]) == 4 for row in rows)
    assert all(len(row["pictures"]) == 2 for row in rows)


def test_groups_of_images_are_attacked_one_after_the_other_also_on_a_residual_network(
    made_up_data: torch.Tensor,
) -> None:
    settings = ReconstructionSettings(
        num_images=4, num_steps=2, rates={1e-3: (0.5,)}, num_pictures=1, at_once=2,
        build=lambda: residual_network((1,), width=16),
    )  # fmt: skip
    (made,) = run_reconstruction_study(settings, seeds=[0], device=torch.device("cpu"))
    assert len(made["mse_by_image"]) == 4
    assert (RESNET.num_images, sum(map(len, RESNET.rates.values()))) == (200, 4)


def test_the_given_share_of_every_gradient_is_masked_and_the_rest_is_noisy() -> None:
    gradients = torch.ones(3, 1000)
    observed, keep = reconstruction._observed(gradients, 0.1, 0.9, seed=0)
    assert keep.sum(1).tolist() == [100, 100, 100]
    assert not torch.equal(keep[0], keep[1])
    assert bool((observed[~keep] == 0).all())
    assert float((observed - 1)[keep].std()) == pytest.approx(0.1, rel=0.15)
    assert torch.equal(reconstruction._observed(gradients, 0.0, 0.0, seed=0)[0], gradients)


def test_pictures_survive_being_written_down() -> None:
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)).mul(255).round().div(255)
    torch.testing.assert_close(decoded(encoded(images)), images)


def row(rate: float, values: list[float], seed: int = 0, noise_std: float = 0.0) -> dict[str, Any]:
    facts = {"arm": "a", "noise_std": noise_std, "rate": rate, "seed": seed, "psnr": 20.0, "ssim": 0.5}
    return facts | {"mse_by_image": values, "mse": sum(values) / len(values)}


def test_the_table_compares_image_by_image_over_all_seeds() -> None:
    rows = [row(0.0, [0.1, 0.2]), row(0.9, [0.2, 0.31]), row(0.9, [0.5, 0.62], seed=1), row(0.0, [0.4, 0.5], seed=1)]
    table = reconstruction_table(rows)
    assert "| 0 | 0.9 | 4 | 0.4075 | 20.0 | 0.500 | +0.1075 ± " in table
    assert "Under noise 0 the error rises from rate 0 to 0.9." in table
    assert "falls" in reconstruction_table([row(0.9, [0.1, 0.2]), row(0.0, [0.3, 0.41])])
    assert "does not surely change" in reconstruction_table([row(0.9, [0.1, 0.2]), row(0.0, [0.2, 0.1])])
    assert "Under noise" not in reconstruction_table([row(0.0, [0.1, 0.2])])


def test_the_full_study_attacks_fifty_images_or_more() -> None:
    assert FULL.num_images >= 50
    assert "reconstruction-cifar10" in STUDIES
