"""A recipe that leaves the physical batch size to the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privet.errors import RecipeError
from privet.runs import building
from privet.runs.building import find_physical_batch_size
from privet.runs.recipes.recipe import Recipe
from privet.runs.runner import train
from tests.training.tools import examples, network, poisson

MakeRecipe = Callable[..., Recipe]


def test_a_run_may_leave_the_size_to_the_machine(
    tiny: MakeRecipe, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def suggested(model: nn.Module, losses: object, given: Any, *, limit: int) -> int:
        assert model.training
        limits.append(limit)
        return 3

    monkeypatch.setattr(building, "suggest_physical_batch", suggested)
    recipe = tiny("training.physical_batch_size=auto")
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert train(recipe, run_folder).is_finished
    assert limits == [40]


def test_a_seeded_run_ends_at_the_same_weights_whoever_chooses_the_size(tiny: MakeRecipe, tmp_path: Path) -> None:
    for name, size in (("found", "auto"), ("given", "256")):
        train(tiny(f"training.physical_batch_size={size}", "training.seed=3"), tmp_path / name)
    from safetensors.torch import load_file

    found, given = (load_file(tmp_path / name / "model.safetensors") for name in ("found", "given"))
    assert all(torch.allclose(found[name], given[name], atol=1e-5) for name in given)


def test_no_value_of_a_record_enters_the_trials() -> None:
    model, seen = network().eval(), list[Tensor]()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(inputs.detach().clone())
        return nn.functional.cross_entropy(model(inputs), labels, reduction="none")

    data = examples()
    assert 1 <= find_physical_batch_size(model, losses, data, poisson(), torch.device("cpu")) <= 4
    assert not model.training
    assert not any(torch.isin(inputs, data.tensors[0]).any() for inputs in seen)


def test_no_other_word_is_a_size(tiny: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match=r"training\.physical_batch_size is 'large'"):
        tiny("training.physical_batch_size=large")
