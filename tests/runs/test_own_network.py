"""A user's own network in a recipe: it runs with consent only, gets exactly its weights, and trains what it is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.errors import RecipeError, UnsupportedModel
from privet.reports.certificate import certify
from privet.runs.building import load_data
from privet.runs.consent import Code
from privet.runs.evaluation.private_evaluation import Asked, evaluate_privately
from privet.runs.frozen_features import FeatureDataset, trained_on
from privet.runs.ledger_check import check_ledger
from privet.runs.own_network import own_network
from privet.runs.recipes.network_settings import OWN_NETWORK, NetworkSettings
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe, recipe_from_values
from privet.runs.run_files import RunFiles
from privet.runs.runner import evaluate, stored_model, train
from privet.runs.user_models import build_referenced
from privet.training.checkpoint import load_checkpoint
from privet.training.performance import Performance
from privet.training.start import privatize

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), NORM, nn.Tanh(), nn.Dropout(0.5))
        self.head = nn.Linear(6, outputs)

    def forward(self, x):
        return self.head(self.body(x))

def build():
    return Net()

def wide():
    return Net(5)
"""
PLAIN, NORMED = CODE.replace("NORM", "nn.LayerNorm(6)"), CODE.replace("NORM", "nn.BatchNorm1d(6)")
NUMBER = 150


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"{n % 70},{('north', 'south')[n % 2]},{('low', 'high')[n % 70 > 30]}\n" for n in range(NUMBER)]
    (tmp_path / "my.csv").write_text("age,town,income\n" + "".join(rows))
    (tmp_path / "mine.py").write_text(PLAIN)
    return tmp_path


def weights_of(folder: Path, function: str = "build") -> Path:
    torch.manual_seed(5)
    model = build_referenced(f"{folder / 'mine.py'}:{function}")
    safetensors.torch.save_model(model, str(folder / "x.safetensors"))
    return folder / "x.safetensors"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recipe_of(
    folder: Path, *, chosen: str = "head", weights: Path | None = None, allow: bool = True, **changed: Any
) -> Recipe:
    file = folder / "mine.py"
    network = {"file": "mine.py", "function": "build", "sha256": digest(file), "train": chosen}
    if weights is not None:
        network |= {"weights": weights.name, "weights_sha256": digest(weights)}
    if allow:
        Code.read(f"{file}:build").allow()
    values = {
        "dataset": "mine",
        "model": OWN_NETWORK,
        "network": network,
        "table": {
            "train": "my.csv", "test": "my.csv", "train_size": NUMBER,
            "label": {"name": "income", "categories": ["low", "high"]},
            "columns": [{"name": "age", "low": 0, "high": 70}, {"name": "town", "categories": ["north", "south"]}],
        },
        "privacy": {
            "epsilon": 3.0, "delta": 1e-5, "adjacency": "add_or_remove", "unit": "record",
            "sampling": {"kind": "poisson", "dataset_size": NUMBER, "batch_size": 30, "steps": 4},
            "clipping": {"kind": "threshold", "norm": 1.0}, "noise": {"kind": "gaussian"},
        },
        "training": {
            "optimizer": {"kind": "sgd", "learning_rate": 0.5}, "physical_batch_size": 16, "seed": 3, "device": "cpu",
        },
        **changed,
    }  # fmt: skip
    return recipe_from_values(values, folder=folder)


def test_a_recipe_from_a_stranger_runs_no_code(folder: Path) -> None:
    canary = folder / "canary"
    (folder / "mine.py").write_text(f"open({str(canary)!r}, 'w').close()\n{PLAIN}")
    recipe = recipe_of(folder, allow=False)
    (folder / "stored.toml").write_text(recipe.to_toml())
    stranger = load_recipe(folder / "stored.toml")
    with pytest.raises(RecipeError, match=r"It was not run.*privet allow .*mine.py:build"):
        train(stranger, folder / "run")
    assert not canary.exists()
    Code.read(f"{folder / 'mine.py'}:wide").allow()  # another function of the file
    with pytest.raises(RecipeError, match="It was not run"):
        stored_model(RunFiles(folder=folder), stranger, torch.device("cpu"))
    (folder / "copy").mkdir()
    (folder / "copy" / "mine.py").write_text((folder / "mine.py").read_text())
    Code.read(f"{folder / 'copy' / 'mine.py'}:build").allow()  # the same content beside other neighbours
    with pytest.raises(RecipeError, match="It was not run"):
        train(stranger, folder / "run")
    assert not canary.exists()


