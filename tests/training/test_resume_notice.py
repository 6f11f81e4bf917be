"""A resumed run says what was lost, in public numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.training.session import Session
from privet.training.start import privatize
from tests.training.tools import examples, full_batch, network, plain_sgd, shuffle, walk


def run(folder: Path, steps: int) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), full_batch(25), folder=folder, checkpoint_every=5) as session:
        for step in session.steps():
            for batch in step.microbatches():
                step.backward(model(batch[0]).square().sum(1))
            step.update()
            if step.index + 1 == steps:
                break


def test_a_new_run_says_nothing_and_a_resumed_one_names_its_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="privet"):
        run(tmp_path, 7)
        assert not caplog.records
        run(tmp_path, 25)
    assert "from the checkpoint of step 7; 0 steps charged after it are lost, 18 steps are left" in caplog.text


def test_steps_without_a_checkpoint_are_counted_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, 7)
    for path in tmp_path.glob("checkpoint*"):
        path.unlink()
    with caplog.at_level(logging.WARNING, logger="privet"):
        run(tmp_path, 25)
    assert "7 steps were charged, but there is no checkpoint of them" in caplog.text


def rounds_of_four(folder: Path, steps: int) -> Session:
    """Run up to a step of twelve, four to a round, then leave."""
    model = network()
    session = privatize(model, plain_sgd(model), examples(), shuffle(epochs=3, batches=4), folder=folder)
    with session:
        for step in session.steps():
            walk(step, model)
            step.update()
            if step.index + 1 == steps:
                break
    return session


def test_no_more_than_ten_steps_are_charged_ahead_however_long_a_round_is(tmp_path: Path) -> None:
    model = network()
    session = privatize(model, plain_sgd(model), examples(), shuffle(epochs=9, batches=4), folder=tmp_path)
    with session:
        for step in session.steps():
            walk(step, model)
            step.update()
            assert Ledger.read(tmp_path / "ledger.jsonl").charged_rounds * 4 <= step.index + 10


def test_a_run_left_inside_a_round_names_the_step_and_counts_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = rounds_of_four(tmp_path, 6)
    assert first.steps_taken == 6
    with caplog.at_level(logging.WARNING, logger="privet"):
        second = rounds_of_four(tmp_path, 12)
    assert "from the checkpoint of step 6; 2 steps charged after it are lost, 4 steps are left" in caplog.text
    assert second.steps_taken == 10
    assert second.steps_charged == 12


def test_the_former_name_of_a_count_of_steps_still_works_and_names_the_new_one(tmp_path: Path) -> None:
    session = rounds_of_four(tmp_path, 4)
    with pytest.warns(DeprecationWarning, match=r"Session\.steps_done is deprecated .* use Session\.steps_charged"):
        assert session.steps_done == session.steps_charged
