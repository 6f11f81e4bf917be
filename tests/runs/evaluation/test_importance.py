"""Importance of columns: on private records what a record adds depends on that record alone, and is charged."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from privet.datasets.arrays import ArrayDataset
from privet.datasets.encoding import encoded_names, feature_groups
from privet.datasets.special_columns import GapColumn, OrdinalColumn
from privet.datasets.tables import CategoryColumn, NumberColumn
from privet.effects.noisy_counts.contributions import Evaluated, summed
from privet.effects.noisy_counts.figures import Released, figures_of
from privet.effects.noisy_counts.terms import EvaluationTerms
from privet.errors import DataError, RecipeError
from privet.reports.content import gather
from privet.reports.importance_rows import private_parts, public_parts
from privet.reports.run_report import render
from privet.runs.evaluation.importance import columns_of, drops_on_stand_ins, examine_importance
from privet.runs.evaluation.private_evaluation import Asked, evaluate_privately
from privet.runs.ledger_check import check_ledger
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.resuming import stored_plan
from privet.runs.run_files import RunFiles
from privet.runs.runner import train

AGE = NumberColumn(name="age", low=0, high=100, default=0)
TOWN = CategoryColumn(name="town", categories=("a", "b", "c"), default="a")
WORDS = OrdinalColumn(name="pain", low=0, high=2, default=0, ordered=("no", "some", "much"))
COLUMNS = (AGE, GapColumn.showing(AGE), TOWN, WORDS)

RECIPE = """
dataset = "own_people"
model = "logistic_regression"

[table]
train = "train.csv"
test = "held_out.csv"
train_size = 400
label = { name = "income", categories = ["low", "high"] }
columns = [
  { name = "<i>age", low = 0, high = 100 },
  { name = "sex", categories = ["f", "m"] },
  { name = "same", low = 0, high = 1 },
]

[privacy]
epsilon = 50.0
delta = 1e-4
adjacency = "add_or_remove"
unit = "record"
sampling = { kind = "poisson", dataset_size = 400, batch_size = 100, steps = 30 }
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian" }

