"""One process of the benchmark of sessions: it measures one model as it is told.

It loads its libraries at once and touches no device before the first command, so that it can wait while another process
is measured.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which measures memory on a processor, logs

import click
import torch

from benchmarks.clocks import ElapsedClock
from benchmarks.contenders import Contender, NonPrivate, NonPrivateGraph, Settings
from benchmarks.machine import Precision
from benchmarks.measure import Plan, check_only, make, measure
from benchmarks.models import Scale
from benchmarks.pairs import now
from benchmarks.public import CASES, Case
from benchmarks.records import Row
from benchmarks.rivals import RIVALS
from benchmarks.sessions import session_contenders
from benchmarks.workers import Send, serve

# Plain training first: what it loads for the first time, every later contender finds loaded.
CONTENDERS: Mapping[str, Contender] = {
    contender.name: contender for contender in (NonPrivate(), *session_contenders(), *RIVALS, NonPrivateGraph())
}
_RIVAL_LIBRARIES = ("opacus", "fastDP")


class Measuring:
    """What one process does with its model."""

    def __init__(self, case: Case, device: torch.device, scale: Scale) -> None:
        self._case, self._device, self._size = case, device, case.workload.sizes[scale]
        self._precision = case.precision
        if device.type != "cuda" and self._precision is Precision.TF32:
            self._precision = Precision.FP32
        self._settings = Settings(logical_batch=self._size.batch_size, autocast=self._precision.autocast)

    def load(self) -> None:
        """Load the libraries of the model and of the rivals; nothing is computed."""
        with suppress(Exception), torch.device("meta"):  # what is missing fails again where it is needed
            self._size.build()
        for library in _RIVAL_LIBRARIES:
            with suppress(Exception):
                importlib.import_module(library)

    def handle(self, command: dict[str, Any], send: Send) -> None:
        """Answer one command."""
        torch.zeros(1, device=self._device).sum().item()  # the start of the device is not measured
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # torch loads its compiler with the first one
        match command.pop("do"):
            case "first step":
                send({"seconds": self.first_step(**command)})
            case "check":
                self.check(send, **command)
            case "time":
                self.time(send, **command)
            case unknown:
                raise ValueError(f"A worker knows 'first step', 'check' and 'time', got {unknown!r}.")

    def first_step(self, contender: str) -> float | None:
        """Return the seconds of set-up and first step; None if they fail, as they will again where they are timed."""
        with suppress(Exception):
            return self._first_step(contender)
        return None

    def _first_step(self, contender: str) -> float:
        model, batch = make(self._size, self._size.batch_size, device=self._device, seed=self._settings.seed)
        with self._precision.applied():
            start = now(self._device)
            CONTENDERS[contender].setup(model, self._settings).step([batch])
            return now(self._device) - start

    def check(self, send: Send, contenders: list[str], examples: int) -> None:
        """Send the rows of all contenders as their clipped sums are compared."""
        check_only(
            self._case.workload,
            self._size,
            [CONTENDERS[name] for name in contenders],
            device=self._device,
            num_examples=examples,
            observe=lambda rows, is_last: _send_rows(send, rows, is_last=is_last),
        )

    def time(self, send: Send, contenders: list[str], rounds: int, seconds: float, warm_up: int, budget: float) -> None:
        """Send the rows of all contenders, again and again as they grow."""
        plan = Plan(
            rounds=rounds,
            warm_up=warm_up,
            min_sample_seconds=seconds / rounds,
            check_examples=0,
            budget_seconds=budget,
        )
        measure(
            self._case.workload,
            self._size,
            [CONTENDERS[name] for name in contenders],
            device=self._device,
            settings=self._settings,
            precision=self._precision,
            clock=ElapsedClock(device=self._device),
            plan=plan,
            observe=lambda rows, is_last: _send_rows(send, rows, is_last=is_last),
        )


def _send_rows(send: Send, rows: tuple[Row, ...], *, is_last: bool) -> None:
    send({"rows": [asdict(row) for row in rows], "is_last": is_last})


@click.command()
@click.option("--model", required=True)
@click.option("--device", required=True)
@click.option("--scale", required=True)
@click.option("--threads", type=int, required=True)
def main(model: str, device: str, scale: str, threads: int) -> None:
    """Answer commands about one model."""
    warnings.simplefilter("ignore")  # rivals cause warnings in every step; printing them would count as their time
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = True
    measuring = Measuring(CASES[model], torch.device(device), Scale(scale))
    measuring.load()
    serve(measuring.handle)


if __name__ == "__main__":
    main()
