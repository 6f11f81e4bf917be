from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import train

TINY = (
    "model=logistic_regression",
    "privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=40, steps=4}",
    "privacy.delta=1e-3",
    "training.optimizer={kind='sgd', learning_rate=0.5}",
    "training.evaluate_every=1",
    "training.device=cpu",
)

MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Train a tiny run with these changes; the same changes give the same folder, which tests must not change."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*overrides: str) -> Path:
        if overrides not in made:
            made[overrides] = tmp_path_factory.mktemp("runs") / "run"
            train(load_recipe("demo", [*TINY, *overrides]), made[overrides])
        return made[overrides]

    return make


@pytest.fixture(scope="session")
def finished_run(make_run: MakeRun) -> Path:
    """A finished run, which tests read and must not change."""
    return make_run()