def test_consent_is_for_the_file_as_it_is_and_compiled_copies_are_not_run(folder: Path) -> None:
    recipe = recipe_of(folder)
    assert recipe.network is not None
    assert own_network(recipe.network, recipe.info).trained == ("head.weight", "head.bias")
    assert not (folder / "__pycache__").exists()
    (folder / "mine.py").write_text(PLAIN + "\nprint('changed')\n")
    with pytest.raises(RecipeError, match="is not the file that the recipe names"):
        own_network(recipe.network, recipe.info)
    with pytest.raises(RecipeError, match="It was not run"):
        own_network(recipe_of(folder, allow=False).network, recipe.info)


def test_the_head_learns_what_it_learns_on_features_computed_beforehand(folder: Path) -> None:
    recipe = recipe_of(folder, weights=weights_of(folder))
    outcome = train(recipe, folder / "run")
    assert outcome.is_finished
    found = safetensors.torch.load_file(folder / "run" / "model.safetensors")

    given = safetensors.torch.load_file(folder / "x.safetensors")
    assert all(torch.equal(found[name], given[name]) for name in given if name.startswith("body."))
    torch.manual_seed(5)
    model = build_referenced(f"{folder / 'mine.py'}:build").eval()
    records = load_data(recipe).train
    with torch.no_grad():
        whole = torch.cat([records.features, torch.zeros(-NUMBER % 64, 3)])
        features = torch.cat([model.body(part) for part in torch.split(whole, 64)])[:NUMBER]
    head, plan = model.head.train(), recipe.plan()
    assert outcome.promised.epsilon == plan.guarantee().epsilon
    session = privatize(
        head, torch.optim.SGD(head.parameters(), lr=0.5), ArrayDataset(features=features, labels=records.labels), plan,
        performance=Performance(physical_batch_size=16), seed=3,
    )  # fmt: skip
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: nn.functional.cross_entropy(head(x), y, reduction="none"))
            step.update()
    assert not torch.equal(found["head.weight"], given["head.weight"])
    assert torch.equal(found["head.weight"], head.weight.detach())
    assert torch.equal(found["head.bias"], head.bias.detach())


def test_features_are_computed_once_and_never_written(folder: Path) -> None:
    recipe = recipe_of(folder, weights=weights_of(folder))
    assert recipe.network is not None
    model, calls = own_network(recipe.network, recipe.info).model, []
    body = model.get_submodule("body")
    body.register_forward_hook(lambda module, given, output: calls.append(len(given[0])))
    records = ArrayDataset(features=torch.rand(NUMBER, 3), labels=torch.zeros(NUMBER, dtype=torch.int64))
    found = trained_on(recipe, model, records)
    made_up = 2
    assert [size for size in calls if size > 10] == [64] * (made_up + 3)
    assert isinstance(found.dataset, FeatureDataset)
    assert found.part is model.get_submodule("head")
    assert list(found.dataset.held_tensors()) == [records.features, records.labels]
    assert found.dataset.features.shape == (NUMBER, 6)
    fewer = trained_on(recipe, model, records.rows(torch.arange(NUMBER) < 70))
    assert torch.equal(fewer.dataset.features, found.dataset.features[:70]), "a feature depends on its record alone"
    outcome = train(recipe, folder / "run")
    assert outcome.is_finished
    written = sorted(path.name for path in (folder / "run").iterdir())
    assert not [name for name in written if "feature" in name]
    checkpoint = load_checkpoint(folder / "run" / "checkpoint.safetensors")
    kept = safetensors.torch.load_file(folder / "run" / "model.safetensors")
    tensors = [*kept.values(), *([] if checkpoint is None else checkpoint.tensors.values())]
    assert all(NUMBER not in value.shape for value in tensors)


class _Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class _MixingLargeBatches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 32 else x


class _Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class _Remembering(nn.Module):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.sum(0)
        return x if before is None else x + before


