"""A run folder taken up again: nothing is forgotten, nothing is free, and the plan is never exceeded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from privet.accounting.ledger import Ledger
from privet.errors import CheckpointError, LedgerBusy, LedgerCorrupt, LedgerError, LedgerMismatch
from privet.plan import Plan
from privet.training.session import Session, Step
from privet.training.start import privatize
from tests.training.tools import examples, flat, full_batch, losses_of, network, plain_sgd, run, take_steps, walk

LEDGER, CHECKPOINT = "ledger.jsonl", "checkpoint.safetensors"


def begin(folder: Path, model: nn.Module, plan: Plan | None = None, *, checkpoint_every: int = 5) -> Session:
    return privatize(
        model, plain_sgd(model), examples(), plan or full_batch(25), folder=folder, checkpoint_every=checkpoint_every
    )


def leave_after(folder: Path, steps: int) -> torch.Tensor:
    """Run some steps and leave cleanly; return the weights."""
    model = network()
    with begin(folder, model) as session:
        run(session, model, at_most=steps)
    return flat(model)


def charged(folder: Path) -> int:
    return Ledger.read(folder / LEDGER).charged_rounds


@pytest.mark.parametrize("steps", [0, 1, 9, 10, 11, 25])
def test_a_clean_exit_charges_the_steps_taken_and_gives_the_rest_back(steps: int, tmp_path: Path) -> None:
    leave_after(tmp_path, steps)
    assert charged(tmp_path) == steps


@pytest.mark.parametrize("steps", [1, 10, 24])
def test_a_run_goes_on_where_it_was_left(steps: int, tmp_path: Path) -> None:
    weights = leave_after(tmp_path, steps)
    model = network(seed=9)
    with begin(tmp_path, model) as session:
        assert torch.equal(flat(model), weights)
        first = next(session.steps())
        assert first.index == steps
        walk(first, model)
        first.update()
    assert session.ledger.charged_rounds == steps + 1


def test_a_run_in_pieces_costs_what_it_costs_in_one(tmp_path: Path) -> None:
    plan = full_batch(25)
    taken = 0
    while True:
        model = network()
        with begin(tmp_path, model, plan) as session:
            now = run(session, model, at_most=4)
        taken += now
        if now == 0:
            break
    assert (taken, charged(tmp_path)) == (25, 25)
    assert session.guarantee().epsilon == plan.guarantee().epsilon


def test_a_used_up_plan_gives_its_model_and_no_more_steps(tmp_path: Path) -> None:
    weights = leave_after(tmp_path, 25)
    model = network(seed=9)
    with begin(tmp_path, model) as session:
        assert run(session, model) == 0
    assert torch.equal(flat(model), weights)
    assert charged(tmp_path) == 25


@pytest.mark.parametrize("crash_at", [0, 3, 9, 10, 17])
def test_after_a_crash_the_reserved_rounds_are_spent_and_the_plan_still_holds(
    crash_at: int, tmp_path: Path, go_to_another_machine: Callable[[], None]
) -> None:
    """What a crash leaves behind is what the folder holds at that moment: a copy of it stands in for the crash."""
    model = network()
    crashed = tmp_path / "crashed"
    with begin(tmp_path / "run", model) as session:
        for step in session.steps():
            walk(step, model)
            if step.index == crash_at:
                shutil.copytree(tmp_path / "run", crashed)
            step.update()
    go_to_another_machine()
    reserved = charged(crashed)
    assert reserved == 10 * (crash_at // 10 + 1)
    with begin(crashed, network()) as resumed:
        assert run(resumed, resumed.model) == 25 - reserved
    assert charged(crashed) == 25


def test_what_was_trained_after_the_last_checkpoint_is_lost_but_paid_for(
    tmp_path: Path, go_to_another_machine: Callable[[], None]
) -> None:
    model = network()
    crashed = tmp_path / "crashed"
    with begin(tmp_path / "run", model) as session:
        for step in session.steps():
            walk(step, model)
            step.update()
            if step.index == 4:
                at_checkpoint = flat(model)
            if step.index == 7:
                shutil.copytree(tmp_path / "run", crashed)
    go_to_another_machine()
    resumed = network(seed=9)
    with begin(crashed, resumed) as session:
        assert torch.equal(flat(resumed), at_checkpoint)
        assert next(session.steps()).index == 10


def test_a_resumed_run_draws_fresh_noise(tmp_path: Path, go_to_another_machine: Callable[[], None]) -> None:
    leave_after(tmp_path / "a", 5)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for name in ("a", "b"):
        model = network()
        with begin(tmp_path / name, model) as session:
            run(session, model, at_most=1)
        found.append(flat(model))
        go_to_another_machine()
    assert not torch.equal(*found)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_a_step_that_fails_stays_charged_and_the_run_can_go_on(error: type[BaseException], tmp_path: Path) -> None:
    model = network()

    def body(step: Step) -> None:
        walk(step, model)
        if step.index == 6:
            raise error
        step.update()

    with pytest.raises(error):
        take_steps(begin(tmp_path, model), body)
    view = Ledger.read(tmp_path / LEDGER)
    assert (view.charged_rounds, view.num_voids) == (7, 1)
    reason = "interrupted" if error is KeyboardInterrupt else "step_failed"
    assert f'"{reason}"' in (tmp_path / LEDGER).read_text()
    resumed = network(seed=9)
    with begin(tmp_path, resumed) as session:
        assert torch.equal(flat(resumed), flat(model))
        assert run(session, resumed) == 18
    assert charged(tmp_path) == 25


def test_a_failure_between_two_steps_voids_nothing(tmp_path: Path) -> None:
    model = network()

    def body(step: Step) -> None:
        walk(step, model)
        step.update()
        if step.index == 6:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        take_steps(begin(tmp_path, model), body)
    view = Ledger.read(tmp_path / LEDGER)
    assert (view.charged_rounds, view.num_voids) == (7, 0)


def test_another_plan_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    leave_after(tmp_path, 5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for plan in (full_batch(26), full_batch(25, norm=1.5), full_batch(25, noise_multiplier=1.01)):
        with pytest.raises(LedgerMismatch, match="plan"):
            begin(tmp_path, network(), plan)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_ledger_that_was_rolled_back_is_refused(tmp_path: Path, go_to_another_machine: Callable[[], None]) -> None:
    leave_after(tmp_path, 5)
    old = (tmp_path / LEDGER).read_bytes()
    leave_after(tmp_path, 5)
    (tmp_path / LEDGER).write_bytes(old)
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        begin(tmp_path, network())
    go_to_another_machine()  # where the newest row is not kept, the checkpoint still knows it
    session = begin(tmp_path, network())
    with pytest.raises(CheckpointError, match="rolled back"), session:
        pass
    assert (tmp_path / LEDGER).read_bytes() == old  # a start that is refused writes nothing
    begin(tmp_path, network()).ledger.abandon()  # and holds nothing


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        leave_after(tmp_path / name, 5)
    shutil.copy(tmp_path / "a" / CHECKPOINT, tmp_path / "b" / CHECKPOINT)
    session = begin(tmp_path / "b", network())
    with pytest.raises(CheckpointError, match="another run"), session:
        pass


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path: Path) -> None:
    leave_after(tmp_path, 5)
    (tmp_path / LEDGER).unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        begin(tmp_path, network())
    assert not (tmp_path / LEDGER).exists()


def test_a_previous_checkpoint_without_its_ledger_is_refused_too(tmp_path: Path) -> None:
    leave_after(tmp_path, 12)
    (tmp_path / LEDGER).unlink()
    (tmp_path / CHECKPOINT).unlink()
    with pytest.raises((LedgerError, CheckpointError)), begin(tmp_path, network()):
        pass


def test_a_ledger_without_its_checkpoints_keeps_what_was_spent(tmp_path: Path) -> None:
    leave_after(tmp_path, 12)
    for path in tmp_path.glob(CHECKPOINT + "*"):
        path.unlink()
    model = network()
    with begin(tmp_path, model) as session:
        assert run(session, model) == 13
    assert charged(tmp_path) == 25


def test_a_damaged_newest_checkpoint_costs_training_but_no_privacy(tmp_path: Path) -> None:
    leave_after(tmp_path, 7)
    leave_after(tmp_path, 7)
    (tmp_path / CHECKPOINT).write_bytes(b"damaged")
    model = network()
    with begin(tmp_path, model) as session:
        assert run(session, model) == 11
    assert charged(tmp_path) == 25


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    leave_after(tmp_path, 12)
    text = (tmp_path / LEDGER).read_text()
    (tmp_path / LEDGER).write_text(text.replace('"count":10', '"count":1', 1))
    with pytest.raises(LedgerError):
        begin(tmp_path, network())


def test_a_second_session_on_the_same_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with begin(tmp_path, network()), pytest.raises(LedgerBusy):
        begin(tmp_path, network())
    with begin(tmp_path, network()):
        pass


def test_a_session_that_could_not_be_entered_lets_the_ledger_go(tmp_path: Path) -> None:
    leave_after(tmp_path, 3)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for path in tmp_path.glob(CHECKPOINT + "*"):
        path.write_bytes(b"damaged")
    failed = begin(tmp_path, network())
    with pytest.raises(CheckpointError), failed:
        pass
    (tmp_path / CHECKPOINT).write_bytes(whole)
    model = network()
    with begin(tmp_path, model) as session:
        assert run(session, model) == 22


@pytest.mark.parametrize("kind", ["another model", "another optimizer"])
def test_a_folder_of_another_model_or_optimizer_is_refused_as_such(kind: str, tmp_path: Path) -> None:
    leave_after(tmp_path, 5)
    model = nn.Linear(3, 2) if kind == "another model" else network()
    groups = [{"params": [value]} for value in model.parameters()]
    optimizer = SGD(groups, lr=0.1)
    session = privatize(model, optimizer, examples(), full_batch(25), folder=tmp_path)
    with pytest.raises(CheckpointError), session:
        pass


def test_the_state_of_the_optimizer_survives(tmp_path: Path) -> None:
    def begin_adam(model: nn.Module) -> Session:
        return privatize(model, Adam(model.parameters()), examples(), full_batch(25), folder=tmp_path)

    model = network()
    with begin_adam(model) as session:
        run(session, model, at_most=5)
    first, second = network(), network()
    with begin_adam(first) as session:
        state = session.optimizer.state_dict()["state"]
        assert all(float(values["step"]) == 5 for values in state.values())
    assert not torch.equal(flat(first), flat(second))


@pytest.mark.parametrize("every", [1, 4])
def test_checkpoints_come_as_often_as_asked(every: int, tmp_path: Path) -> None:
    model = network()
    written = []
    with begin(tmp_path, model, checkpoint_every=every) as session:
        last = None
        for step in session.steps():
            path = tmp_path / CHECKPOINT
            now = path.stat().st_ino if path.exists() else None
            if now != last:
                written.append(step.index)
            last = now
            step.accumulate(losses_of(model))
            step.update()
    assert written == list(range(every, 25, every))


def test_a_folder_below_missing_folders_is_made(tmp_path: Path) -> None:
    leave_after(tmp_path / "a" / "b", 1)
    assert charged(tmp_path / "a" / "b") == 1


def test_a_seed_cannot_slip_into_a_run_that_was_begun_without_one(tmp_path: Path) -> None:
    leave_after(tmp_path, 3)
    model = network()
    with pytest.raises(LedgerError, match="begun without a seed"):
        privatize(model, plain_sgd(model), examples(), full_batch(25), folder=tmp_path, seed=1)
    assert leave_after(tmp_path, 2) is not None  # the ledger was let go of, and the run goes on


def test_a_seeded_run_stays_not_private_when_it_goes_on_without_a_seed(tmp_path: Path) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), full_batch(25), folder=tmp_path, seed=1) as session:
        run(session, model, at_most=3)
    with begin(tmp_path, model) as session:
        run(session, model, at_most=2)
    assert str(session.guarantee()).startswith("NOT PRIVATE")
