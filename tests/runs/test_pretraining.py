"""Public pre-training before a private run: what it may depend on, what it gives, and when it is warned of."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from privet.cli.console import run
from privet.cli.main import privet
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.errors import RecipeError
from privet.runs import building, pretraining
from privet.runs.evaluation.pretraining_shift import examine_pretraining
from privet.runs.pretraining import starting_model
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import evaluate, train

CPU = torch.device("cpu")
SMALL = (
    "model=logistic_regression",
    "privacy.sampling={kind='poisson', dataset_size=60_000, batch_size=40, steps=3}",
    "training.evaluate_every=",
    "training.device=cpu",
    "training.seed=1",
    "pretraining.epochs=2",
    "pretraining.learning_rate=0.1",
)


@cache
def _images() -> Split:
    """The images that come with the package, halved: one half stands for the public data, the other for MNIST."""
    return load("fashion_mnist_small")


def _half(name: str, normalisation: str | None = None) -> Split:
    whole = _images()
    own = slice(0, None, 2) if name == "fashion_mnist_small" else slice(1, None, 2)
    parts = (ArrayDataset(features=part.features[own], labels=part.labels[own]) for part in (whole.train, whole.test))
    train_part, test_part = parts
    return Split(train=train_part, test=test_part, info=whole.info)


@pytest.fixture(autouse=True)
def halves(images_and_plans_made_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "load", _half)
    monkeypatch.setattr(pretraining, "load", _half)


def _recipe(*overrides: str) -> Recipe:
    return load_recipe("mnist_pretrained", [*SMALL, *overrides])


def _accuracy(model: torch.nn.Module) -> float:
    test = _half("mnist").test
    with torch.no_grad():
        return float((model(test.features).argmax(1) == test.labels).double().mean())


def test_a_pretrained_start_knows_what_public_data_teach_and_repeats() -> None:
    first, second = (starting_model(_recipe(), CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert _accuracy(first) > 0.6
    assert _accuracy(starting_model(_recipe("pretraining={dataset='fashion_mnist_small', rotation=180}"), CPU)) < 0.4


def test_the_start_depends_on_no_private_record(monkeypatch: pytest.MonkeyPatch) -> None:
    before = starting_model(_recipe(), CPU)

    def refuse(name: str, normalisation: str | None = None) -> Split:
        assert name == "fashion_mnist_small"
        return _half(name)

    monkeypatch.setattr(building, "load", refuse)
    monkeypatch.setattr(pretraining, "load", refuse)
    after = starting_model(_recipe(), CPU)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_a_private_run_begins_with_the_pretrained_weights_and_can_be_resumed(tmp_path: Path) -> None:
    outcome = train(_recipe(), tmp_path / "run", should_stop=lambda: True)
    assert not outcome.is_finished
    resumed = train(_recipe(), tmp_path / "run")
    assert resumed.is_finished
    whole = train(_recipe(), tmp_path / "whole")
    assert resumed.spent.epsilon == whole.spent.epsilon
    plain = train(_recipe("pretraining="), tmp_path / "plain")
    scores = [evaluate(tmp_path / name, device="cpu").measures[0].value for name in ("whole", "plain")]
    assert scores[0] > scores[1] + 0.1
    assert plain.spent.epsilon == whole.spent.epsilon


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param("pretraining.dataset=mnist", "holds records of the private", id="the private data"),
        pytest.param("pretraining.dataset=cifar10", "same shape", id="other shapes"),
        pytest.param("pretraining.dataset=mnits", "mnist", id="unknown"),
        pytest.param("pretraining.rotation=400", "pretraining.rotation", id="beyond a turn"),
        pytest.param("pretraining.turn=4", "pretraining.turn is not part", id="unknown key"),
    ],
)
def test_public_data_that_are_none_or_do_not_fit_are_refused(change: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        _recipe(change)


def test_data_sets_that_share_records_are_refused_both_ways() -> None:
    for private, public in (("fashion_mnist", "fashion_mnist_small"), ("fashion_mnist_small", "fashion_mnist")):
        with pytest.raises(RecipeError, match="void the guarantee"):
            _recipe(f"dataset={private}", f"pretraining.dataset={public}")


def test_near_public_data_are_no_warning_and_turned_ones_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(_recipe(), tmp_path / "near")
    train(_recipe("pretraining.rotation=180"), tmp_path / "far")
    near, far = (examine_pretraining(tmp_path / name) for name in ("near", "far"))
    assert near.harmed_classes == ()
    assert near.margin.value == pytest.approx(1.0, abs=0.15)
    assert len(far.harmed_classes) >= 2
    assert far.margin.value < near.margin.value - 0.3
    capfd.readouterr()
    assert run(privet, ["evaluate", str(tmp_path / "far"), "--pretraining", "--device", "cpu"]) == 0
    shown = capfd.readouterr()
    assert "as if turned by" in shown.out
    assert "worse start than none" in " ".join(shown.err.split())
    assert run(privet, ["evaluate", str(tmp_path / "near"), "--pretraining", "--device", "cpu", "--json"]) == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out)["pretraining"]["harmed_classes"] == []
    assert "warning" not in shown.err


def test_a_run_without_pretraining_needs_the_name_of_public_data(tmp_path: Path) -> None:
    train(_recipe("pretraining="), tmp_path / "run")
    with pytest.raises(RecipeError, match="--public-data"):
        examine_pretraining(tmp_path / "run")
    assert examine_pretraining(tmp_path / "run", public="fashion_mnist_small").harmed_classes == ()
    with pytest.raises(RecipeError, match="void the guarantee"):
        examine_pretraining(tmp_path / "run", public="mnist")
