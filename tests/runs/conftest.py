from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from privet.datasets import Split, load
from privet.plan import Plan
from privet.runs import building
from privet.runs.recipes.recipe import PrivacySettings, Recipe
from privet.runs.recipes.recipe_files import load_recipe

TINY = (
    "model=logistic_regression",
    "privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=40, steps=6}",
    "privacy.delta=1e-3",
    "training.optimizer={kind='sgd', learning_rate=0.5}",
    "training.evaluate_every=2",
    "training.checkpoint_every=2",
    "training.device=cpu",
)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Recipe]:
    """A run of six small steps on the images that come with the package."""
    return lambda *overrides: load_recipe("demo", [*TINY, *overrides])


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def images_and_plans_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacking images and accounting plans take longer than six steps; both are the same every time."""
    monkeypatch.setattr(building, "load", _load_once)
    monkeypatch.setattr(PrivacySettings, "plan", lambda settings: _plan_once(settings.model_dump_json()))


@cache
def _load_once(name: str, normalisation: str | None = None) -> Split:
    return load(name, normalisation=normalisation)


_plan_of = PrivacySettings.plan


@cache
def _plan_once(settings: str) -> Plan:
    return _plan_of(PrivacySettings.model_validate_json(settings))
