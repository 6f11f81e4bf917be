"""``privet train --model file.py:build``: one command from a folder or a table to a private head, and back to use."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from privet.runs.consent import Code
from privet.runs.user_models import build_referenced
from tests.cli.conftest import FEW_STEPS, SCHEMA, Ask

CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, 5), nn.Tanh(), nn.Linear(5, 2))
"""
OF_CONVOLUTIONS = """
from torch import nn

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv1d(1, 5, 3), nn.Linear(5, 2)

    def forward(self, records):
        return self.head(self.body(records[:, None]).flatten(1))

build = Network
"""
NETWORK = ("--model", "mine.py:build", "--weights", "x.safetensors", "--train", "head")
TABLE = ("my.csv", "--target", "income", "--epsilon", "3", "--schema", "schema.toml")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [f"{20 + n % 60},{('north', 'south')[n % 2]},{('low', 'high')[n % 60 > 30]}\n" for n in range(200)]
    (tmp_path / "my.csv").write_text("age,town,income\n" + "".join(lines))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, 3)
    return tmp_path


def prepare(folder: Path, inputs: int) -> None:
    (folder / "mine.py").write_text(CODE.format(inputs=inputs))
    safetensors.torch.save_model(build_referenced(f"{folder / 'mine.py'}:build"), str(folder / "x.safetensors"))


def test_a_head_is_trained_told_used_and_exported_by_the_same_verbs(ask: Ask, own: Path) -> None:
    found = ask("train", *TABLE, *NETWORK, *FEW_STEPS)
    assert found.code == 0, found.err
    assert "Trained: 3.weight, 3.bias (12 numbers). Left as they are: 20 numbers." in " ".join(found.err.split())
    assert "The guarantee assumes: the pretrained weights" in " ".join(found.err.split())
    for words in (
        ("predict", "runs/my", "my.csv", "--device", "cpu"),
        ("evaluate", "runs/my", "--data", "my.csv", "--device", "cpu"),
        ("report", "runs/my"),
        ("certify", "runs/my"),
        ("train", *TABLE, *NETWORK, *FEW_STEPS),
        ("train", "runs/my/recipe.toml", "-o", "runs/my"),
        ("doctor", "runs/my/recipe.toml"),
        ("export", "runs/my", "-o", "served"),
    ):
        answer = ask(*words)
        assert answer.code == 0, (words, answer.err)
    stated = ask("account", "runs/my", "--json")
    assert "pretrained weights" in stated.out
    report = (own / "runs" / "my" / "report.html").read_text()
    assert "pretrained weights" in report
    assert "file = &#34;mine.py&#34;" in report
    assert str(own) not in report


def test_an_exported_network_names_no_folder_of_this_machine(ask: Ask, own: Path) -> None:
    (own / "mine.py").write_text(OF_CONVOLUTIONS)  # which predict.py does not have
    assert ask("train", *TABLE, "--model", "mine.py:build", *FEW_STEPS, "-o", "runs/other").code == 0
    found = ask("export", "runs/other", "-o", "served")
    assert found.code == 0, found.err
    assert (own / "served" / "model.pt2").is_file()
    with zipfile.ZipFile(own / "served" / "model.pt2") as archive:
        held = b"".join(archive.read(name) for name in archive.namelist())
    held += b"".join(path.read_bytes() for path in (own / "served").iterdir())
    assert str(own).encode() not in held


def test_images_are_trained_on_with_a_network_of_ones_own(ask: Ask, own: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 40), ("dog", 200)):
        (own / "pets" / name).mkdir(parents=True)
        for number in range(4):
            image.new("RGB", (4, 4), (shade, number, 9)).save(own / "pets" / name / f"{number}.png")
    prepare(own, 3 * 4 * 4)
    words = ("--epsilon", "3", "--size", "200", "--image-size", "4x4")
    found = ask("train", "pets", *words, *NETWORK, *FEW_STEPS)
    assert found.code == 0, found.err
    assert ask("predict", "runs/pets", "pets", "--device", "cpu").code == 0


def test_a_run_from_elsewhere_runs_no_code_until_it_is_allowed(
    ask: Ask, own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ask("train", *TABLE, *NETWORK, *FEW_STEPS).code == 0
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "other machine"))
    for words in (
        ("predict", "runs/my", "my.csv"),
        ("evaluate", "runs/my", "--data", "my.csv"),
        ("export", "runs/my", "-o", "served"),
        ("train", "runs/my/recipe.toml", "-o", "runs/new"),
        ("doctor", "runs/my/recipe.toml"),
        ("audit", "runs/my/recipe.toml"),
    ):
        refused = ask(*words)
        assert refused.code != 0, words
        assert "It was not run" in " ".join(refused.err.split()), words
    assert not (own / "served").exists()
    assert not (own / "runs" / "new").exists()
    told = ask("allow", "mine.py:build")
    assert told.code == 0
    assert Code.read("mine.py:build").sha256 in told.out
    assert ask("predict", "runs/my", "my.csv", "--device", "cpu").code == 0


def test_a_changed_network_or_other_weights_are_refused(ask: Ask, own: Path) -> None:
    assert ask("train", *TABLE, *NETWORK, *FEW_STEPS).code == 0
    shutil.copy("mine.py", "kept.py")
    (own / "mine.py").write_text(CODE.format(inputs=3) + "\n")
    for words in (("predict", "runs/my", "my.csv"), ("train", "runs/my/recipe.toml", "-o", "runs/my")):
        refused = ask(*words)
        assert refused.code == 2, words
        assert "not the file that the recipe names" in " ".join(refused.err.split())
    shutil.copy("kept.py", "mine.py")
    safetensors.torch.save_file({"a": torch.ones(1)}, "x.safetensors")
    assert "not the file that the recipe names" in " ".join(ask("predict", "runs/my", "my.csv").err.split())


REFUSED = {
    "weights alone": (("--weights", "x.safetensors"), "goes with --model"),
    "choice alone": (("--train", "head"), "goes with --model"),
    "a folder": (("--model", "runs"), "does not name a function"),
    "a module": (("--model", "torch.nn:Identity"), "does not name a function"),
    "no such file": (("--model", "other.py:build"), "There is no file other.py"),
    "a length": (("--model", "mine.py:build", "--length", "8"), "is for texts"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_options_that_do_not_fit_are_refused_before_anything_is_run(ask: Ask, own: Path, fault: str) -> None:
    options, words = REFUSED[fault]
    found = ask("train", *TABLE, *options)
    assert found.code == 2
    assert words in " ".join(found.err.split())
    assert not (own / "runs").exists()
