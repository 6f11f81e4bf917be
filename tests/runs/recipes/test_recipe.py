from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from privet.errors import RecipeError
from privet.models.model_sizes import MODEL_SIZES, num_parameters
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import MAX_BYTES, load_recipe, packaged_recipes, recipe_from_values

SOURCE = Path(__file__).resolve().parents[2] / "src"

MINIMAL = """
dataset = "fashion_mnist_small"
model = "logistic_regression"
[privacy]
delta = 1e-5
adjacency = "add_or_remove"
unit = "record"
sampling = { kind = "poisson", rate = 0.01, steps = 10, expected_batch_size = 100.0 }
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian", noise_multiplier = 1.0 }
[training]
optimizer = { kind = "sgd", learning_rate = 0.1 }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(folder, text), overrides).plan()
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(packaged_recipes()))
def test_every_packaged_recipe_meets_its_own_epsilon(name: str) -> None:
    recipe = load_recipe(name)
    guarantee = recipe.plan().guarantee()
    assert recipe.privacy.epsilon is not None
    assert 0.99 * recipe.privacy.epsilon < guarantee.epsilon <= recipe.privacy.epsilon
    assert recipe.privacy.sampling["dataset_size"] == recipe.info.train_size


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist", "cifar10"])
def test_the_quick_version_of_a_recipe_takes_fewer_steps(name: str) -> None:
    assert load_recipe(name, quick=True).plan().num_steps < load_recipe(name).plan().num_steps


def test_asking_for_the_quick_version_of_a_recipe_without_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no \\[quick\\] table"):
        load_recipe(written(tmp_path, MINIMAL), quick=True)


@pytest.mark.parametrize("name", sorted(packaged_recipes()))
def test_a_resolved_recipe_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, ["privacy.epsilon=2.5"])
    again = load_recipe(written(tmp_path, recipe.to_toml()))
    assert again == recipe
    assert again.privacy.epsilon == 2.5


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; from privet.runs.recipes.recipe_files import load_recipe; "
        "load_recipe('demo').plan().guarantee(); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_the_table_of_model_sizes_names_exactly_the_models_that_exist_and_counts_them_right() -> None:
    from privet.datasets import KNOWN_DATASETS
    from privet.models import MODELS, count_parameters

    assert set(MODEL_SIZES) == set(MODELS)
    tasks = {(info.input_shape, info.num_classes or 1) for info in KNOWN_DATASETS.values()}
    for name, sizes in MODEL_SIZES.items():
        assert set(sizes) <= tasks
        if name == "minilm_lora":
            continue  # needs weights that may not be installed; the catalogue's own tests count it
        for (shape, outputs), count in sizes.items():
            assert count_parameters(MODELS[name].build(shape, outputs)) == count, name
            assert num_parameters(name, shape, outputs) == count


def test_a_declared_size_means_the_same_as_the_rate_and_steps_that_follow_from_it(tmp_path: Path) -> None:
    declared = '{ kind = "poisson", dataset_size = 1000, batch_size = 100, epochs = 3 }'
    rated = '{ kind = "poisson", rate = 0.1, steps = 30, expected_batch_size = 100.0 }'
    plans = [load_recipe(written(tmp_path, MINIMAL), [f"privacy.sampling={text}"]).plan() for text in (declared, rated)]
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("privacy.epsilo=1.0", "privacy.epsilo is not part of a recipe. Did you mean 'epsilon'?"),
        ("datset=mnist", "datset is not part of a recipe. Did you mean 'dataset'?"),
        ("training.optimiser=1", "training.optimiser is not part of a recipe. Did you mean 'optimizer'?"),
        (
            "training.optimizer.learning_rat=1",
            "training.optimizer.learning_rat is not an option here. Did you mean 'learning_rate'?",
        ),
        (
            "training.optimizer={kind='adam', learning_rate=0.1, momentun=0.9}",
            "training.optimizer.momentun is not an option here. Known: kind, learning_rate, weight_decay.",
        ),
        ("training.augmentation={num_view=3}", "training.augmentation.num_view is not an option here. Did you mean"),
        ("epsilon=2", "epsilon is not part of a recipe. Did you mean 'privacy.epsilon'?"),
        ("epsilom=2", "epsilom is not part of a recipe. Did you mean 'privacy.epsilon'?"),
        ("training.delta=1e-6", "training.delta is not part of a recipe. Did you mean 'privacy.delta'?"),
        (
            "learning_rate=0.1",
            "learning_rate is not part of a recipe. Did you mean 'training.optimizer.learning_rate'?",
        ),
        ("noise_multiplier=1.0", "Did you mean 'privacy.noise.noise_multiplier'?"),
        ("device=cpu", "device is not part of a recipe. Did you mean 'training.device'?"),
        ("qqqq=1", "qqqq is not part of a recipe. Known: data_is_public, data_sheet, dataset,"),
        ("privacy.clipping.norms=1.0", "privacy.clipping.norms is not an option of 'threshold'. Did you mean 'norm'?"),
        ("dataset=mnst", "dataset is 'mnst'. Did you mean 'mnist'?"),
        ("model=dp_cn", "model is 'dp_cn'. Did you mean 'dp_cnn'?"),
        ("normalisation=standard", "normalisation is 'standard'. Did you mean 'standardized'?"),
        ("privacy.adjacency=add_remove", "privacy.adjacency is 'add_remove'. Did you mean 'add_or_remove'?"),
        ("privacy.sampling.kind=poison", "privacy.sampling.kind is 'poison'. Did you mean 'poisson'?"),
        ("privacy.delta=1.0", "delta must lie in (0, 1), got 1.0"),
        ("privacy.delta=1.5", "delta must lie in (0, 1), got 1.5"),
        ("privacy.delta=0", "delta must lie in (0, 1), got 0.0"),
        ("privacy.delta=true", "privacy.delta is True"),
        ('privacy.delta="1e-5"', "privacy.delta is '1e-5'"),
        ("privacy.noise.noise_multiplier=-1.0", "noise_multiplier must be positive and finite, got -1.0"),
        ("privacy.noise.noise_multiplier=0", "noise_multiplier must be positive and finite, got 0.0"),
        ("privacy.noise.noise_multiplier=true", "noise_multiplier must be a number, got True"),
        ("privacy.sampling.rate=1.5", "rate must lie in (0, 1], got 1.5"),
        ("privacy.sampling.steps=2.5", "steps must be a whole number"),
        ("training.optimizer.learning_rate=0", "training.optimizer.learning_rate is 0"),
        ('training.optimizer.learning_rate="1"', "training.optimizer.learning_rate is '1'"),
        ("training.optimizer.kind=sdg", "training.optimizer.kind is 'sdg'. Did you mean 'sgd'?"),
        ("training.optimizer.kind=lbfgs", "training.optimizer.kind is 'lbfgs'. Known: adam, adamw, dp_adam, dp_adamw,"),
        ("training.optimizer.kind=3", "training.optimizer.kind is 3. Known: adam,"),
        (
            "training.optimizer={learning_rate=0.1}",
            'training.optimizer has no kind. Say which one it is, as in { kind = "sgd"',
        ),
        ("training.schedule={kind='line'}", "training.schedule.kind is 'line'. Did you mean 'linear'?"),
        ("training.device=tpu", "training.device is 'tpu'"),
        ("training.physical_batch_size=0", "training.physical_batch_size is 0"),
        ("training.physical_batch_size=true", "training.physical_batch_size is True"),
        ("privacy.noise=", "privacy.noise is missing"),
        ("privacy=", "privacy is missing"),
        ("privacy.delta=nan", "privacy.delta is nan"),
        ("privacy.delta=inf", "privacy.delta is inf"),
        ("training.seed=9007199254740993", "beyond 2**53"),
        ("privacy.epsilon=1.0", "each determines the other"),
        ("privacy.noise.noise_multiplier=", "neither an epsilon nor a noise"),
        ("privacy.sampling.batch_size=10", "does not go with a declared size"),
        ('privacy.sampling={kind="poisson", batch_size=10, epochs=1}', "privacy.sampling lacks dataset_size"),
        ('privacy.sampling={kind="poisson", dataset_size=5, batch_size=10, epochs=1}', "is larger than the declared"),
        ('privacy.sampling={kind="poisson", dataset_size=50, batch_size=10}', "exactly one of steps and epochs"),
        ("training.epochs=5", "the length of a run belongs to its guarantee. Set privacy.sampling.epochs."),
        ("batch_size=5", "Set privacy.sampling.batch_size."),
        (
            'privacy.sampling={kind="truncated_poisson", rate=0.5, steps=3, dataset_size=50, max_batch_size=20}',
            "draws 25 records on average and max_batch_size is 20",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_what_was_found(tmp_path: Path, override: str, told: str) -> None:
    assert told in refusal(tmp_path, MINIMAL, override)


@pytest.mark.parametrize(
    "override",
    ["", "=1", "a", "a b=1", "privacy..delta=1", "privacy.delta=1e-5\nmodel='x'", "model=two words", "model=[1,"],
)
def test_an_override_that_is_not_one_key_and_one_value_is_refused(tmp_path: Path, override: str) -> None:
    assert "--set" in refusal(tmp_path, MINIMAL, override)


def test_an_override_may_not_pass_through_a_value(tmp_path: Path) -> None:
    assert "dataset is a value, not a table" in refusal(tmp_path, MINIMAL, "dataset.name=1")


def test_overrides_know_numbers_words_tables_and_removal(tmp_path: Path) -> None:
    changed = [
        "privacy.noise={kind='gaussian'}",
        "privacy.epsilon=4",
        "privacy.adjacency=replace_one",
        "training.seed=7",
        "name='my run'",
        "training.seed=",
    ]
    recipe = load_recipe(written(tmp_path, MINIMAL), changed)
    assert recipe.privacy.epsilon == 4.0
    assert recipe.privacy.adjacency == "replace_one"
    assert recipe.name == "my run"
    assert recipe.training.seed is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"dataset = 'a'\ndataset = 'b'\n", "not valid TOML"),
        (b"dataset = \xff\xfe\n", "not UTF-8"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, "not valid TOML"),
        (b"x = " + b"9" * 5000, "not valid TOML"),
        (b"dataset = ", "not valid TOML"),
        (b"", "is missing"),
        (b"#" + b"x" * MAX_BYTES, "larger than"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=told):
        load_recipe(path)


def test_folders_missing_files_and_impossible_names_are_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none.toml", "none/such.toml", "a\0b.toml", "x" * 5000 + ".toml"):
        with pytest.raises(RecipeError):
            load_recipe(place)


def test_an_unknown_name_is_answered_with_the_nearest_recipe() -> None:
    with pytest.raises(RecipeError, match="Did you mean 'demo'"):
        load_recipe("dmo")


def test_looking_at_test_data_during_a_run_is_for_public_data(tmp_path: Path) -> None:
    told = refusal(tmp_path, MINIMAL, "training.evaluate_every=1", "data_is_public=false")
    assert "which the guarantee does not cover" in told


def test_public_data_are_those_of_the_data_set_unless_the_recipe_says_otherwise() -> None:
    assert load_recipe("demo").is_public
    assert not load_recipe("demo", ["data_is_public=false", "training.evaluate_every="]).is_public


def test_a_recipe_cannot_be_changed_after_it_was_read() -> None:
    recipe = load_recipe("demo")
    with pytest.raises(ValueError, match="frozen"):
        recipe.model = "mlp_1000"  # type: ignore[misc]


def test_recipes_are_checked_the_same_without_a_file() -> None:
    values: dict[str, Any] = tomllib.loads(MINIMAL)
    assert Recipe.from_dict(values).plan().num_steps == 10
    with pytest.raises(RecipeError, match="Did you mean 'training'"):
        Recipe.from_dict(values | {"trainin": {}})


def test_without_privacy_nothing_hides_and_everything_else_stays() -> None:
    recipe = load_recipe("demo")
    bare = recipe.without_privacy()
    plan = bare.plan()
    assert len(plan.not_private_because) == 2
    assert math.isinf(plan.guarantee().epsilon)
    assert plan.sampling == recipe.plan().sampling
    assert (bare.dataset, bare.model) == (recipe.dataset, recipe.model)
    assert Recipe.from_dict(tomllib.loads(bare.to_toml())) == bare


def test_without_privacy_a_step_of_plain_descent_stays_as_long_as_the_bound_made_it() -> None:
    recipe = load_recipe("demo", ["training.optimizer={kind='sgd', learning_rate=4.0, weight_decay=0.01}"])
    bound = recipe.privacy.clipping["norm"]
    optimizer = recipe.without_privacy().training.optimizer
    assert optimizer.learning_rate == pytest.approx(4.0 * bound)
    assert optimizer.learning_rate * optimizer.weight_decay == pytest.approx(4.0 * 0.01)
    assert recipe.without_privacy(keeps_learning_rate=True).training == recipe.training
    adam = load_recipe("demo", ["training.optimizer={kind='adam', learning_rate=0.01}"])
    assert adam.without_privacy().training == adam.training


@pytest.mark.parametrize("name", sorted(packaged_recipes()))
def test_every_packaged_recipe_can_be_planned_without_privacy(name: str) -> None:
    assert load_recipe(name).without_privacy().plan().not_private_because


def test_a_delta_that_would_allow_a_whole_record_to_be_shown_is_warned_of() -> None:
    assert load_recipe("demo").warning is None
    warning = load_recipe("demo", ["privacy.delta=1e-4"]).warning
    assert warning is not None
    assert "10,000 declared records" in warning
    assert load_recipe("demo", ["privacy.delta=9e-5"]).warning is None
    assert load_recipe("demo", ["privacy.delta=1e-4"]).without_privacy().warning is None


@pytest.mark.parametrize("name", sorted(packaged_recipes()))
def test_no_packaged_recipe_has_a_weak_promise(name: str) -> None:
    assert load_recipe(name).warning is None


def test_a_file_has_one_path_from_whichever_folder_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    table = """
[table]
train = "my.csv"
test = "sub/../my.csv"
train_size = 200
label = { name = "y", categories = ["0", "1"] }
columns = [{ name = "x", low = 0, high = 1 }]
"""
    (work / "own.toml").write_text(MINIMAL.replace("fashion_mnist_small", "own") + table)
    monkeypatch.chdir(work)
    here = load_recipe("own.toml")
    monkeypatch.chdir(elsewhere)
    there = load_recipe("../work/own.toml")
    assert here == there
    assert here.table is not None
    assert (here.table.train, here.table.test) == (str(work / "my.csv"), str(work / "my.csv"))


def test_a_path_through_a_link_still_names_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    for folder, is_meant in ((tmp_path / "far", True), (tmp_path, False)):
        (folder / "my.csv").write_text("x,y\n" if is_meant else "other\n")
    values = tomllib.loads(MINIMAL.replace("fashion_mnist_small", "own"))
    values["table"] = {
        "train": "link/../my.csv",
        "train_size": 200,
        "label": {"name": "y", "categories": ["0", "1"]},
        "columns": [{"name": "x", "low": 0, "high": 1}],
    }
    found = recipe_from_values(values, folder=tmp_path).table
    assert found is not None
    assert Path(found.train).read_text() == "x,y\n"
    values["table"]["train"] = "link/my.csv"
    found = recipe_from_values(values, folder=tmp_path).table
    assert found is not None
    assert found.train == str(tmp_path / "link" / "my.csv")


@pytest.mark.parametrize("unit", ["person", "client"])
def test_a_known_data_set_promises_nothing_about_more_than_a_record(tmp_path: Path, unit: str) -> None:
    told = refusal(tmp_path, MINIMAL, f"privacy.unit={unit}")
    assert f"privacy.unit is '{unit}', and nothing says that a record of" in told
    assert "privacy.unit = 'record'" in told
