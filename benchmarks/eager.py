"""The time that Python takes of a private step: a deep and narrow BERT, for which nothing else counts.

    python -m benchmarks.eager --rounds 40 --json-file runs/eager.json
    python -m benchmarks.eager --profile

Plain steps, private steps with ``step.accumulate`` and private steps in an explicit loop alternate in one process, on
one thread; the least and the median processor time of each are reported.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.machine import environment
from benchmarks.networks import Bert

WARM_UP = 6
_VOCABULARY = 100


def _model(width: int, num_blocks: int, length: int) -> nn.Module:
    torch.manual_seed(0)
    return Bert(width=width, num_heads=4, num_blocks=num_blocks, vocabulary=_VOCABULARY, max_length=length)


def _plan(batch_size: int) -> pv.Plan:
    return pv.Plan(
        sampling=pv.Poisson(rate=1.0, steps=100_000, expected_batch_size=float(batch_size)),
        clipping=pv.Threshold(norm=1.0),
        noise=pv.Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )


def _plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Iterator[None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ids, labels = batch
    while True:
        functional.cross_entropy(model(ids), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        yield


def _private(session: pv.Session, *, is_explicit: bool) -> Iterator[None]:
    def losses(ids: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(session.model(ids), labels, reduction="none")

    for step in session.steps():
        if is_explicit:
            for ids, labels in step.microbatches():
                step.backward(losses(ids, labels))
        else:
            step.accumulate(losses)
        step.update()
        yield


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(*, width: int, num_blocks: int, length: int, batch_size: int, rounds: int, profile: bool) -> dict[str, Any]:
    """Return the seconds of a step of each kind."""
    ids = torch.randint(1, _VOCABULARY, (batch_size, length), generator=torch.Generator().manual_seed(0))
    batch = (ids, torch.arange(batch_size) % 2)
    with ExitStack() as open_sessions:
        kinds: dict[str, Iterator[None]] = {"plain": _plain(_model(width, num_blocks, length), batch)}
        for name, is_explicit in (("accumulate", False), ("explicit loop", True)):
            model = _model(width, num_blocks, length)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            made = pv.privatize(model, optimizer, TensorDataset(*batch), _plan(batch_size))
            kinds[name] = _private(open_sessions.enter_context(made), is_explicit=is_explicit)
        for steps in kinds.values():
            for _ in range(WARM_UP):
                next(steps)
        if profile:
            profiler = cProfile.Profile()
            profiler.enable()
            for _ in range(rounds):
                next(kinds["accumulate"])
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
            return {}
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, steps in kinds.items():
                times[name].append(_seconds(lambda steps=steps: next(steps)))  # type: ignore[misc]
    return {name: {"least": min(found), "median": statistics.median(found)} for name, found in times.items()}


@click.command()
@click.option("--width", default=32, show_default=True)
@click.option("--blocks", default=12, show_default=True)
@click.option("--length", default=16, show_default=True, help="Tokens of an example.")
@click.option("--batch-size", default=8, show_default=True)
@click.option("--rounds", default=40, show_default=True, help="Timed steps of each kind.")
@click.option("--profile", is_flag=True, help="Print the functions that take the time of a private step instead.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the times here.")
def main(
    width: int, blocks: int, length: int, batch_size: int, rounds: int, profile: bool, json_file: Path | None
) -> None:
    """Print the times of private steps over that of plain ones."""
    torch.set_num_threads(1)
    found = measure(
        width=width, num_blocks=blocks, length=length, batch_size=batch_size, rounds=rounds, profile=profile
    )
    for name, seconds in found.items():
        ratio = seconds["least"] / found["plain"]["least"]
        click.echo(
            f"{name:14} {1e3 * seconds['least']:6.1f} ms at least, {1e3 * seconds['median']:6.1f} ms in the median, "
            f"{ratio:.2f} times a plain step"
        )
    if json_file is not None and found:
        about = environment(torch.device("cpu"), num_threads=1)
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({"environment": about, "seconds": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
