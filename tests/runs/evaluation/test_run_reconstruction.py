from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privet.attacks.reconstruction.released_gradients import CONTROL, RELEASED
from privet.errors import RecipeError
from privet.reports.reconstruction_rows import write_rebuilt
from privet.runs.evaluation.run_reconstruction import examine_reconstruction
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import train

TINY = (
    "model=logistic_regression",
    "privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=40, steps=2}",
    "privacy.delta=1e-3",
    "training.optimizer={kind='sgd', learning_rate=0.5}",
    "training.evaluate_every=",
    "training.device=cpu",
)
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(*overrides: str, is_private: bool = True) -> Path:
        recipe = load_recipe("demo", [*TINY, *overrides])
        train(recipe if is_private else recipe.without_privacy(), tmp_path / "run")
        return tmp_path / "run"

    return make


def test_bare_gradients_give_the_pictures_away_and_the_runs_noise_hides_them(make_run: MakeRun) -> None:
    folder = make_run()
    found = examine_reconstruction(folder, num_images=3, num_steps=60)
    bare, released = found.report.rows
    assert (bare.name, released.name) == (CONTROL, RELEASED)
    assert bare.mse.value < 0.05 < released.mse.value
    assert 0 <= bare.mse.low <= bare.mse.value <= bare.mse.high
    assert bare.ssim.high <= 1
    assert bare.ssim.value > 0.3
    assert released.ssim.value < 0.1
    assert found.report.num_images == 3
    assert write_rebuilt(folder, found).read_bytes().startswith(b"\x89PNG")


def test_the_noise_is_the_runs_and_the_mask_has_its_final_rate(make_run: MakeRun) -> None:
    mask = "privacy.mask={kind='random', schedule={kind='constant', value=0.5}}"
    folder = make_run("privacy.epsilon=", "privacy.noise.noise_multiplier=0.25", "privacy.clipping.norm=0.4", mask)
    found = examine_reconstruction(folder, num_images=2, num_steps=2)
    assert found.report.noise_std == pytest.approx(0.1)
    assert found.report.mask_rate == 0.5


def test_the_same_seed_gives_the_same_pictures(make_run: MakeRun) -> None:
    folder = make_run()
    first, second = (examine_reconstruction(folder, num_images=2, num_steps=3) for _ in range(2))
    assert torch.equal(first.rebuilt[RELEASED], second.rebuilt[RELEASED])


def test_a_run_without_privacy_has_the_control_alone(make_run: MakeRun) -> None:
    found = examine_reconstruction(make_run(is_private=False), num_images=2, num_steps=2)
    assert [row.name for row in found.report.rows] == [CONTROL]
    assert found.report.noise_std is None


def test_records_that_are_not_public_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(RecipeError, match="not public"):
        examine_reconstruction(make_run("data_is_public=false"))


def test_noise_for_which_the_attack_is_not_made_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(RecipeError, match="L2Laplace"):
        examine_reconstruction(make_run("privacy.noise={kind='l2_laplace', num_coordinates=7850}"))
