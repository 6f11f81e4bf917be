"""Recipes that release the last model only: planned, run, stopped and resumed like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privet.errors import RecipeError
from privet.runs.ledger_check import check_ledger
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import train
from privet.vocabulary import Release

SMALL = (
    "dataset=fashion_mnist_small",
    "privacy.sampling={kind='cyclic', dataset_size=10_000, batch_size=1000, epochs=3}",
    "training.checkpoint_every=5",
    "training.device=cpu",
)


@pytest.fixture(scope="module")
def small() -> Callable[..., Recipe]:
    """Three epochs on the images that come with the package."""
    return lambda *overrides: load_recipe("mnist_convex", [*SMALL, *overrides])


class StopAfter:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def test_a_run_stopped_inside_an_epoch_is_charged_every_iterate_until_it_is_resumed_to_its_end(
    small: Callable[..., Recipe], run_folder: Path
) -> None:
    stopped = train(small(), run_folder, should_stop=StopAfter(13))
    assert not stopped.is_finished
    assert stopped.spent.released is Release.EVERY_ITERATE
    assert not (run_folder / "model.safetensors").exists()
    ended = train(small(), run_folder)
    assert ended.is_finished
    assert ended.spent.epsilon == ended.promised.epsilon <= 4.76
    assert ended.spent.released is Release.LAST_ITERATE
    assert ended.metrics is not None
    assert ended.metrics.measures[0].value > 0.5
    assert check_ledger(run_folder).spent.epsilon == ended.promised.epsilon


REFUSED = {
    "looking": ("training.evaluate_every=10", "measures models during the run"),
    "momentum": ("training.optimizer={kind='sgd', learning_rate=1.0, momentum=0.9}", "plain gradient descent only"),
    "averaging": ("training.averaging={}", "Remove training.averaging"),
    "a part's own rate": ('training.rate_factors={"0"=2.0}', "Remove training.averaging"),
    "views": ("training.augmentation={num_views=2}", "one view of every record"),
    "adam": ("training.optimizer={kind='adam', learning_rate=1.0}", "plain gradient descent only"),
    "rate": ("training.optimizer.learning_rate=0.5", "training.optimizer.learning_rate is 0.5"),
    "ridge": ("training.optimizer.weight_decay=0.5", "privacy.descent.ridge"),
}


@pytest.mark.parametrize(("override", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_recipe_that_breaks_the_proof_is_refused_before_anything_is_loaded(
    small: Callable[..., Recipe], override: str, reason: str
) -> None:
    with pytest.raises(RecipeError, match=reason):
        small(override)


def test_a_recipe_without_constants_has_no_plan(small: Callable[..., Recipe]) -> None:
    with pytest.raises(RecipeError, match="no constants of a convex loss"):
        small("privacy.descent=").plan()


def test_a_declared_size_becomes_a_number_of_batches(small: Callable[..., Recipe]) -> None:
    sampling = small().plan().sampling
    assert (sampling.steps_per_round, sampling.num_rounds, sampling.expected_batch_size) == (10, 3, 1000)


def test_what_does_not_go_with_a_declared_size_is_refused(small: Callable[..., Recipe]) -> None:
    with pytest.raises(RecipeError, match=r"privacy\.sampling\.batches does not go with a declared size"):
        small("privacy.sampling.batches=3").plan()
    with pytest.raises(RecipeError, match="lacks batch_size"):
        small("privacy.sampling.batch_size=").plan()
