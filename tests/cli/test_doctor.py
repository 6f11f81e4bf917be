"""What the doctor says about networks of ours and of others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from privet.errors import UnsupportedModel
from privet.runs.model_cost import losses_for
from privet.runs.run_files import RunFiles
from tests.cli.conftest import Ask

CODE = """
import torch
from torch import nn

def image():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 5)
    )

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        return {"logits": self.head(self.table(ids))}

class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, inputs):
        found = self.head(inputs)
        return found - found.mean(0)

class Detached(Centred):
    def forward(self, inputs):
        return self.head(inputs) * inputs.detach().mean()

class Counter(Centred):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return self.head(inputs)

class Idle(Centred):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(inputs)

def batch_norm():
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))

def scalar():
    return nn.Sequential(nn.Linear(6, 3), nn.Flatten(0))

class Written(Centred):
    def forward(self, inputs):
        inputs = inputs.clone()
        inputs[:, :3] = self.head.bias
        return self.head(inputs)

class Paired(Tagger):
    def forward(self, ids, mask):
        return {"loss": self.table.weight.sum(), "logits": self.head(self.table(ids)) * mask.unsqueeze(2)}

def batch():
    return {"ids": torch.randint(0, 20, (4, 5)), "mask": torch.ones(4, 5)}

def uneven():
    return {"ids": torch.randint(0, 20, (4, 5)), "mask": torch.ones(3, 5)}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_a_network_of_ones_own_is_examined_layer_by_layer(ask: Ask, file: Path) -> None:
    answer = ask("doctor", f"{file}:image", "--input-shape", "3,8,8", "--batch-size", "5", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    conv, norm, linear = found["layers"]
    assert [layer["type"] for layer in found["layers"]] == ["Conv2d", "GroupNorm", "Linear"]
    assert linear["strategy"] == "rank one"
    assert linear["seconds"] > 0
    # both factors of the weight's gradients, and the pooled gradients of the bias
    assert linear["kept_bytes"] == 5 * 4 * (4 * 36 + 5) + 5 * 4 * 5
    assert norm["strategy"] == "written out"
    assert norm["kept_bytes"] == 5 * 4 * 8
    assert conv["strategy"] in {each["strategy"] for each in conv["tried"]}
    assert len(conv["tried"]) > 1
    cost = found["cost"]
    assert cost["batch_size"] == 5
    assert cost["time_ratio"] == pytest.approx(cost["private_seconds"] / cost["plain_seconds"])
    assert cost["predicted_time_ratio"] > 0
    assert cost["predicted_memory_ratio"] >= 1


def test_token_ids_are_drawn_for_networks_that_look_them_up(ask: Ask, file: Path) -> None:
    answer = ask("doctor", f"{file}:Tagger", "--token-shape", "7", "--vocabulary", "20")
    assert answer.code == 0
    assert "same row" in answer.out or "row sums" in answer.out
    assert "can be trained privately" in answer.out
    assert "times as long" in answer.out
    too_large = ask("doctor", f"{file}:Tagger", "--token-shape", "7", "--vocabulary", "2000")
    assert too_large.code == 1
    assert "index out of range" in too_large.out


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_shape_that_the_network_does_not_take_is_told_by_the_name_of_its_option(
    ask: Ask, file: Path, form: tuple[str, ...]
) -> None:
    answer = ask("doctor", f"{file}:Centred", "--input-shape", "7", *form)
    assert answer.code == 1
    words = " ".join(answer.out.split())
    assert "The network fails on random examples (RuntimeError: " in words
    assert "Check --input-shape" in words
    assert "loss function" not in words
    assert "Pass a batch" not in words


def test_the_run_of_a_loop_of_ones_own_has_no_recipe_to_look_for(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    shutil.copy(finished_run / "ledger.jsonl", tmp_path / "own")
    assert RunFiles(folder=tmp_path / "own").is_own_loop
    answer = ask("doctor", tmp_path / "own")
    assert answer.code == 2
    words = " ".join(answer.err.split())
    assert "has no recipe" in words
    assert "recipe.toml" not in words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Centred", "mixes the examples"),
        ("Detached", "The model (Detached), between its modules, mixes"),
        ("Counter", "The attribute 'calls' of module '' (Counter)"),
        ("Idle", "Freeze them"),
        ("scalar", "not have one row"),
        ("batch_norm", "GroupNorm"),
    ],
)
def test_what_a_session_would_refuse_is_said_with_its_remedy(ask: Ask, file: Path, name: str, words: str) -> None:
    answer = ask("doctor", f"{file}:{name}", "--input-shape", "6")
    assert answer.code == 1
    assert words in answer.out
    assert "cannot be trained privately in its present form" in answer.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "either --input-shape or --token-shape"),
        (("--input-shape", "3", "--token-shape", "3"), "either --input-shape or --token-shape"),
        (("--token-shape", "3"), "needs --vocabulary"),
        (("--input-shape", "3", "--vocabulary", "4"), "--vocabulary needs --token-shape"),
        (("--input-shape", "3;4"), "not a shape"),
        (("--input-shape", "3", "--set", "model=x"), "--set changes recipes"),
    ],
    ids=["none", "both", "no_vocabulary", "idle_vocabulary", "bad_shape", "set"],
)
def test_options_that_do_not_go_together_are_refused(
    ask: Ask, file: Path, args: tuple[str, ...], words: str
) -> None:  # fmt: skip
    answer = ask("doctor", f"{file}:image", *args)
    assert answer.code == 2
    assert words in answer.err


