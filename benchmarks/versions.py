"""Compare the speed of two versions of privet: the same session, in two processes that take turns.

    python -m benchmarks.versions --before ../old/src --after src --json-file runs/versions.json

Each version has one process for a model. It trains the model in an ordinary session (``step.accumulate``), waits, and
trains on for a while whenever it is told to. The two take turns, the first of a round being the second of the next, so
that a drift of the machine affects both alike.
"""

from __future__ import annotations

import json
import os
import statistics
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.machine import Precision, environment
from benchmarks.models import WORKLOADS, Batch, Scale, Size, losses_of
from benchmarks.pairs import now
from benchmarks.workers import Send, Worker, WorkerFailed, serve

WARM_UP = 8  # untimed steps, in which programs are proven, strategies chosen, kernels built and graphs recorded
_MIN_STEPS = 3


def _batch(size: Size, device: torch.device) -> Batch:
    inputs, labels = size.data.draw(size.batch_size, torch.Generator().manual_seed(0))
    return inputs.to(device), labels.to(device)


def _steps(size: Size, device: torch.device) -> Iterator[None]:
    """Take one private step of this process's privet after the other."""
    torch.manual_seed(0)
    model: nn.Module = size.build().to(device).train()
    batch = _batch(size, device)
    plan = pv.Plan(
        sampling=pv.Poisson(rate=1.0, steps=100_000, expected_batch_size=float(size.batch_size)),
        clipping=pv.Threshold(norm=1.0),
        noise=pv.Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )
    # Versions before 0.2 have no Performance.
    performance = getattr(pv, "Performance", None)
    options: dict[str, Any] = {"physical_batch_size": size.batch_size}
    options = options if performance is None else {"performance": performance(**options)}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return losses_of(model(inputs), labels)

    with pv.privatize(model, optimizer, TensorDataset(*batch), plan, **options) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
            yield


class Slices:
    """Trains one model with this process's privet, a slice of time whenever it is asked."""

    def __init__(self, model_name: str, device: torch.device, scale: Scale) -> None:
        self._steps, self._device = _steps(WORKLOADS[model_name].sizes[scale], device), device
        self._is_warm = False

    def handle(self, command: dict[str, Any], send: Send) -> None:
        """Answer with the median seconds of a warm step, and the number of steps that it is the median of."""
        times: list[float] = []
        precision = Precision.TF32 if self._device.type == "cuda" else Precision.FP32
        with precision.applied():
            for _ in range(0 if self._is_warm else WARM_UP):
                next(self._steps)
            self._is_warm = True
            while len(times) < _MIN_STEPS or sum(times) < command["seconds"]:
                start = now(self._device)
                next(self._steps)
                times.append(now(self._device) - start)
        send({"seconds": statistics.median(times), "steps": len(times)})


def _started(version: Path, arguments: list[str]) -> Worker:
    paths = [str(version.resolve()), str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment_of = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return Worker("benchmarks.versions", ["--alone", *arguments], environment=environment_of)


def take_turns(old: Worker, new: Worker, *, rounds: int, seconds: float) -> list[tuple[float, float]]:
    """Return the seconds of a step of both versions in every round; a round before them is not counted."""
    pairs = []
    for number in range(rounds + 1):
        order = (old, new) if number % 2 else (new, old)
        first, second = (float(each.ask({"seconds": seconds if number else 0.0})["seconds"]) for each in order)
        pairs.append((first, second) if number % 2 else (second, first))
    return pairs[1:]


@click.command()
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Folder of the old package.")
@click.option("--after", type=click.Path(exists=True, path_type=Path), help="Folder of the new package.")
@click.option("--models", default=",".join(WORKLOADS), show_default=True, help="Short names, comma-separated.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--rounds", default=7, show_default=True, help="Timed turns of each version.")
@click.option("--seconds", default=1.0, show_default=True, help="Timed seconds of a turn.")
@click.option("--threads", default=1, show_default=True, help="Processor threads.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the rows here, after each model.")
@click.option("--alone", is_flag=True, hidden=True, help="Answer commands in this process.")
def main(
    before: Path | None,
    after: Path | None,
    models: str,
    device: str,
    scale: str | None,
    rounds: int,
    seconds: float,
    threads: int,
    json_file: Path | None,
    alone: bool,
) -> None:
    """Print the speed of the new version over that of the old one, for each model."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    scale = scale or (Scale.ACCELERATOR if device == "cuda" else Scale.PROCESSOR).value
    if alone:
        warnings.simplefilter("ignore")
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = True
        serve(Slices(models, torch.device(device), Scale(scale)).handle)
        return
    if before is None or after is None:
        raise click.UsageError("Name both versions: --before FOLDER --after FOLDER.")
    rows: list[dict[str, Any]] = []
    for model in models.split(","):
        same = ["--models", model, "--device", device, "--scale", scale, "--threads", str(threads)]
        try:
            with ExitStack() as stack:
                old, new = (stack.enter_context(_started(version, same)) for version in (before, after))
                pairs = take_turns(old, new, rounds=rounds, seconds=seconds)
        except WorkerFailed as error:
            rows.append({"model": model, "failure": str(error)})
            click.echo(f"{model:10} failed: {error}")
        else:
            rows.append(_row(model, pairs))
            click.echo(_text(rows[-1]))
        if json_file is not None:
            about = environment(torch.device(device), num_threads=threads)
            json_file.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _row(model: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = sorted(old / new for old, new in pairs)
    fastest = min(old for old, _ in pairs) / min(new for _, new in pairs)
    return {"model": model, "pairs": pairs, "median": statistics.median(ratios), "fastest": fastest, "ratios": ratios}


def _text(row: dict[str, Any]) -> str:
    old, new = (1e3 * statistics.median(times) for times in zip(*row["pairs"], strict=True))
    return (
        f"{row['model']:10} new / old speed {row['median']:.3f} ({row['ratios'][0]:.3f} to {row['ratios'][-1]:.3f}, "
        f"fastest turns {row['fastest']:.3f}); {old:.2f} ms, now {new:.2f} ms"
    )


if __name__ == "__main__":
    main()
