"""A rank of a sharded model that stops between two meetings: the others wait for its parameters, and learn why."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from torch import Tensor

from tests.training.distributed.sharded_cases import Case, a_mesh, a_plan, built, class_losses, started
from tests.training.distributed.tools import launch

_AT = 3  # the step in which it stops; experiments come before steps 0, 1, 2 and 4


def stopping(rank: int, size: int, how: str) -> str:
    case = Case(plan=a_plan(rate=0.9, steps=5))
    model = built(case, a_mesh(size))
    plain, now = class_losses(model), 0

    def losses(inputs: Tensor, targets: Tensor) -> Tensor:
        if now == _AT and how == "everywhere":
            raise RuntimeError("shapes of age 41")
        if now == _AT and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "hangs":
                time.sleep(5)
            if how == "raises":
                raise ValueError("age 41")
        return plain(inputs, targets)

    with started(case, model) as session:
        for step in session.steps():
            now = step.index
            step.accumulate(losses)
            step.update()
    return "trained"


def test_a_rank_that_raises_tells_the_others_why_without_its_words() -> None:
    first, second, third = launch(stopping, 3, "raises", seconds=20.0)
    words = "RankError: Rank 1 of 3 stopped, and so do all: it raised ValueError, and its own output says why."
    assert first["error"] == third["error"] == words
    assert second["error"] == "ValueError: age 41"


def test_an_error_of_torch_on_all_ranks_is_told_as_one_process_would() -> None:
    assert {each["error"] for each in launch(stopping, 2, "everywhere", seconds=20.0)} == {
        "RuntimeError: shapes of age 41"
    }


@pytest.mark.parametrize(("how", "seconds"), [("killed", 20.0), ("hangs", 2.0)])
def test_a_rank_that_is_gone_stops_the_others_with_the_same_words(how: str, seconds: float) -> None:
    found: list[dict[str, Any]] = launch(stopping, 3, how, seconds=seconds)
    assert found[0]["error"] == found[2]["error"]
    assert found[0]["error"].startswith("RankError: A rank of this run died or did not answer in time")
