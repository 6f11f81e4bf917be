"""Starts training processes, kills them at random moments, resumes them, and looks at what the disk says each time.

Run as a program: one process imports everything once and forks the ones to be killed, before any tensor is computed.
Usage: nursery.py FOLDER NUM_KILLS SEED. Prints a tally as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it when they are made: two seconds in each child otherwise
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet.accounting.ledger import Ledger
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.checkpoint import load_checkpoint
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

ROUNDS = 150
RESERVED_AHEAD = 10


def train(folder: Path) -> None:
    """Train to the end of the plan, writing one byte after each update: what an observer may have seen by then."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    dataset = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
    plan = Plan(
        sampling=Poisson(rate=0.2, steps=ROUNDS, expected_batch_size=12.8),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )
    seen = os.open(folder / "released", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    session = privatize(
        model,
        SGD(model.parameters(), lr=0.1, momentum=0.9),
        dataset,
        plan,
        performance=Performance(physical_batch_size=8),
        folder=folder / "run",
        checkpoint_every=3,
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda inputs, labels: functional.cross_entropy(model(inputs), labels, reduction="none"))
            step.update()
            os.write(seen, b".")


def start(folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        train(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


@dataclass
class Tally:
    """What was seen."""

    kills: int = 0
    kills_before_a_release: int = 0
    kills_at_an_unfinished_row: int = 0
    kills_at_an_unfinished_checkpoint: int = 0
    runs_finished: int = 0
    looks: int = 0
    under_counts: int = 0
    beyond_the_plan: int = 0
    largest_over_count: int = 0
    over_count_too_large: int = 0
    unreadable: list[str] = field(default_factory=list)
    failed_children: int = 0

    def look(self, folder: Path, *, kills: int) -> tuple[int, int]:
        """Compare what the ledger charges with what was released; return both."""
        self.looks += 1
        released = num_released(folder)
        charged = 0
        ledger = folder / "run" / "ledger.jsonl"
        try:
            if ledger.exists():
                view = Ledger.read(ledger)
                charged = view.charged_rounds
                self.kills_at_an_unfinished_row += view.has_unfinished_row
            load_checkpoint(folder / "run" / "checkpoint.safetensors")
        except ValueError as error:
            self.unreadable.append(str(error))
        self.kills_at_an_unfinished_checkpoint += (folder / "run" / "checkpoint.safetensors.new").exists()
        self.under_counts += charged < released
        self.beyond_the_plan += charged > ROUNDS
        over = charged - released
        self.largest_over_count = max(self.largest_over_count, over)
        self.over_count_too_large += over > kills * RESERVED_AHEAD
        return charged, released


def finish(folder: Path, tally: Tally) -> float:
    """Let a run end in peace; return how long that took."""
    began = time.monotonic()
    _, status = os.waitpid(start(folder), 0)
    tally.failed_children += status != 0
    return time.monotonic() - began


def num_released(folder: Path) -> int:
    seen = folder / "released"
    return seen.stat().st_size if seen.exists() else 0


def wait_for_a_release(folder: Path, child: int) -> None:
    """Wait until a process has released something or ended: on a busy machine it may take long to begin."""
    before = num_released(folder)
    while num_released(folder) == before:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.005)


def kill_and_resume(folder: Path, num_kills: int, seed: int) -> Tally:
    """Kill until the number is reached, in as many runs as that takes, and let the last run end in peace."""
    chance, tally = random.Random(seed), Tally()
    (folder / "undisturbed").mkdir()
    whole = finish(folder / "undisturbed", tally)
    assert tally.look(folder / "undisturbed", kills=0) == (ROUNDS, ROUNDS)
    while tally.kills < num_kills:
        home = folder / f"run-{tally.runs_finished}"
        home.mkdir()
        kills_here, ended = 0, False
        while tally.kills < num_kills and not ended:
            child = start(home)
            if tally.kills % 2:
                wait_for_a_release(home, child)
            time.sleep(chance.uniform(0, whole / 3))
            # until it is waited for, a child that ended by itself still has its id: the signal cannot hit another
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            ended = not os.WIFSIGNALED(status)
            tally.failed_children += ended and status != 0
            kills_here += not ended
            tally.kills += not ended
            _, released = tally.look(home, kills=kills_here)
            tally.kills_before_a_release += not ended and released == 0
        finish(home, tally)
        charged, _ = tally.look(home, kills=kills_here)
        tally.runs_finished += charged == ROUNDS
        if charged != ROUNDS:
            tally.unreadable.append(f"{home.name} ended with {charged} rounds charged")
            break
    return tally


if __name__ == "__main__":
    found = kill_and_resume(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps(asdict(found)))