BODIES: dict[str, Callable[[], nn.Module]] = {
    "mixing": _Mixing,
    "mixing large batches": _MixingLargeBatches,
    "noisy": _Noisy,
    "remembering": _Remembering,
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_that_is_no_function_of_each_record_gives_no_features(folder: Path, kind: str) -> None:
    recipe = recipe_of(folder)
    model = nn.Sequential(nn.Linear(3, 6), BODIES[kind](), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    records = ArrayDataset(features=torch.rand(20, 3), labels=torch.zeros(20, dtype=torch.int64))
    found = trained_on(recipe, model, records)
    assert found.part is model
    assert found.dataset is records


class _Scaling(nn.Linear):
    scale: Any = 1.0

    def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
        return super().forward(x) * self.scale * times


class _Linked(nn.Module):
    """A network whose head is given more than its input."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.body, self.head, self.way = nn.Linear(3, 6).requires_grad_(False), _Scaling(6, 2), way

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        if self.way == "by its weights":
            h = h + self.head.weight.detach().sum(0)
        if self.way == "by an attribute":
            self.head.scale = x.mean(1, keepdim=True)
        found: Tensor = self.head(h, times=3.0) if self.way == "by an option" else self.head(h)
        return found


@pytest.mark.parametrize("way", ["by its weights", "by an attribute", "by an option"])
def test_a_head_that_gets_more_than_features_is_trained_with_its_body(folder: Path, way: str) -> None:
    records = ArrayDataset(features=torch.rand(20, 3), labels=torch.zeros(20, dtype=torch.int64))
    model = _Linked(way)
    assert trained_on(recipe_of(folder), model, records).part is model


def test_features_are_what_the_head_is_given_before_its_own_hooks(folder: Path) -> None:
    records = ArrayDataset(features=torch.rand(20, 3), labels=torch.zeros(20, dtype=torch.int64))
    model = _Linked("")
    model.head.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    found = trained_on(recipe_of(folder), model, records)
    assert found.part is model.head
    assert torch.equal(model.head(found.dataset.features), model(records.features))


class _Keeping(nn.Module):
    """A body that adds to its weights what it sees, in calls as large as those for features."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 64:
            self.bias.data = self.bias.data + x.detach().mean()
        return x + self.bias


def test_a_body_that_writes_what_it_sees_into_its_weights_sees_no_record_beforehand(folder: Path) -> None:
    records = ArrayDataset(features=torch.rand(20, 3), labels=torch.zeros(20, dtype=torch.int64))
    model = nn.Sequential(nn.Linear(3, 6).requires_grad_(False), _Keeping(), nn.Linear(6, 2))
    assert trained_on(recipe_of(folder), model, records).part is model
    assert not model.get_parameter("1.bias").any(), "what made-up records left is removed"


def test_what_follows_the_trained_part_or_is_trained_below_it_gives_no_features(folder: Path) -> None:
    recipe = recipe_of(folder)
    records = ArrayDataset(features=torch.rand(20, 3), labels=torch.zeros(20, dtype=torch.int64))
    followed = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2), nn.Softmax(1))
    followed[0].requires_grad_(False)
    trained_below = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    tied[0].weight = tied[2].weight
    tied[0].bias.requires_grad_(False)
    for model in (followed, trained_below, tied):
        assert trained_on(recipe, model, records).part is model


def test_batch_norm_is_a_fixed_map_below_a_head_and_refused_where_it_would_be_run_in_training(folder: Path) -> None:
    (folder / "mine.py").write_text(NORMED)
    recipe = recipe_of(folder, weights=weights_of(folder))
    before = safetensors.torch.load_file(folder / "x.safetensors")
    assert train(recipe, folder / "run").is_finished
    after = safetensors.torch.load_file(folder / "run" / "model.safetensors")
    assert torch.equal(after["body.1.running_mean"], before["body.1.running_mean"])
    assert torch.equal(after["body.1.running_var"], before["body.1.running_var"])
    with pytest.raises(UnsupportedModel, match=r"body\.1"):
        train(recipe_of(folder, chosen="all", weights=folder / "x.safetensors"), folder / "other")


def test_a_network_that_mixes_records_in_evaluation_mode_is_not_evaluated_on_private_ones(folder: Path) -> None:
    mixing = PLAIN.replace("self.head(self.body(x))", "self.head(self.body(x if self.training else x - x.mean(0)))")
    for code, is_refused in ((PLAIN, False), (mixing, True)):
        (folder / "mine.py").write_text(code)
        run = folder / f"run {is_refused}"
        assert train(recipe_of(folder, chosen="all"), run).is_finished
        asked = Asked(epsilon=1.0, importance=True)
        if is_refused:
            with pytest.raises(UnsupportedModel, match="Nothing was charged"):
                evaluate_privately(run, asked, data=folder / "my.csv")
        else:
            assert evaluate_privately(run, asked, data=folder / "my.csv").figures
        assert len(check_ledger(run).further) == (0 if is_refused else 1)


def test_a_run_of_which_a_part_is_done_is_resumed_with_the_same_body(folder: Path) -> None:
    recipe = recipe_of(folder, training={**recipe_of(folder).training.model_dump(exclude_none=True), "seed": None})
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"checkpoint_every": 1})})
    done = iter([False, True])
    assert not train(recipe, folder / "run", should_stop=lambda: next(done)).is_finished
    half = stored_model(RunFiles(folder=folder / "run"), recipe, torch.device("cpu")).state_dict()
    outcome = train(recipe, folder / "run")
    assert outcome.is_finished
    assert outcome.steps_taken == 4
    whole = safetensors.torch.load_file(folder / "run" / "model.safetensors")
    assert torch.equal(whole["body.0.weight"], half["body.0.weight"])
    assert not torch.equal(whole["head.weight"], half["head.weight"])


