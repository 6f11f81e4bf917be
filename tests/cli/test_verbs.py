from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from privet.accounting.guarantee import Guarantee
from privet.cli.console import exit_code
from privet.cli.progress_line import ProgressLine, progress_for
from privet.errors import (
    BudgetExceeded,
    CheckpointError,
    DataError,
    LedgerBusy,
    LedgerCorrupt,
    LedgerMismatch,
    PrivetError,
    RecipeError,
)
from privet.runs.recipes.recipe_files import load_recipe, packaged_recipes
from privet.training.tracking.progress import Silent, StepUpdate
from tests.accounting.ledgers import done
from tests.cli.conftest import TINY, Ask


def test_a_plan_says_what_it_promises_and_what_more_or_less_privacy_costs(ask: Ask, tiny_recipe: Path) -> None:
    answer = ask("plan", tiny_recipe)
    assert answer.code == 0
    assert answer.err == ""
    for words in ("proven", "adding or removing one", "noise multiplier", "examples per step", "7,850", "MB"):
        assert words in " ".join(answer.out.split())
    assert "approximation, not a bound" in answer.out


def test_a_plan_as_json_holds_the_same_and_its_alternatives_are_ordered(ask: Ask, tiny_recipe: Path) -> None:
    found = json.loads(ask("plan", tiny_recipe, "--json", "--set", "privacy.epsilon=2").out)
    assert Guarantee.from_dict(found["guarantee"]).epsilon <= 2.0
    rows = found["alternatives"]
    assert [row["epsilon"] for row in rows] == [1.0, 2.0, 4.0]
    noises = [row["noise_multiplier"] for row in rows]
    assert noises[0] > noises[1] > noises[2]
    assert found["steps"] == 4
    assert found["parameters"] == 7850
    assert found["memory_bytes"]["model_and_optimizer"] == 7850 * 3 * 4


@pytest.mark.slow
def test_a_plan_compares_kinds_of_noise_at_its_guarantee(ask: Ask) -> None:
    demo = ("plan", "demo", "--compare-noise")
    found = json.loads(ask(*demo, "--json").out)
    rows = {row["noise"]: row for row in found["noise_comparison"]}
    assert [row["bands"] for row in found["band_comparison"]["rows"]][:3] == [1, 2, 4]
    assert rows["Gaussian"]["over_gaussian"] == 1.0
    assert rows["L2-Laplace"]["over_gaussian"] == pytest.approx(1.0, abs=0.01)
    assert rows["block norm"]["over_gaussian"] > 5


def test_a_plan_with_chosen_noise_is_compared_with_half_and_double_its_own_epsilon(ask: Ask, tiny_recipe: Path) -> None:
    changes = ("--set", "privacy.epsilon=", "--set", "privacy.noise.noise_multiplier=1.0")
    found = json.loads(ask("plan", tiny_recipe, "--json", *changes).out)
    assert found["alternatives"][1]["noise_multiplier"] == 1.0
    assert found["alternatives"][0]["epsilon"] == found["guarantee"]["epsilon"] / 2


@pytest.mark.parametrize("change", ["privacy.delta=1.0", "privacy.noise.noise_multiplier=-1", "privcy.delta=1e-5", "x"])
def test_a_wrong_recipe_is_wrong_usage(ask: Ask, tiny_recipe: Path, change: str) -> None:
    answer = ask("plan", tiny_recipe, "--set", change)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ")


def test_training_prints_the_guarantee_before_and_after_and_they_agree(
    ask: Ask, tiny_recipe: Path, tmp_path: Path
) -> None:
    answer = ask("train", tiny_recipe, "-o", tmp_path / "run", "--quiet")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].removeprefix("promised").strip() == lines[1].removeprefix("spent").strip()
    assert "test accuracy" in answer.out
    assert "n = 2,000" in answer.out
    assert "step " not in answer.err


def test_a_plan_over_the_limit_is_refused_with_code_3(ask: Ask, tiny_recipe: Path, tmp_path: Path) -> None:
    answer = ask("train", tiny_recipe, "-o", tmp_path / "run", "--max-epsilon", "0.5")
    assert answer.code == 3
    assert "The plan spends epsilon 3" in answer.err
    assert answer.out == ""
    assert not (tmp_path / "run").exists()


def test_another_plan_for_the_same_folder_is_refused_with_code_3(
    ask: Ask, finished_run: Path, tiny_recipe: Path
) -> None:
    answer = ask("train", tiny_recipe, "-o", finished_run, "--set", "privacy.epsilon=1")
    assert answer.code == 3
    assert "noise.noise_multiplier: " in answer.err


