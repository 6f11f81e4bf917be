"""What verbs say of a run that was stopped or killed."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from privet.runs.ledger_check import check_ledger, lost_steps_text, steps_in_checkpoint
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import train
from tests.cli.conftest import TINY, Ask


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    steps = iter([False, True])
    train(load_recipe("demo", [*TINY, "training.checkpoint_every=1"]), folder, should_stop=lambda: next(steps))
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A run that was stopped after two of its four steps; its name has a space."""
    return Path(shutil.copytree(stopped_once, tmp_path / "a run"))


def test_an_unfinished_run_is_measured_and_said_to_be_unfinished(ask: Ask, stopped: Path) -> None:
    answer = ask("evaluate", stopped)
    assert answer.code == 0, answer.err
    assert "accuracy" in answer.out
    assert "is not finished: its newest checkpoint, with 2 of 4 steps" in answer.err
    assert json.loads(ask("evaluate", stopped, "--json").out)["is_finished"] is False


def test_the_command_that_is_told_resumes_the_run(ask: Ask, stopped: Path) -> None:
    said = ask("evaluate", stopped).err.split("To resume the run: privet ")[1].strip()
    early = (stopped / "checkpoint.safetensors").read_bytes()
    answer = ask(*shlex.split(said), "--quiet")
    assert answer.code == 0, answer.err
    after = ask("evaluate", stopped, "--json")
    assert json.loads(after.out)["is_finished"] is True
    assert "not finished" not in after.err
    # the same ledger beside a model that lacks what was charged since, as after a kill
    (stopped / "checkpoint.safetensors").write_bytes(early)
    check = check_ledger(stopped)
    assert (check.steps_charged, check.steps_kept, check.steps_lost) == (4, 2, 2)
    assert lost_steps_text(check) == "2"
    assert "steps lost      2" in ask("account", stopped).out


@pytest.mark.parametrize("left", ["checkpoint", "status"])
@pytest.mark.parametrize("verb", [["account"], ["account", "total"], ["report"], ["certify"]], ids=" ".join)
def test_a_ledger_that_knows_less_than_its_folder_is_refused_with_code_3_and_no_epsilon(
    ask: Ask, stopped: Path, left: str, verb: list[str]
) -> None:
    if left == "checkpoint":
        (stopped / "status.json").unlink()
    else:
        for path in stopped.glob("checkpoint.safetensors*"):
            path.unlink()
    ledger = stopped / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    answer = ask(*verb, stopped)
    assert answer.code == 3
    assert "rolled back" in " ".join(answer.err.split())
    assert "epsilon" not in answer.out


def test_without_a_checkpoint_there_is_nothing_to_measure(ask: Ask, stopped: Path) -> None:
    for path in stopped.glob("checkpoint.safetensors*"):
        path.unlink()
    answer = ask("evaluate", stopped)
    assert answer.code == 1
    assert "the run is not finished" in answer.err
    assert "privet train" in answer.err


def test_a_run_that_was_stopped_in_order_lost_nothing(ask: Ask, stopped: Path) -> None:
    assert json.loads(ask("account", stopped, "--json").out)["steps_lost"] == 0
    (stopped / "checkpoint.safetensors").unlink()
    assert lost_steps_text(check_ledger(stopped)) == "not known: there is no checkpoint"


def test_a_checkpoint_that_is_none_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    assert steps_in_checkpoint(path) is None
    path.write_bytes(b"\x08" * 64)
    assert steps_in_checkpoint(path) is None
    (tmp_path / "link").symlink_to(path)
    assert steps_in_checkpoint(tmp_path / "link") is None
