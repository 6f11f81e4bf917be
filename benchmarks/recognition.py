"""The cost of isolation: recognition of known programs, proof and experiments in first steps, and the weight watch.

    python -m benchmarks.recognition --models gpt2,vit_s,bert --rounds 60 --json-file runs/recognition.json

Known steps alternate between the follower that recognises them and a follower that compares nothing and assumes the
last program: their difference in one process is the cost of recognition, with an interval. The first steps of a session
are compared with plain steps, and the weight watch with complete steps.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import click
import torch

from benchmarks.contenders import OURS, Settings
from benchmarks.machine import Precision, environment
from benchmarks.measure import make
from benchmarks.models import WORKLOADS, Scale, Size, Tokens
from benchmarks.networks import Bert
from benchmarks.pairs import paired
from benchmarks.session_start import first_steps
from benchmarks.weight_watch import share_of_watch
from privet.gradients.capture import capture
from privet.isolation.follow import Follower
from privet.isolation.programs import Proof

_BOOK_KEEPING = next(contender for contender in OURS if contender.name == "privet_bookkeeping")
_BERT = {
    Scale.ACCELERATOR: Size(
        build=Bert, data=Tokens(length=128, vocabulary=30522, num_classes=2), batch_size=64
    ),
    Scale.PROCESSOR: Size(build=Bert, data=Tokens(length=128, vocabulary=30522, num_classes=2), batch_size=8),
    Scale.TINY: Size(
        build=lambda: Bert(width=24, num_heads=3, num_blocks=2, vocabulary=37, max_length=12),
        data=Tokens(length=12, vocabulary=37, num_classes=2),
        batch_size=5,
    ),
}  # fmt: skip
_SIZES = {name: workload.sizes for name, workload in WORKLOADS.items()} | {"bert": _BERT}


class _Blind(Follower):
    """Assumes that every program is the one that ran last."""

    def before(self, *args: Any) -> Any:
        """Compare nothing; return the note of the expected call."""
        call = self.expected
        self.expected = call.following
        return call.note

    def after(self, *args: Any) -> None:
        pass

    def after_known(self, output: Any, *, is_use: bool) -> None:
        pass

    def use(self, *args: Any) -> None:
        pass

    def prove(self, *args: Any) -> Proof:
        """Return the proof of the last program."""
        assert self._candidate is not None
        return Proof(self._whole, self._candidate.uses, (), None, known=self._candidate)


def recognition(size: Size, device: torch.device, *, rounds: int) -> dict[str, Any]:
    """Return seconds of known steps with and without recognition, and the follower's time per call of torch."""
    model, batch = make(size, size.batch_size, device=device, seed=0)
    running = _BOOK_KEEPING.setup(copy.deepcopy(model), Settings(logical_batch=size.batch_size))

    def known() -> None:
        running.step([batch])

    def blind() -> None:
        with mock.patch.object(capture, "Follower", _Blind):
            running.step([batch])

    for _ in range(6):
        known()
        blind()
    found = paired(known, blind, device, rounds=rounds)
    with _timed(("before", "after", "after_known", "use", "prove")) as times:
        for _ in range(10):
            known()
    num_calls = len(times["before"]) // 10
    return {
        "recognised": found.one, "blind": found.other, "share": found.share, "rounds": rounds,
        "calls": num_calls, "nanoseconds_per_call": 1e9 * sum(map(sum, times.values())) / 10 / num_calls,
    }  # fmt: skip


@contextmanager
def _timed(names: tuple[str, ...]) -> Iterator[dict[str, list[float]]]:
    """Time methods of the follower within ordinary steps; the times include the overhead of the clock."""
    times: dict[str, list[float]] = {name: [] for name in names}
    originals = {name: getattr(Follower, name) for name in names}

    def timed(original: Callable[..., Any], found: list[float]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = original(*args, **named)
            found.append(time.perf_counter() - start)
            return result

        return call

    for name, original in originals.items():
        setattr(Follower, name, timed(original, times[name]))
    try:
        yield times
    finally:
        for name, original in originals.items():
            setattr(Follower, name, original)


def measure(name: str, device: torch.device, scale: Scale, *, rounds: int, steps: int) -> dict[str, Any]:
    """Return all costs of one model."""
    size = _SIZES[name][scale]
    precision = Precision.TF32 if device.type == "cuda" else Precision.FP32
    with precision.applied():
        return {
            "model": name, "batch": size.batch_size,
            "recognition": recognition(size, device, rounds=rounds),
            "first_steps": first_steps(size, device, num_steps=5),
            "watch": share_of_watch(size, device, num_steps=steps),
        }  # fmt: skip


def _summary(row: dict[str, Any]) -> str:
    known, first = row["recognition"], row["first_steps"]
    share = known["share"]
    cost = f"{share['median']:.2%} of a step ({share['low']:.2%} to {share['high']:.2%}), {1e3 * known['blind']:.1f} ms"
    lines = [f"{row['model']}: recognition {cost}, {known['calls']} calls of {known['nanoseconds_per_call']:.0f} ns"]
    for step in first["steps"]:
        parts = ", ".join(
            f"{name} {part['plain_steps']:.1f} ({part['passes']} passes, {part['rows']} rows)"
            for name, part in step["parts"].items()
        )
        lines.append(f"  accumulate of step {step['step']}: {step['plain_steps']:.1f} plain steps: {parts}")
    watch = row["watch"]
    lines.append(f"  watch: {watch['usual']:.2%} of usual steps, {watch['whole']:.2%} of steps with a full check")
    return "\n".join(lines)


@click.command()
@click.option("--models", default="gpt2,vit_s,bert", show_default=True, help="Workloads, separated by commas.")
@click.option("--rounds", default=60, show_default=True, help="Pairs of known steps.")
@click.option("--steps", default=20, show_default=True, help="Steps in which the weight watch is timed.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the rows here.")
def main(models: str, rounds: int, steps: int, device: str, scale: str | None, json_file: Path | None) -> None:
    """Measure every model and print the costs."""
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    size = Scale(scale) if scale else Scale.ACCELERATOR if where.type == "cuda" else Scale.PROCESSOR
    rows = []
    for name in models.split(","):
        rows.append(measure(name, where, size, rounds=rounds, steps=steps))
        click.echo(_summary(rows[-1]))
        if json_file is not None:
            about = environment(where, num_threads=torch.get_num_threads())
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
