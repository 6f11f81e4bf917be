"""A resumed run says what was lost, in public numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from privet.training.session import privatize
from tests.training.tools import examples, full_batch, network, plain_sgd


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
