"""Kills ranks at the boundaries of a step and resumes the runs; counts what was charged, begun and released.

``python -m tests.training.distributed.kills --json-file FILE`` writes the counts of 200 kills.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from privet.accounting.ledger import Ledger
from privet.mechanism.sampling import FullBatch
from privet.plan import Plan
from privet.training.folder import RunFolder
from privet.training.start import privatize
from tests.training.distributed.tools import launch, results
from tests.training.tools import examples, losses_of, network, plain_sgd, plan_of

STEPS = 8
BOUNDARIES = (
    "before the charge",
    "after the charge",
    "in the forward",
    "in the sum",
    "before the update",
    "in the checkpoint",
)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One run that loses a rank.

    Attributes:
        boundary: Where in the step.
        victim: Which rank.
        at: In which step, from 1 on.
        before: How many ranks there are.
        after: How many resume the run.
    """

    boundary: str
    victim: int
    at: int
    before: int
    after: int


def kills(first: int, last: int) -> Iterator[Kill]:
    """Draw kills; each number has its own, and all boundaries come in turn."""
    for number in range(first, last):
        draw, boundary = np.random.default_rng(number), BOUNDARIES[number % len(BOUNDARIES)]
        before, after, at = int(draw.integers(2, 5)), int(draw.integers(1, 5)), int(draw.integers(1, 6))
        # rank 0 writes the checkpoints
        victim = 0 if boundary == "in the checkpoint" else int(draw.integers(before))
        yield Kill(boundary=boundary, victim=victim, at=at, before=before, after=after)


def _plan() -> Plan:
    return plan_of(FullBatch(steps=STEPS, expected_batch_size=8.0))


def _train(rank: int, folder: str, life: str, losses: Any, model: Any, count: dict[str, int]) -> list[int]:
    def note(what: str) -> None:
        with open(Path(folder).parent / f"{life}-{what}-{rank}", "a") as file:  # a kill loses nothing that was written
            file.write(f"{count['step']}\n")

    def noted(*batch: Any) -> Any:
        note("begun")
        return losses(*batch)

    kept = RunFolder(Path(folder), every=1, reserve_ahead=1)
    with privatize(model, plain_sgd(model), examples(), _plan(), folder=kept) as session:
        for step in session.steps():
            count["step"] = step.index
            step.accumulate(noted)
            step.update()
            note("released")
    return [session.ledger.charged_rounds, session.steps_taken]


def _dying(rank: int, size: int, folder: str, boundary: str, victim: int, at: int) -> None:
    """Train, and end one rank abruptly at a boundary of a step."""
    from privet.training.distributed.ranks import Ranks
    from privet.training.distributed.shared_ledger import SharedLedger
    from privet.training.updates import _EagerUpdate

    count = {"step": -1}

    def die(function: Any, *, after: bool = False) -> Any:
        def dies(*args: Any, **kwargs: Any) -> Any:
            if rank == victim and count["step"] >= at:
                if after:
                    function(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return dies

    model = network()
    losses = losses_of(model)
    if boundary == "before the charge":
        SharedLedger.reserve = die(SharedLedger.reserve)  # type: ignore[method-assign]
    if boundary == "after the charge":
        SharedLedger.reserve = die(SharedLedger.reserve, after=True)  # type: ignore[method-assign]
    if boundary == "in the forward":
        losses = die(losses)
    if boundary == "in the sum":
        Ranks.add_up_ = die(Ranks.add_up_)  # type: ignore[method-assign]
    if boundary == "before the update":
        _EagerUpdate.apply = die(_EagerUpdate.apply)  # type: ignore[method-assign]
    if boundary == "in the checkpoint":
        RunFolder.checkpoint = die(RunFolder.checkpoint)  # type: ignore[method-assign]
    _train(rank, folder, "first", losses, model, count)


def _going_on(rank: int, size: int, folder: str) -> list[int]:
    model = network()
    return _train(rank, folder, "second", losses_of(model), model, {"step": -1})


def _steps(folder: Path, life: str, what: str) -> set[str]:
    """Return the steps that any rank noted."""
    return {step for file in folder.parent.glob(f"{life}-{what}-*") for step in file.read_text().split()}


def carry_out(kill: Kill, folder: Path) -> dict[str, int]:
    """Kill a rank, compare the ledger with what had begun, and let other ranks finish the run.

    Raises:
        AssertionError: a step was begun or released that no row of the ledger charges, or was begun in both processes.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = launch(_dying, kill.before, str(folder), kill.boundary, kill.victim, kill.at, seconds=20.0)
    assert found[kill.victim] == {}, f"rank {kill.victim} was to be killed: {found[kill.victim]}"
    told = {each["error"] for rank, each in enumerate(found) if rank != kill.victim}
    assert all(words.startswith("RankError: A rank of this run died") for words in told), told
    charged = Ledger.read(folder / "ledger.jsonl").charged_rounds
    begun, released = _steps(folder, "first", "begun"), _steps(folder, "first", "released")
    assert kill.at <= len(released) <= len(begun) <= charged, (kill, charged, begun, released)
    ended = results(_going_on, kill.after, str(folder)) if kill.after > 1 else [_going_on(0, 1, str(folder))]
    assert all(total == STEPS and taken <= STEPS for total, taken in ended), (kill, ended)
    # rounds that the first processes charged are not run again, whether they were used or not
    later = _steps(folder, "second", "begun")
    assert len(later) == STEPS - charged, (kill, charged, later)
    assert not later & begun, (kill, begun, later)
    return {"charged at the kill": charged, "begun at the kill": len(begun), "released at the kill": len(released)}


@click.command()
@click.option("--number", default=200, show_default=True)
@click.option("--json-file", type=click.Path(path_type=Path), required=True)
def main(number: int, json_file: Path) -> None:
    """Carry out kills and write what was counted; the first that breaks the law ends the program."""
    by_boundary: dict[str, Counter[str]] = {boundary: Counter() for boundary in BOUNDARIES}
    for kill in kills(0, number):
        with tempfile.TemporaryDirectory() as name:
            by_boundary[kill.boundary].update(Counter(kills=1, **carry_out(kill, Path(name) / "run")))
    found = {
        "environment": {"torch": torch.__version__, "backend": "gloo", "machine": platform.machine()},
        "kills": number,
        "runs that went on to their end": number,
        "steps begun or released without a charge": 0,
        "by boundary": by_boundary,
    }
    json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