[training]
optimizer = { kind = "sgd", learning_rate = 2.0 }
device = "cpu"
seed = 1
physical_batch_size = 400
"""


def write_people(path: Path, count: int) -> None:
    draw = random.Random(count)
    with path.open("w", newline="") as target:
        rows = csv.writer(target)
        rows.writerow(["<i>age", "sex", "same", "income"])
        for _ in range(count):
            age = draw.randint(0, 100)
            rows.writerow([age, draw.choice("fm"), 0.5, "high" if age > 50 else "low"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    write_people(folder / "train.csv", 400)
    write_people(folder / "held_out.csv", 300)
    (folder / "recipe.toml").write_text(RECIPE)
    assert train(load_recipe(folder / "recipe.toml"), folder / "run").is_finished
    return folder / "run"


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(len(encoded_names(COLUMNS)), 8), nn.Tanh(), nn.Linear(8, 2))


def drops_of(features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    model = network()

    @torch.no_grad()
    def merits(values: torch.Tensor) -> np.ndarray:
        return (model(values).argmax(1) == labels).double().numpy()

    return drops_on_stand_ins(merits, features, feature_groups(COLUMNS))


def test_all_encoded_columns_of_one_column_stand_in_one_group_with_declared_values() -> None:
    age, town, pain = feature_groups(COLUMNS)
    assert (age.name, age.places) == ("age", (0, 1))
    assert age.stand_ins.shape == (16, 2)
    assert not age.stand_ins[:, 1].any()  # a stand-in is no gap
    assert age.stand_ins[:, 0].mean() == pytest.approx(50)
    assert town.places == (2, 3, 4)
    np.testing.assert_array_equal(town.stand_ins, np.eye(3))
    assert (pain.places, pain.stand_ins.ravel().tolist()) == ((5,), [0, 1, 2])


def test_what_a_record_adds_is_the_same_whoever_else_is_there() -> None:
    rng = torch.Generator().manual_seed(1)
    features, labels = torch.rand((40, 6), generator=rng), torch.randint(0, 2, (40,), generator=rng)
    whole = drops_of(features, labels)
    assert np.abs(whole).max() > 0.2
    for gone in (0, 7, 39):
        kept = [place for place in range(40) if place != gone]
        np.testing.assert_array_equal(drops_of(features[kept], labels[kept]), whole[kept])


@pytest.mark.parametrize("is_class", [True, False])
@pytest.mark.parametrize("num_columns", [1, 5, 40])
def test_one_record_moves_all_columns_together_by_at_most_one_in_the_joint_norm(
    is_class: bool, num_columns: int
) -> None:
    names = tuple(map(str, range(num_columns)))
    terms = EvaluationTerms(class_names=("no", "yes") if is_class else (), importance=names)
    for drop in (1.0, -1.0, 1e300, np.nan):
        one = Evaluated(
            outputs=np.array([[-9.0, -1e-4]]) if is_class else np.array([1.0]),
            targets=np.array([0]) if is_class else np.array([0.0]),
            weights=np.ones(1),
            drops=np.full((1, num_columns), drop),
        )
        vector = summed(one, terms)
        assert np.linalg.norm(vector * terms.weights()) <= 1 + 1e-12
        block = vector[terms.slices()["importance"]] * terms.weights()[terms.slices()["importance"]]
        share = next(block.share for block in terms.blocks if block.name == "importance")
        if np.isfinite(drop):  # the bound is met: no noise is wasted
            assert np.linalg.norm(block) == pytest.approx(share**0.5)


def test_intervals_hold_the_true_drop_in_about_95_percent_of_releases() -> None:
    terms = EvaluationTerms(class_names=("no", "yes"), importance=("strong", "weak", "none"))
    stds = np.concatenate([np.full(block.size, block.std(2.0)) for block in terms.blocks])
    rng, truth, held = np.random.default_rng(5), np.array([0.4, 0.05, 0.0]), np.zeros(3)
    for _ in range(400):
        count = 600
        drops = np.stack(
            [rng.random(count) < 0.4, rng.random(count) < 0.05, rng.choice([-0.5, 0, 0.5], count)], 1
        ).astype(float)
        labels = rng.integers(0, 2, count)
        outputs = np.log(np.where(np.eye(2)[labels] > 0, 0.8, 0.2))
        data = Evaluated(outputs=outputs, targets=labels, weights=np.ones(count), drops=drops)
        vector = summed(data, terms) + rng.normal(size=terms.size) * stds
        found = figures_of(Released(terms=terms, noise_multiplier=2.0, vector=tuple(vector.tolist()))).importance
        held += [one.low <= true <= one.high for one, true in zip(found, truth, strict=True)]
    assert ((held / 400 > 0.92) & (held / 400 < 0.985)).all(), held / 400


def test_a_private_importance_is_part_of_the_one_charge_and_ranks_the_planted_column_first(run: Path) -> None:
    asked = Asked(epsilon=20.0, importance=True)
    found = evaluate_privately(run, asked)
    check = check_ledger(run)
    assert len(check.further) == 1
    assert check.spent.epsilon == asked.promised(stored_plan(RunFiles(folder=run))).epsilon
    importance = {figure.name: figure for figure in found.figures.importance}
    assert list(importance) == ["<i>age", "sex", "same"]
    assert importance["<i>age"].low > 0.2
    assert importance["<i>age"].value > 5 * abs(importance["same"].value)
    (part,) = private_parts(found)
    assert part.rows[0].column == "<i>age"
    assert part.rows[0].width == 100
    page = render(gather(run))
    assert "Importance of columns" in page
    assert "&lt;i&gt;age" in page
    assert "<i>age" not in page
    assert "Prediction of income from people" in page


def test_private_records_are_not_permuted_without_a_budget(run: Path) -> None:
    with pytest.raises(DataError, match="--evaluate-epsilon"):
        examine_importance(run)
    recipe = load_recipe(run.parent / "recipe.toml")
    records = ArrayDataset(features=torch.rand(9, *recipe.info.input_shape), labels=torch.zeros(9, dtype=torch.int64))
    with pytest.raises(DataError, match="--evaluate-epsilon"):
        examine_importance(run, test=records)
    assert not (run / "importance.json").exists()


def test_on_public_records_a_planted_column_is_first_and_a_constant_one_has_none(run: Path) -> None:
    rng = torch.Generator().manual_seed(2)
    age, sex = torch.rand((500, 1), generator=rng), torch.randint(0, 2, (500,), generator=rng)
    features = torch.cat([age, nn.functional.one_hot(sex, 2), torch.full((500, 1), 0.5)], 1).float()
    records = ArrayDataset(features=features, labels=(age[:, 0] > 0.5).long())
    before = (run / "ledger.jsonl").read_bytes()
    found = examine_importance(run, test=records, is_public=True, device="cpu")
    assert (run / "ledger.jsonl").read_bytes() == before
    assert found == examine_importance(run, test=records, is_public=True, device="cpu")
    rows = {row.column: row for row in found.columns}
    assert list(rows) == ["<i>age", "sex", "same"]  # the two categories of sex are one column
    assert rows["<i>age"].low > 0.2
    assert (rows["same"].value, rows["same"].standard_error) == (0.0, 0.0)
    (part,) = public_parts(found)
    assert part.rows[0].column == "<i>age"
    assert gather(run).importance == found


def test_data_without_declared_columns_have_no_importance() -> None:
    with pytest.raises(RecipeError, match="declared columns"):
        columns_of(load_recipe("demo"))
