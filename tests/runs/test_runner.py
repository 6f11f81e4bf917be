from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger
from privet.errors import (
    BudgetExceeded,
    CheckpointError,
    LedgerBusy,
    LedgerMismatch,
    LedgerWriteError,
    PrivetError,
    RecipeError,
)
from privet.runs.ledger_check import check_ledger
from privet.runs.measures import CurvePoint
from privet.runs.recipes.recipe import Recipe
from privet.runs.runner import evaluate, train
from privet.training.tracking.progress import Silent, StepUpdate, epsilon_after

MakeRecipe = Callable[..., Recipe]
SOURCE = Path(__file__).resolve().parents[2] / "src"


class Told:
    """Remembers what a run tells."""

    def __init__(self) -> None:
        self.updates: list[StepUpdate] = []
        self.points: list[CurvePoint] = []
        self.began_at = -1

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        self.began_at = step

    def stepped(self, update: StepUpdate) -> None:
        self.updates.append(update)

    def evaluated(self, point: CurvePoint) -> None:
        self.points.append(point)

    def ended(self) -> None:
        pass


class StopAfter:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def test_views_that_workers_make_train_like_others(
    tiny: MakeRecipe, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are free to change when a run is resumed: they change neither the model's data nor its guarantee."""
    monkeypatch.syspath_prepend(str(SOURCE))
    views = ("model=dp_cnn_small", "training.augmentation={num_views=2}", "training.physical_batch_size=16")
    stopped = train(tiny(*views, "training.workers=1"), run_folder, should_stop=StopAfter(2))
    assert stopped.steps_done == 2
    finished = train(tiny(*views), run_folder)
    assert finished.is_finished
    assert finished.steps_taken == 6


def test_a_finished_run_spends_exactly_what_was_promised_and_leaves_everything_in_its_folder(
    tiny: MakeRecipe, run_folder: Path
) -> None:
    told = Told()
    promises: list[Guarantee] = []
    outcome = train(tiny(), run_folder, progress=told, announce=promises.append)
    assert outcome.is_finished
    assert not outcome.was_resumed
    assert str(outcome.spent) == str(outcome.promised) == str(promises[0])
    assert outcome.spent.epsilon == outcome.promised.epsilon
    assert outcome.spent.epsilon <= 3.0
    assert [update.step for update in told.updates] == [1, 2, 3, 4, 5, 6]
    assert [point.step for point in told.points] == [2, 4, 6]
    assert told.updates[-1].epsilon == outcome.promised.epsilon
    names = {entry.name for entry in run_folder.iterdir()}
    assert names >= {
        "recipe.toml", "plan.json", "ledger.jsonl", "checkpoint.safetensors", "unprotected.jsonl", "model.safetensors",
        "env.json", "metrics.json", "status.json",
    }  # fmt: skip
    assert not [name for name in names if name.endswith(".new")]
    assert json.loads((run_folder / "status.json").read_text())["state"] == "finished"


def test_the_saved_model_is_the_one_that_was_measured(tiny: MakeRecipe, run_folder: Path) -> None:
    outcome = train(tiny(), run_folder)
    again = evaluate(run_folder, device="cpu")
    assert outcome.metrics is not None
    assert again.measures == outcome.metrics.measures
    assert again.measures[0].num_examples == 2000
    assert again.curve == outcome.metrics.curve
    assert len(load_file(run_folder / "model.safetensors")) == 2


def test_an_unfinished_run_is_measured_by_its_checkpoint(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(2))
    assert not (run_folder / "model.safetensors").exists()
    assert evaluate(run_folder, device="cpu").measures[0].name == "accuracy"


def test_a_stopped_run_pays_for_its_steps_only_and_ends_at_the_planned_cost_when_resumed(
    tiny: MakeRecipe, run_folder: Path
) -> None:
    first = train(tiny(), run_folder, should_stop=StopAfter(2))
    assert not first.is_finished
    assert first.steps_done == 2
    assert first.metrics is None
    assert first.spent.epsilon < first.promised.epsilon
    told = Told()
    second = train(tiny(), run_folder, progress=told)
    assert second.was_resumed
    assert told.began_at == 2
    assert [update.step for update in told.updates] == [3, 4, 5, 6]
    assert str(second.spent) == str(second.promised)
    assert second.metrics is not None
    assert [point.step for point in second.metrics.curve] == [2, 4, 6]
    assert len(json.loads((run_folder / "env.json").read_text())["processes"]) == 2
    steps = [json.loads(line)["step"] for line in (run_folder / "unprotected.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4, 5]


def test_running_a_finished_run_again_runs_nothing_and_charges_nothing(tiny: MakeRecipe, run_folder: Path) -> None:
    first = train(tiny(), run_folder)
    told = Told()
    second = train(tiny(), run_folder, progress=told)
    assert told.updates == []
    assert (second.is_finished, second.was_resumed) == (True, True)
    assert (second.steps_done, second.steps_taken) == (first.steps_done, first.steps_taken)
    assert str(second.spent) == str(first.spent)
    assert second.metrics == first.metrics


def test_running_a_finished_run_again_leaves_its_folder_as_it_was(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder)
    before = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    train(tiny(), run_folder)
    assert {path.name: path.read_bytes() for path in run_folder.iterdir()} == before


def test_a_run_killed_before_its_model_was_written_gets_it_when_run_again(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder)
    model = (run_folder / "model.safetensors").read_bytes()
    (run_folder / "model.safetensors").unlink()
    assert train(tiny(), run_folder).is_finished
    assert (run_folder / "model.safetensors").read_bytes() == model


def test_an_interrupt_inside_a_step_gives_the_step_up_and_can_be_resumed(tiny: MakeRecipe, run_folder: Path) -> None:
    class Interrupting(Silent):
        def stepped(self, update: StepUpdate) -> None:
            if update.step == 3:
                raise KeyboardInterrupt

    outcome = train(tiny(), run_folder, progress=Interrupting())
    assert not outcome.is_finished
    assert json.loads((run_folder / "status.json").read_text())["state"] == "interrupted"
    assert train(tiny(), run_folder).is_finished


def test_a_plan_over_the_limit_is_refused_before_anything_is_written(tiny: MakeRecipe, run_folder: Path) -> None:
    with pytest.raises(BudgetExceeded, match="Nothing was run"):
        train(tiny(), run_folder, max_epsilon=2.0)
    assert not run_folder.exists()
    assert train(tiny(), run_folder, max_epsilon=3.0).is_finished


def test_another_plan_is_refused_with_the_difference_and_leaves_the_run_as_it_was(
    tiny: MakeRecipe, run_folder: Path
) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    before = {entry.name: entry.read_bytes() for entry in run_folder.iterdir()}
    with pytest.raises(LedgerMismatch) as caught:
        train(tiny("privacy.epsilon=2.0", "privacy.clipping.norm=0.5"), run_folder)
    assert "clipping.norm: 0.1 -> 0.5" in str(caught.value)
    assert "noise.noise_multiplier: " in str(caught.value)
    assert {entry.name: entry.read_bytes() for entry in run_folder.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("training.optimizer.learning_rate=0.25", "training.optimizer.learning_rate: 0.5 -> 0.25"),
        ("normalisation=standardized", "normalisation: (absent) -> 'standardized'"),
        ("training.seed=1", "training.seed: (absent) -> 1"),
    ],
)
def test_another_recipe_with_the_same_plan_is_refused_too(
    tiny: MakeRecipe, run_folder: Path, change: str, told: str
) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    with pytest.raises(RecipeError) as caught:
        train(tiny(change), run_folder)
    assert told in str(caught.value)


def test_what_cannot_change_the_result_may_change_on_resume(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    changes = ("training.physical_batch_size=7", "training.checkpoint_every=3", "training.evaluate_every=", "name=x")
    assert train(tiny(*changes), run_folder).is_finished


def test_a_second_process_is_refused_while_the_first_holds_the_run(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    before = (run_folder / "status.json").read_bytes()
    check = check_ledger(run_folder)
    with Ledger.open(run_folder / "ledger.jsonl", plan_hash=check.plan_hash), pytest.raises(LedgerBusy):
        train(tiny(), run_folder)
    assert (run_folder / "status.json").read_bytes() == before


def test_private_data_leave_no_exact_value_of_them_in_the_folder(tiny: MakeRecipe, run_folder: Path) -> None:
    told = Told()
    outcome = train(tiny("data_is_public=false", "training.evaluate_every="), run_folder, progress=told)
    assert outcome.metrics is None
    assert {update.loss for update in told.updates} == {None}
    assert not (run_folder / "unprotected.jsonl").exists()
    assert not (run_folder / "metrics.json").exists()


def test_values_of_private_data_are_kept_only_when_asked_for(tiny: MakeRecipe, run_folder: Path) -> None:
    told = Told()
    outcome = train(
        tiny("data_is_public=false", "training.evaluate_every="), run_folder, progress=told, unprotected=True
    )
    assert outcome.metrics is not None
    assert all(update.loss is not None for update in told.updates)
    assert (run_folder / "unprotected.jsonl").stat().st_mode & 0o077 == 0


def test_a_seeded_run_repeats_itself_and_says_that_it_is_not_private(tiny: MakeRecipe, tmp_path: Path) -> None:
    outcomes = [train(tiny("training.seed=3"), tmp_path / name) for name in ("a", "b")]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("a", "b")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert outcomes[0].spent.not_private_because
    assert check_ledger(tmp_path / "a").spent.not_private_because


def test_an_unseeded_run_never_repeats_itself(tiny: MakeRecipe, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tiny(), tmp_path / name)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("a", "b")]
    assert not any(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_environment_names_no_machine_person_or_place(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    for name in ("env.json", "plan.json", "recipe.toml", "status.json", "metrics.json"):
        if (run_folder / name).exists():
            text = (run_folder / name).read_text()
            assert str(run_folder.parent) not in text
            assert socket.gethostname() not in text
            assert str(Path.home()) + "/" not in text


@pytest.mark.data
def test_a_regression_is_trained_and_measured_by_its_squared_error(tiny: MakeRecipe, run_folder: Path) -> None:
    outcome = train(tiny("dataset=wine_red", "training.evaluate_every=3"), run_folder)
    assert outcome.metrics is not None
    assert [row.name for row in outcome.metrics.measures] == ["squared error"]


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_every_optimizer_of_a_recipe_trains(tiny: MakeRecipe, run_folder: Path, kind: str) -> None:
    settings = f"training.optimizer={{kind='{kind}', learning_rate=0.01}}"
    assert train(tiny(settings), run_folder, should_stop=StopAfter(1)).steps_done == 1


def test_a_folder_with_other_things_in_it_is_left_alone(tiny: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CheckpointError, match="not a run's"):
        train(tiny(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tiny: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(PrivetError):
        train(tiny(), tmp_path / "run")


def test_a_full_disk_at_the_start_is_told_and_charges_nothing(
    tiny: MakeRecipe, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            train(tiny(), run_folder)
    assert not (run_folder / "ledger.jsonl").exists()
    assert train(tiny(), run_folder).is_finished


def test_a_disk_that_fills_up_during_a_run_loses_nothing_and_the_run_can_be_resumed(
    tiny: MakeRecipe, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Ledger.reserve
    calls = []

    def failing(self: Ledger, event: object, count: int = 1) -> None:
        calls.append(count)
        if len(calls) > 1:
            raise LedgerWriteError("No space left on device")
        written(self, event, min(count, 2))  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "reserve", failing)
        with pytest.raises(LedgerWriteError):
            train(tiny(), run_folder)
    assert json.loads((run_folder / "status.json").read_text())["state"] == "failed"
    assert check_ledger(run_folder).rounds_charged == 2
    outcome = train(tiny(), run_folder)
    assert outcome.is_finished
    assert str(outcome.spent) == str(outcome.promised)


@pytest.mark.parametrize("name", ["recipe.toml", "plan.json"])
def test_a_link_in_a_run_folder_is_refused(tiny: MakeRecipe, run_folder: Path, tmp_path: Path, name: str) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    (run_folder / name).rename(tmp_path / name)
    (run_folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match="is a link"):
        train(tiny(), run_folder)


@pytest.mark.parametrize("damage", ["{", "[]", '{"plan": {}}', '{"plan": 1, "plan": 2}', '{"hash": NaN}', "\udcff"])
def test_a_damaged_plan_file_is_refused(tiny: MakeRecipe, run_folder: Path, damage: str) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    (run_folder / "plan.json").write_bytes(damage.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError):
        train(tiny(), run_folder)


def test_a_plan_file_with_less_noise_than_was_planned_is_refused(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    stored = json.loads((run_folder / "plan.json").read_text())
    stored["plan"]["noise"]["noise_multiplier"] /= 2
    (run_folder / "plan.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="changed after it was written"):
        train(tiny(), run_folder)


def test_half_a_line_of_a_killed_process_does_not_spoil_the_lines_after_it(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(2))
    with (run_folder / "unprotected.jsonl").open("a") as file:
        file.write('{"step": 2, "mean')
    train(tiny(), run_folder)
    rows = [json.loads(line) for line in (run_folder / "unprotected.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]


def test_a_run_without_a_model_cannot_be_measured(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder, should_stop=StopAfter(1))
    for name in ("checkpoint.safetensors", "checkpoint.safetensors.1"):
        (run_folder / name).unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="holds no model yet"):
        evaluate(run_folder, device="cpu")


def test_a_damaged_model_file_is_refused(tiny: MakeRecipe, run_folder: Path) -> None:
    train(tiny(), run_folder)
    (run_folder / "model.safetensors").write_bytes(b"\x10" * 40)
    with pytest.raises(CheckpointError, match="cannot be read"):
        evaluate(run_folder, device="cpu")


def test_the_epsilon_shown_is_never_below_the_one_spent() -> None:
    table = [(0, 0.0), (2, 0.5), (10, 1.0)]
    assert [epsilon_after(table, rounds) for rounds in (0, 1, 2, 3, 10, 11)] == [0.0, 0.5, 0.5, 1.0, 1.0, 1.0]


def test_a_termination_signal_ends_the_run_after_the_step_with_code_130(tiny: MakeRecipe, run_folder: Path) -> None:
    code = "import sys; from privet.cli.main import main; sys.argv[0] = 'privet'; main()"
    recipe = tiny("privacy.sampling.steps=100000", "training.evaluate_every=", "privacy.sampling.batch_size=2")
    path = run_folder.parent / "recipe.toml"
    path.write_text(recipe.to_toml())
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", str(path), "-o", str(run_folder)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (run_folder / "unprotected.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "promised" in out
    assert "spent" in out
    assert "The same command resumes the run" in err
    check = check_ledger(run_folder)
    assert check.mismatch is None
    assert 0 < check.rounds_charged < 100000
    assert check.num_voids == 0