def test_a_network_that_no_rule_covers_can_be_trained_and_is_said_to_be(ask: Ask, file: Path) -> None:
    answer = ask("doctor", f"{file}:Written", "--input-shape", "6", "--batch-size", "5", "--json")
    assert answer.code == 0
    assert {layer["rule"] for layer in json.loads(answer.out)["layers"]} == {"a backward pass for each example"}


def test_an_example_batch_is_given_to_the_network_by_name(ask: Ask, file: Path) -> None:
    answer = ask("doctor", f"{file}:Paired", "--batch", f"{file}:batch", "--batch-size", "5", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["can_be_trained"]


def test_random_numbers_have_the_type_that_is_asked_for(ask: Ask, file: Path) -> None:
    answer = ask("doctor", f"{file}:image", "--input-shape", "3,8,8", "--dtype", "float64")
    assert answer.code == 1  # the network is of single precision
    assert "The network fails on random examples" in answer.out


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--batch", "FILE:uneven"), 2, "each with one row per example"),
        (("--batch", "FILE:missing"), 2, "has no function 'missing'"),
        (("--batch", "FILE:batch", "--input-shape", "3"), 2, "either --batch or shapes"),
        (("--batch", "nothing"), 2, "--batch takes"),
        (("--token-shape", "3", "--vocabulary", "4", "--dtype", "float64"), 2, "--dtype needs --input-shape"),
    ],
    ids=["uneven", "missing", "both", "no_reference", "whole_numbers"],
)
def test_a_batch_that_is_none_is_refused(
    ask: Ask, file: Path, args: tuple[str, ...], code: int, words: str
) -> None:  # fmt: skip
    answer = ask("doctor", f"{file}:Paired", *(arg.replace("FILE", str(file)) for arg in args))
    assert answer.code == code
    assert words in answer.err + answer.out


def test_shapes_are_not_taken_for_networks_that_have_their_own(ask: Ask) -> None:
    assert ask("doctor", "mlp_64_64", "--input-shape", "3").code == 2


def test_the_help_says_that_code_is_run(ask: Ask) -> None:
    assert "IMPORTED AND RUN" in ask("doctor", "--help").out


def test_an_output_without_a_tensor_has_no_losses() -> None:
    with pytest.raises(UnsupportedModel, match="not have one row"):
        losses_for("nothing", 3)