@pytest.mark.parametrize("chosen", ["all", "adapters", "head", "body.0.*", "body"])
def test_what_is_named_is_trained_and_nothing_else(folder: Path, chosen: str) -> None:
    recipe = recipe_of(folder, chosen=chosen, weights=weights_of(folder))
    assert recipe.network is not None
    network = own_network(recipe.network, recipe.info)
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    expected = {
        "all": {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias"},
        "adapters": {"body.0.lora_A.weight", "body.0.lora_B.weight", "head.weight", "head.bias"},
        "head": {"head.weight", "head.bias"},
        "body.0.*": {"body.0.weight", "body.0.bias"},
        "body": {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"},
    }[chosen]
    assert set(network.trained) == expected
    assert "Trained: " + network.trained[0] in network.told()[0]
    assert train(recipe, folder / "run").is_finished
    after = safetensors.torch.load_file(folder / "run" / "model.safetensors")
    frozen = [name for name in before if name not in expected]
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert evaluate(folder / "run", device="cpu").measures


def test_a_head_for_other_classes_begins_anew_and_all_else_must_fit(folder: Path) -> None:
    wide = weights_of(folder, "wide")
    recipe = recipe_of(folder, weights=wide)
    assert recipe.network is not None
    found = own_network(recipe.network, recipe.info)
    assert found.fresh == ("head.weight", "head.bias")
    assert "initialised anew: head.weight, head.bias" in found.told()[1]
    with pytest.raises(RecipeError, match=r"of another shape: head.weight \(\[5, 6\] in the file, \[2, 6\]"):
        own_network(recipe_of(folder, weights=wide, chosen="body").network, recipe.info)
    tensors = safetensors.torch.load_file(wide)
    tensors["body.0.scale"] = tensors.pop("body.0.bias")
    safetensors.torch.save_file(tensors, wide)
    with pytest.raises(RecipeError, match=r"missing in the file: body.0.bias; unknown to the network: body.0.scale"):
        own_network(recipe_of(folder, weights=wide).network, recipe.info)


def test_a_network_that_stores_more_than_parameters_and_buffers_is_refused(folder: Path) -> None:
    extra = "    def get_extra_state(self):\n        return torch.zeros(1)\n\ndef build("
    (folder / "mine.py").write_text(PLAIN.replace("def build(", extra))
    with pytest.raises(RecipeError, match="stores _extra_state, which are neither parameters nor buffers"):
        own_network(recipe_of(folder).network, recipe_of(folder).info)


def test_changed_or_strange_weights_are_refused(folder: Path) -> None:
    weights = weights_of(folder)
    recipe = recipe_of(folder, weights=weights)
    assert train(recipe, folder / "run").is_finished
    weights.write_bytes(b"\x80\x02}q\x00.")  # a pickle
    for use in (lambda: train(recipe, folder / "run"), lambda: evaluate(folder / "run", device="cpu")):
        with pytest.raises(RecipeError, match="is not the file that the recipe names"):
            use()
    with pytest.raises(RecipeError, match="is not a safetensors file"):
        own_network(recipe_of(folder, weights=weights).network, recipe.info)
    weights.unlink()
    with pytest.raises(RecipeError, match="no file of weights"):
        evaluate(folder / "run", device="cpu")


def test_the_guarantee_says_that_the_weights_are_assumed_public(folder: Path) -> None:
    outcome = train(recipe_of(folder, weights=weights_of(folder)), folder / "run")
    words = "the pretrained weights, and the code that builds the network, were not made from these records"
    assert words in outcome.promised.assumptions
    assert words in outcome.spent.assumptions
    assert words in (folder / "run" / "ledger.jsonl").read_text()
    assert words in certify(folder / "run").to_dict()["guarantee"]["assumptions"]


def test_settings_that_do_not_fit_together_are_refused(folder: Path) -> None:
    base = {"file": "mine.py", "function": "build", "sha256": "0" * 64}
    for changed, words in (
        ({"weights": "x"}, "go together"),
        ({"adapter_rank": 4}, "adapter_rank"),
    ):
        with pytest.raises(RecipeError, match=words):
            NetworkSettings(**{**base, **changed}).check()  # type: ignore[arg-type]
    last = {**recipe_of(folder).privacy.model_dump(exclude_none=True), "release": "last_iterate"}
    with pytest.raises(RecipeError, match="nothing is proven of one of your own"):
        recipe_of(folder, privacy=last)
    with pytest.raises(RecipeError, match="Set model = 'own_network'"):
        recipe_of(folder, model="mlp_64_64")
    recipe = recipe_of(folder, chosen="tail")
    with pytest.raises(RecipeError, match=r"these names: body\.0\.weight"):
        own_network(recipe.network, recipe.info)
    (folder / "mine.py").write_text(PLAIN.replace("outputs=2", "outputs=4"))
    with pytest.raises(RecipeError, match="Give its last layer 2 outputs"):
        own_network(recipe_of(folder).network, recipe.info)
