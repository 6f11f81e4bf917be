from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from privet.cli.console import run
from privet.cli.main import privet

TINY = (
    "model=logistic_regression",
    "privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=40, steps=4}",
    "privacy.delta=1e-5",
    "training.optimizer={kind='sgd', learning_rate=0.5}",
    "training.evaluate_every=2",
    "training.device=cpu",
)
# What makes a run on data of one's own short, and what declares such a table.
FEW_STEPS = (
    "--set",
    "privacy.sampling={kind='poisson', dataset_size=200, batch_size=50, steps=3}",
    "--set",
    "training.device=cpu",
)
SCHEMA = """
train_size = 200
columns = [
  { name = "age", low = 0, high = 100 },
  { name = "town", categories = ["north", "south"] },
  { name = "income", categories = ["low", "high"] },
]
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Answer]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run the command line as a user would, and return its exit code, results and remarks."""
    monkeypatch.setenv("COLUMNS", "80")

    def asked(*args: str | Path) -> Answer:
        capfd.readouterr()
        code = run(privet, [str(arg) for arg in args])
        captured = capfd.readouterr()
        return Answer(code, captured.out, captured.err)

    return asked


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from privet.runs.recipes.recipe_files import load_recipe

    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(load_recipe("demo", TINY).to_toml())
    return path


@pytest.fixture(scope="session")
def finished_run(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tests read and must not change."""
    from privet.runs.recipes.recipe_files import load_recipe
    from privet.runs.runner import train

    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert train(load_recipe(tiny_recipe), folder).is_finished
    return folder