def test_training_needs_a_folder(ask: Ask) -> None:
    assert ask("train", "demo").code == 2


def test_an_impossible_device_is_told(ask: Ask, tiny_recipe: Path, tmp_path: Path) -> None:
    answer = ask("train", tiny_recipe, "-o", tmp_path / "run", "--device", "cuda:99")
    assert answer.code == 2
    assert "cuda:99" in answer.err


def test_missing_and_truncated_data_files_fail_before_anything_is_charged(
    ask: Ask, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "data"))
    wanted = ("--set", "dataset=mnist", "-o", str(tmp_path / "run"))
    assert ask("train", tiny_recipe, *wanted).code == 1
    (raw / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + b"\0" * 100)
    answer = ask("train", tiny_recipe, *wanted)
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_ends_with_code_130_and_says_how_to_go_on(
    ask: Ask, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    class Signalling(Silent):
        def stepped(self, update: StepUpdate) -> None:
            if update.step == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("privet.cli.progress_line.progress_for", lambda stream, *, quiet: Signalling())
    answer = ask("train", tiny_recipe, "-o", tmp_path / "run")
    assert answer.code == 130
    assert "2 of 4" in answer.out
    assert "The same command resumes the run" in answer.err
    monkeypatch.undo()
    assert ask("train", tiny_recipe, "-o", tmp_path / "run").code == 0


def test_evaluating_a_run_gives_what_training_measured(ask: Ask, finished_run: Path) -> None:
    found = json.loads(ask("evaluate", finished_run, "--json").out)
    stored = json.loads((finished_run / "metrics.json").read_text())
    assert found["measures"] == stored["measures"]
    assert "accuracy" in ask("evaluate", finished_run).out


@pytest.mark.parametrize("verb", ["evaluate", "report", "account"])
def test_what_is_not_a_run_is_refused(ask: Ask, tmp_path: Path, verb: str) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        answer = ask(verb, place)
        assert answer.code == 1
        assert answer.err.startswith("error: ")


def test_the_guarantee_of_figures_is_the_library_s(ask: Ask) -> None:
    figures = ("--rate", "0.05", "--steps", "20", "--noise-multiplier", "1.1", "--delta", "1e-5")
    found = json.loads(ask("account", *figures, "--json").out)
    again = json.loads(
        ask("account", *figures[:4], "--epsilon", str(found["guarantee"]["epsilon"]), *figures[6:], "--json").out
    )
    assert abs(again["noise_multiplier"] / 1.1 - 1) < 1e-3
    assert again["guarantee"]["epsilon"] <= found["guarantee"]["epsilon"]
    assert "proven" in ask("account", *figures).out


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--rate", "0.1"),
        ("--rate", "0.1", "--steps", "5", "--delta", "1e-5"),
        ("--rate", "0.1", "--steps", "5", "--delta", "1e-5", "--epsilon", "1", "--noise-multiplier", "1"),
        ("somewhere", "--rate", "0.1"),
        ("--rate", "0.1", "--steps", "5", "--delta", "1e-5", "--epsilon", "1", "--adjacency", "swap"),
    ],
)
def test_accounting_without_the_figures_it_needs_is_wrong_usage(ask: Ask, args: tuple[str, ...]) -> None:
    assert ask("account", *args).code == 2


@pytest.mark.parametrize("args", [("--rate", "1.5"), ("--steps", "0"), ("--delta", "2"), ("--epsilon", "-1")])
def test_impossible_figures_are_refused(ask: Ask, args: tuple[str, str]) -> None:
    figures = {"--rate": "0.1", "--steps": "5", "--delta": "1e-5", "--epsilon": "1"} | {args[0]: args[1]}
    assert ask("account", *[word for pair in figures.items() for word in pair]).code == 2


def test_a_ledger_speaks_for_itself(ask: Ask, finished_run: Path) -> None:
    by_folder = json.loads(ask("account", finished_run, "--json").out)
    by_file = json.loads(ask("account", finished_run / "ledger.jsonl", "--json").out)
    assert by_file.pop("steps_lost") is None  # only the folder's checkpoint knows which steps are in the model
    assert by_folder.pop("steps_lost") == 0
    assert by_folder == by_file
    assert by_folder["agrees_with_plan"]
    assert by_folder["rounds_charged"] == by_folder["rounds_planned"] == 4
    assert "agrees with the charges" in ask("account", finished_run).out


