"""``privet train`` in several processes: one run, one folder, one voice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.cli.processes import run_in_processes, without_option
from privet.runs.ledger_check import check_ledger

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--set", "privacy.sampling.epochs=1", "--set", "training.physical_batch_size=256", "--device", "cpu"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks") / "run"


def test_two_processes_make_one_run_that_one_process_finds_finished(folder: Path) -> None:
    words = ("train", "demo", "-o", str(folder), *SHORT, "--evaluate-epsilon", "1")
    found = command("-m", "privet", *words, "--processes", "2")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("promised") == found.stdout.count("spent") == found.stdout.count("in all") == 1
    assert found.stdout.count("Training and evaluations together") == 1, "rank 0 evaluates, once"
    ledger = Ledger.read(folder / "ledger.jsonl")
    assert ledger.charged_rounds == 5
    assert len(check_ledger(folder).further) == 1
    assert "2 ranks (cpu) trained together" in str(ledger.assumptions)
    again = command("-m", "privet", *words)
    assert "no step was added" in again.stderr


def test_a_plan_above_the_allowed_epsilon_is_refused_by_all_processes(tmp_path: Path) -> None:
    words = ("train", "demo", "-o", str(tmp_path / "run"), "--processes", "2", "--max-epsilon", "0.1", *SHORT)
    found = command("-m", "privet", *words)
    assert found.returncode == 3, found.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ranks_without_privacy_train_at_the_rate_that_the_first_one_found(tmp_path: Path) -> None:
    words = ("train", "demo", "-o", str(tmp_path / "run"), "--processes", "2", "--without-privacy", *SHORT)
    found = command("-m", "privet", *words)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("the best of a few on a tenth") == 1


def test_a_mistake_in_the_recipe_is_told_once_before_processes_are_started() -> None:
    found = command("-m", "privet", "train", "nobody", "-o", "nowhere", "--processes", "2")
    assert found.returncode == 2
    assert found.stderr.count("There is no recipe 'nobody'") == 1


def test_a_request_to_stop_is_passed_on_to_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = tmp_path / "waiting"
    waiting.write_text(f"#!/bin/sh\ntrap 'exit 130' TERM\ntouch {tmp_path}/began-$RANK\nsleep 60 & wait\n")
    waiting.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(waiting))

    def stop() -> None:
        while len(list(tmp_path.glob("began-*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert run_in_processes(["train"], 2) == 130


def test_the_example_trains_under_torchrun() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    os.environ["STEPS"] = "2"
    try:
        found = command(*launcher, str(ROOT / "examples" / "several_ranks.py"))
    finally:
        del os.environ["STEPS"]
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == lines[1]
    assert "2 ranks (cpu) trained together" in lines[2]


def test_an_option_and_its_value_are_left_out_of_a_command_line() -> None:
    words = ["train", "demo", "--processes", "2", "-q", "--processes=3", "-o", "x"]
    assert without_option(words, "--processes") == ["train", "demo", "-q", "-o", "x"]
