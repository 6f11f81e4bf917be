"""What it costs to prove a new program and to recognise a known one.

    python -m benchmarks.recognition --models gpt2,vit_s --rounds 15 --json-file runs/recognition.json

The first step of a model is proven; its time is taken beside that of a second step. Later steps are done in turn with
the follower that recognises them and with one that looks at nothing and takes the program for the last one, so that
what recognition costs is their difference in one process.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click
import torch
from torch import Tensor

from benchmarks.contenders import OURS, Settings
from benchmarks.machine import Precision, environment
from benchmarks.measure import make
from benchmarks.models import WORKLOADS, Scale
from privet.gradients.capture import capture
from privet.isolation.follow import Follower, Proof

_BOOK_KEEPING = next(contender for contender in OURS if contender.name == "privet_bookkeeping")


class _Blind(Follower):
    """Takes every program for the one that ran last."""

    def before(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Look at nothing; return the note of the call that is expected."""
        assert self._candidate is not None
        self._num_calls += 1
        return self._candidate.notes[self._num_calls - 1]

    def after(self, outputs: Sequence[Tensor]) -> None:
        """Number nothing."""

    def prove(self, losses: Tensor) -> Proof:
        """Say what was found about the last program."""
        assert self._candidate is not None
        return Proof(self._whole(), self._candidate.uses, (), None, (), self._candidate)


def measure(model_name: str, device: torch.device, scale: Scale, rounds: int) -> dict[str, Any]:
    """Return seconds of a first and a second step, and of known steps with and without recognition."""
    size = WORKLOADS[model_name].sizes[scale]
    model, batch = make(size, size.batch_size, device=device, seed=0)
    precision = Precision.TF32 if device.type == "cuda" else Precision.FP32
    times: dict[str, list[float]] = {"recognised": [], "blind": []}
    with precision.applied():
        running = _BOOK_KEEPING.setup(copy.deepcopy(model), Settings(logical_batch=size.batch_size))
        first, second = (_seconds(running, batch, device) for _ in range(2))
        for _ in range(3):
            running.step([batch])
        for _ in range(rounds):
            times["recognised"].append(_seconds(running, batch, device))
            with mock.patch.object(capture, "Follower", _Blind):
                times["blind"].append(_seconds(running, batch, device))
    known, blind = (statistics.median(times[name]) for name in ("recognised", "blind"))
    pairs = zip(times["recognised"], times["blind"], strict=True)
    share = statistics.median(one - other for one, other in pairs) / known
    return {
        "model": model_name, "batch": size.batch_size, "first": first, "second": second, "recognised": known,
        "blind": blind, "share": share,
    }  # fmt: skip


def _seconds(running: Any, batch: Any, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    running.step([batch])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@click.command()
@click.option("--models", default="gpt2,vit_s", show_default=True, help="Workloads, separated by commas.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--json-file", type=click.Path(path_type=Path), help="Where to keep the rows.")
def main(models: str, rounds: int, json_file: Path | None) -> None:
    """Measure and print one line for each model."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scale = Scale.ACCELERATOR if device.type == "cuda" else Scale.PROCESSOR
    rows = []
    for name in models.split(","):
        row = measure(name, device, scale, rounds)
        rows.append(row)
        click.echo(
            f"{name}: first {row['first']:.2f} s, second {row['second']:.3f} s, known {1e3 * row['recognised']:.1f} ms,"
            f" blind {1e3 * row['blind']:.1f} ms, recognition {100 * row['share']:.2f} %"
        )
    if json_file is not None:
        json_file.write_text(
            json.dumps({"machine": environment(device, num_threads=torch.get_num_threads()), "rows": rows}, indent=1),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