def test_a_ledger_with_a_changed_row_is_refused(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    text = (finished_run / "ledger.jsonl").read_text()
    (tmp_path / "ledger.jsonl").write_text(text.replace('"count":4', '"count":1', 1))
    assert text != (tmp_path / "ledger.jsonl").read_text()
    answer = ask("account", tmp_path / "ledger.jsonl")
    assert answer.code == 3
    assert "ledger" in answer.err


def test_a_ledger_that_charged_more_than_its_plan_is_reported_with_code_3(
    ask: Ask, finished_run: Path, tmp_path: Path
) -> None:
    from privet.accounting.ledger import Ledger
    from privet.runs.ledger_check import check_ledger

    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    check = check_ledger(folder)
    ledger = Ledger.open(folder / "ledger.jsonl", plan_hash=check.plan_hash)
    ledger.reserve(check.plan.round_event, 1)
    ledger.check(done(check.plan.round_event))
    ledger.close()
    answer = ask("account", folder)
    assert answer.code == 3
    assert "MISMATCH" in answer.out
    report = ask("report", folder)
    assert report.code == 3
    assert "does not agree with the plan" in (folder / "report.html").read_text()


@pytest.mark.parametrize("name", ["dp_cnn_small", "demo", "lenet5"])
def test_the_doctor_finds_a_rule_for_every_layer_of_our_models(ask: Ask, name: str) -> None:
    found = json.loads(ask("doctor", name, "--json").out)
    assert found["can_be_trained"]
    assert found["layers"]
    assert all(layer["rule"] in {"linear", "convolution"} for layer in found["layers"])
    assert sum(layer["parameters"] for layer in found["layers"]) == found["parameters"]
    assert ask("doctor", name).code == 0


def test_the_doctor_names_layers_that_mix_examples_and_their_remedy(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    from privet.runs import model_check
    from privet.runs.model_cost import RandomNumbers

    sick = nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    inputs = RandomNumbers(shape=(1, 28, 28))
    found = model_check.examine_model("sick", sick, inputs)
    assert not found.can_be_trained
    monkeypatch.setattr(model_check, "examine", lambda *_, **__: found)
    answer = ask("doctor", "sick")
    assert answer.code == 1
    assert "mixes the examples" in answer.out
    assert "nn.GroupNorm" in answer.out


def test_the_doctor_knows_no_other_names(ask: Ask) -> None:
    answer = ask("doctor", "resnet_9000")
    assert answer.code == 2
    assert "dp_cnn" in answer.err


def test_recipes_are_listed_shown_and_copied(ask: Ask, tmp_path: Path) -> None:
    listed = json.loads(ask("recipes", "ls", "--json").out)
    assert [row["name"] for row in listed] == sorted(packaged_recipes())
    assert all(name in ask("recipes", "ls").out for name in packaged_recipes())
    shown = ask("recipes", "show", "demo").out
    assert shown == packaged_recipes()["demo"]
    target = tmp_path / "mine.toml"
    assert ask("recipes", "copy", "demo", target).code == 0
    assert load_recipe(target) == load_recipe("demo")
    again = ask("recipes", "copy", "demo", target)
    assert again.code == 2
    assert "exists and is not overwritten" in again.err
    assert ask("recipes", "copy", "demo", tmp_path / "no" / "folder.toml").code == 2


def test_a_report_is_written_where_asked(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    found = json.loads(ask("report", finished_run, "-o", target, "--json").out)
    assert found["agrees_with_plan"]
    assert Path(found["report"]) == target
    assert target.read_text().startswith("<!DOCTYPE html>")
    missing = ask("report", finished_run, "-o", tmp_path / "no" / "report.html")
    assert missing.code == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BudgetExceeded, 3),
        (LedgerMismatch, 3),
        (LedgerCorrupt, 3),
        (LedgerBusy, 1),
        (RecipeError, 2),
        (DataError, 1),
        (CheckpointError, 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: type[PrivetError], code: int) -> None:
    assert exit_code(error("told")) == code


def update(step: int, loss: float | None = None, *, may_show_time: bool = True) -> StepUpdate:
    return StepUpdate(
        step=step,
        num_steps=2000,
        epsilon=1.366,
        epsilon_spent=None,
        epsilon_planned=3.0,
        expected_batch_size=256,
        loss=loss,
        may_show_time=may_show_time,
        learning_rate=0.5,
        masked_share=0.0,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def display(*, is_terminal: bool) -> tuple[ProgressLine, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine(stream, is_terminal=is_terminal, clock=clock)
    return line, stream, clock


def test_the_progress_line_reads_as_documented() -> None:
    line, _, clock = display(is_terminal=True)
    clock.now = 50.0
    assert line.line(update(412, 0.614)) == (
        "step 412/2000 \N{MIDDLE DOT} \N{GREEK SMALL LETTER EPSILON} \N{LESS-THAN OR EQUAL TO} 1.37 / 3.00 "
        "\N{MIDDLE DOT} loss 0.61* \N{MIDDLE DOT} 2.1k ex/s \N{MIDDLE DOT} 03:13 left"
    )
    assert "loss" not in line.line(update(412))


def test_a_terminal_is_redrawn_at_most_four_times_a_second() -> None:
    line, stream, clock = display(is_terminal=True)
    for step in range(1, 1001):
        clock.now += 0.01
        line.stepped(update(step))
    assert 30 <= stream.getvalue().count("\r") <= 41
    assert "\n" not in stream.getvalue()
    line.ended()
    assert stream.getvalue().endswith("\n")


def test_a_log_gets_a_line_every_thirty_seconds_and_one_at_the_end() -> None:
    line, stream, clock = display(is_terminal=False)
    for step in range(1, 101):
        clock.now += 1.0
        line.stepped(update(step))
    line.ended()
    assert len(stream.getvalue().splitlines()) == 4
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize("num_steps", [1, 6, 20, 33, 2000])
def test_a_log_of_private_data_has_the_same_lines_however_long_steps_take(num_steps: int) -> None:
    written = []
    for seconds in (0.001, 100.0):
        line, stream, clock = display(is_terminal=False)
        for step in range(1, num_steps + 1):
            clock.now += seconds * (1 + step % 7)
            line.stepped(replace(update(step, may_show_time=False), num_steps=num_steps))
        line.ended()
        written.append(stream.getvalue())
    assert written[0] == written[1]
    assert 1 <= len(written[0].splitlines()) <= 22
    assert "left" not in written[0]
    assert "ex/s" not in written[0]


def test_a_shorter_line_wipes_the_longer_one_before_it() -> None:
    line, stream, clock = display(is_terminal=True)
    for loss in (0.5, None):
        clock.now += 1
        line.stepped(update(100, loss))
    first, second = stream.getvalue().split("\r")[1:]
    assert len(second) >= len(first)


def test_the_star_of_a_loss_is_explained_once_at_the_end() -> None:
    for loss, count in ((0.5, 1), (None, 0)):
        line, stream, _ = display(is_terminal=True)
        line.stepped(update(100, loss))
        line.ended()
        assert stream.getvalue().count("not covered by the guarantee") == count


def test_quiet_shows_nothing() -> None:
    assert isinstance(progress_for(sys.stderr, quiet=True), Silent)


def test_a_delta_that_is_too_large_is_warned_of_and_printed_nowhere_else(ask: Ask) -> None:
    found = ask("plan", "demo", "--set", "privacy.delta=0.01", "--json")
    assert found.code == 0
    assert "warning: delta 0.01 is not below" in found.err
    assert "warning" not in found.out


@pytest.mark.parametrize(("epsilon", "is_warned_of"), [("100000", True), ("25", True), ("8", False)])
def test_a_plan_warns_of_an_epsilon_that_promises_next_to_nothing(ask: Ask, epsilon: str, is_warned_of: bool) -> None:
    found = ask("plan", "demo", "--set", f"privacy.epsilon={epsilon}", "--json")
    assert found.code == 0
    assert ("promises next to nothing" in " ".join(found.err.split())) is is_warned_of
    assert "warning" not in found.out


def test_the_last_step_is_shown_once() -> None:
    line, stream, _ = display(is_terminal=False)
    for step in range(1, 2001):
        line.stepped(update(step, may_show_time=False))
    line.ended()
    assert stream.getvalue().count("step 2000/2000") == 1


def test_training_warns_of_an_epsilon_that_promises_next_to_nothing(ask: Ask, tmp_path: Path) -> None:
    overrides = [part for override in [*TINY, "privacy.epsilon=50"] for part in ("--set", override)]
    answer = ask("train", "demo", *overrides, "-o", tmp_path / "run", "--quiet")
    assert answer.code == 0, answer.err
    assert "epsilon 50 promises next to nothing" in " ".join(answer.err.split())
