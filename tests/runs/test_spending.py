"""What a run says it has spent on its way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.runs import runner
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.run_files import RunFiles
from privet.training.tracking.spending import Spending
from privet.vocabulary import Adjacency

BARE = ("privacy.epsilon=", "privacy.noise={kind='none'}")


def plan_of(*overrides: str) -> Plan:
    return load_recipe("demo", overrides).privacy.plan()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=100, steps=400}")


def test_every_epsilon_told_is_what_a_run_that_ends_there_has_spent(plan: Plan) -> None:
    spending = Spending(plan, measured_every=50)
    told = {step: found for step in range(1, 401) if (found := spending.exactly(step)) is not None}
    assert 12 <= len(told) <= 24
    assert {50, 100, 150, 200, 250, 300, 350, 400} <= set(told)
    assert list(told.values()) == sorted(told.values())
    assert told[400] == plan.guarantee().epsilon
    for step in (1, 50, 200, 350):
        shorter = replace(plan, sampling=replace(plan.sampling, steps=step))
        assert told[step] == shorter.guarantee().epsilon


def test_the_bound_between_known_steps_is_never_too_small(plan: Plan) -> None:
    spending = Spending(plan)
    for step in range(1, 401):
        found = spending.exactly(step)
        assert found is None or spending.at_most(step) >= found * (1 - 1e-6)


def test_a_round_of_several_steps_is_spent_with_its_first(plan: Plan) -> None:
    shuffled = replace(
        plan,
        sampling=Shuffle(batches=10, epochs=3, expected_batch_size=100.0),
        adjacency=Adjacency.REPLACE_ONE,
    ).calibrated(epsilon=5.0)
    assert shuffled.sampling.steps_per_round == 10
    spending = Spending(shuffled)
    told = [spending.exactly(step) for step in range(1, 31)]
    assert None not in told
    assert len(set(told)) == 3
    assert [told[0], told[10], told[20]] == [told[9], told[19], told[29]]


def test_a_plan_for_the_last_model_alone_spends_its_epsilon_at_its_end() -> None:
    convex = load_recipe("mnist_convex", ["privacy.sampling.epochs=3"]).privacy.plan()
    spending = Spending(convex, measured_every=10)
    told = [spending.exactly(step) for step in range(1, convex.num_steps + 1)]
    assert set(told[: -convex.sampling.steps_per_round]) == {None}
    assert told[-1] == convex.guarantee().epsilon


def test_without_noise_every_step_spends_infinity(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    bare = plan_of(*BARE)
    spending = Spending(bare)
    assert isinstance(bare.sampling, Poisson)
    assert [spending.exactly(step) for step in (1, 2, 100)] == [math.inf] * 3
    runner.train(tiny(*BARE), run_folder)
    rows = [json.loads(line) for line in RunFiles(folder=run_folder).steps.read_text().splitlines()]
    assert {row["epsilon"] for row in rows} == {"infinity"}


def test_the_log_leaves_epsilon_out_where_it_was_not_computed(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    recipe = tiny("privacy.sampling.steps=60", "training.evaluate_every=20")
    spent = runner.train(recipe, run_folder).spent.epsilon
    rows = [json.loads(line) for line in RunFiles(folder=run_folder).steps.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert 0 < sum("epsilon" not in row for row in rows) < 60
    assert rows[-1]["epsilon"] == spent
    curve = json.loads(RunFiles(folder=run_folder).metrics.read_text())["curve"]
    assert [point["epsilon"] for point in curve] == [rows[step - 1]["epsilon"] for step in (20, 40, 60)]
