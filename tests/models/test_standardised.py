"""The regression on standardised columns: its statistics are sums of bounded contributions, and become means."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from privet.errors import RecipeError
from privet.models import MODELS
from privet.models.model_sizes import STATISTICS_NORM
from privet.models.standardised import StandardisedModel
from privet.runs.recipes.own_data_defaults import Promise, table_recipe
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.table_schema import TableSchema
from privet.runs.recipes.table_settings import TargetSettings


def statistics_gradient(model: StandardisedModel, record: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    model.statistics_losses(record).sum().backward()
    found = model.statistics.weight.grad
    assert found is not None
    return found.flatten()


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, -7.0, 1e9, math.inf, math.nan])
def test_no_record_is_longer_than_the_bound_of_the_statistics_and_none_is_clipped(
    value: float,
) -> None:
    model = StandardisedModel(5, 2, num_curves=3)
    torch.nn.init.normal_(model.statistics.weight)
    length = float(statistics_gradient(model, torch.full((1, 5), value)).norm())
    assert length <= STATISTICS_NORM * (1 + 1e-6)
    longest = float(statistics_gradient(model, torch.ones(1, 5)).norm())
    assert longest == pytest.approx(STATISTICS_NORM, rel=1e-6)


def test_the_gradient_of_a_record_does_not_depend_on_the_statistics() -> None:
    model, record = StandardisedModel(4, 2), torch.rand(1, 4)
    before = statistics_gradient(model, record).clone()
    torch.nn.init.normal_(model.statistics.weight)
    torch.testing.assert_close(statistics_gradient(model, record), before)


def test_the_loss_of_the_task_does_not_move_the_statistics() -> None:
    model = StandardisedModel(4, 2, num_curves=5)
    torch.nn.init.normal_(model.linear.weight)
    functional.cross_entropy(model(torch.rand(6, 4)), torch.tensor([0, 1, 0, 1, 1, 0])).backward()
    assert model.statistics.weight.grad is None


def test_descent_learns_mean_and_spread_of_every_column() -> None:
    features = torch.rand(4_000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.5, 0.1])
    model = StandardisedModel(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        model.statistics_losses(features).mean().backward()
        optimizer.step()
    means, spreads = model._means_and_spreads(3)
    scaled = 2 * features - 1
    torch.testing.assert_close(means, scaled.mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(spreads, scaled.std(0), rtol=2e-2, atol=1e-3)


def made(size: int, epsilon: float, *, classes: int = 2) -> Recipe:
    target = TargetSettings(name="y", categories=[str(place) for place in range(classes)])
    schema = TableSchema(targets=(target,), columns=(TargetSettings(name="x", low=0, high=1).as_feature(),))
    from pathlib import Path

    values = table_recipe(
        Promise(epsilon=epsilon, train_size=size), schema, name="own", train=Path("x.csv"), test=None, delimiter=","
    )
    return Recipe.from_dict(values)


def test_the_bound_of_the_statistics_in_a_default_recipe_clips_nobody() -> None:
    norms = made(2_000, 1.0).privacy.clipping["norm"]
    assert norms[0] == STATISTICS_NORM


def test_more_records_and_epsilon_raise_bounds_and_rates_and_more_classes_lower_the_bound() -> None:
    bounds = [made(size, 1.0).privacy.clipping["norm"][1] for size in (200, 1_000, 10_000, 1_000_000)]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0.5, 2.0)
    assert made(2_000, 1.0, classes=8).privacy.clipping["norm"][1] < made(2_000, 1.0).privacy.clipping["norm"][1]
    assert made(2_000, 2.0).privacy.clipping == made(4_000, 1.0).privacy.clipping


def test_too_few_records_are_still_refused() -> None:
    with pytest.raises(RecipeError, match="no useful private model"):
        made(50, 1.0)


def test_more_than_two_classes_get_the_model_whose_intercept_takes_less_of_a_clipped_gradient() -> None:
    assert [made(2_000, 1.0, classes=number).model for number in (2, 3, 10)] == [
        "table_linear", "table_classes", "table_classes",
    ]  # fmt: skip
    for number in (3, 10):
        model = MODELS["table_classes"].build((4,), number)
        model(torch.rand(5, 4)).sum().backward()
        weights = model.get_parameter("linear.weight").grad
        assert weights is not None
        assert float(weights[0, 4]) == pytest.approx(5 / math.sqrt(number))
