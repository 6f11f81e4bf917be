"""A rank of a sharded model that stops between two meetings: the others wait for its parameters, and learn why."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from privet.accounting.ledger import Ledger
from privet.training.folder import RunFolder
from tests.training.distributed.sharded_cases import Case, a_mesh, a_plan, built, class_losses, started
from tests.training.distributed.tools import launch, results

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


# ---------------------------------------------------------------------------------------------------------- checkpoints

_STEPS = 6
_PLACES = {
    "before its part of the sum": (1, "add", False),
    "before its part of a checkpoint": (1, "write_shard", False),
    "after its part of a checkpoint": (1, "write_shard", True),
    "before the index": (0, "write_index", False),
    "after the index": (0, "write_index", True),
}


def kept(rank: int, size: int, folder: str, place: str) -> list[int]:
    """Train in a folder, and end a rank abruptly in the third step; without a place to the end."""
    from privet.gradients.sharding.scattering import ScatteredSum
    from privet.training.distributed import shards

    now = 0
    victim, name, after = _PLACES.get(place, (-1, "add", False))
    owner: Any = ScatteredSum if name == "add" else shards
    function = getattr(owner, name)

    def dies(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs) if after or rank != victim or now < 2 else None
        if rank == victim and now >= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, name, dies)
    case = Case(plan=a_plan(rate=0.9, steps=_STEPS))
    model = built(case, a_mesh(size))
    with started(case, model, folder=RunFolder(Path(folder), every=1, reserve_ahead=1)) as session:
        for step in session.steps():
            now = step.index
            step.accumulate(class_losses(model))
            step.update()
    return [session.ledger.charged_rounds, session.steps_taken]


@pytest.mark.slow
@pytest.mark.parametrize("place", _PLACES)
def test_a_killed_rank_of_a_sharded_model_costs_no_privacy_and_others_go_on(place: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    found = launch(kept, 2, folder, place, seconds=20.0)
    victim = _PLACES[place][0]
    assert found[victim] == {}
    assert found[1 - victim]["error"].startswith("RankError: A rank of this run died")
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").charged_rounds == 3
    for charged, taken in results(kept, 3, folder, ""):
        assert charged == _STEPS
        assert taken == _STEPS - (place != "after the index"), "a step without a whole checkpoint is lost and paid for"
