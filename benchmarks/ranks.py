"""What ranks cost and whether they agree: a group of one beside no group, and two ranks beside one process.

    python -m benchmarks.ranks --json-file runs/ranks.json
    python -m benchmarks.ranks --device cpu --scale tiny --rounds 3 --seconds 0.2

A group of one and no group are two processes that take turns. Two ranks share one device and meet over gloo; their
weights after some steps are compared with those of one process. NCCL, which wants a device for each rank, is not tried.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.machine import Precision, environment
from benchmarks.models import Scale, losses_of
from benchmarks.pairs import now
from benchmarks.public import CASES
from benchmarks.versions import take_turns
from benchmarks.workers import Send, Worker, WorkerFailed, serve

WARM_UP = 8
_MIN_STEPS = 3
_COMPARED_STEPS = 4
_SECRET_FREE_SEED = 7  # runs with a seed are repeatable, hence not private: these examples are random numbers
_MODELS = "mnist,wrn16_4,llama,lora"


class Rank:
    """Trains one model as one rank of a group, or alone, as far as it is asked."""

    def __init__(self, model_name: str, device: torch.device, scale: Scale) -> None:
        self._size = CASES[model_name].workload.sizes[scale]
        self._device = device
        self._model: nn.Module | None = None
        self._before = torch.zeros(0)
        self._steps: Iterator[None] | None = None

    def handle(self, command: dict[str, Any], send: Send) -> None:
        """Time steps for some seconds, or take some steps and write the weights into a file."""
        # Ranks are compared in full single precision, so that only the order of additions differs.
        precision = Precision.TF32 if self._device.type == "cuda" and "seconds" in command else Precision.FP32
        with precision.applied():
            send(self._timed(command["seconds"]) if "seconds" in command else self._trained(Path(command["file"])))

    def _timed(self, seconds: float) -> Mapping[str, Any]:
        if self._steps is None:
            self._steps = self._private_steps(1_000_000)
            for _ in range(WARM_UP):
                next(self._steps)
        times: list[float] = []
        while len(times) < _MIN_STEPS or sum(times) < seconds:
            start = now(self._device)
            next(self._steps)
            times.append(now(self._device) - start)
        return {"seconds": statistics.median(times), "steps": len(times)}

    def _trained(self, file: Path) -> Mapping[str, Any]:
        """Take some steps; write the weights before and after them."""
        for _ in self._private_steps(_COMPARED_STEPS):
            pass
        np.save(file, torch.stack([self._before, self._weights()]).numpy(), allow_pickle=False)
        return {"written": str(file)}

    def _weights(self) -> Tensor:
        assert self._model is not None
        trained = (value for value in self._model.parameters() if value.requires_grad)
        return torch.cat([value.detach().double().flatten().cpu() for value in trained])

    def _private_steps(self, steps: int) -> Iterator[None]:
        torch.manual_seed(0)
        size = self._size
        model = self._model = (size.build_still or size.build)().to(self._device).train()
        self._before = self._weights()
        inputs, labels = size.data.draw(size.batch_size, torch.Generator().manual_seed(0))
        plan = pv.Plan(
            sampling=pv.Poisson(rate=1.0, steps=steps, expected_batch_size=float(size.batch_size)),
            clipping=pv.Threshold(norm=1.0), noise=pv.Gaussian(noise_multiplier=1.0), delta=1e-5,
            adjacency=pv.Adjacency.ADD_REMOVE, unit=pv.Unit.RECORD,
        )  # fmt: skip

        def losses(inputs: Tensor, labels: Tensor) -> Tensor:
            return losses_of(model(inputs), labels)

        with pv.privatize(
            model, torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1e-3),
            TensorDataset(inputs.to(self._device), labels.to(self._device)), plan, seed=_SECRET_FREE_SEED,
            performance=pv.Performance(physical_batch_size=size.batch_size),
        ) as session:  # fmt: skip
            for step in session.steps():
                step.accumulate(losses)
                step.update()
                yield


def _started(arguments: list[str], folder: Path, *, rank: int = 0, size: int = 0) -> Worker:
    """Start a process: one of no group where ``size`` is 0, else a rank of a group of that size."""
    group = ["--rank", str(rank), "--size", str(size), "--store", str(folder / f"store-{size}")]
    return Worker(
        "benchmarks.ranks",
        ["--alone", *arguments, *(group if size else [])],
        environment=os.environ | {"RANK": str(rank)},
    )


def overhead(arguments: list[str], folder: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the time of a step with a group of one over that without a group, of every round and their median."""
    with ExitStack() as stack:
        none, one = (stack.enter_context(_started(arguments, folder, size=size)) for size in (0, 1))
        pairs = take_turns(none, one, rounds=rounds, seconds=seconds)
    ratios = sorted(with_group / without for without, with_group in pairs)
    fastest = min(with_group for _, with_group in pairs) / min(without for without, _ in pairs)
    return {"pairs": pairs, "ratios": ratios, "median": statistics.median(ratios), "fastest": fastest}


def agreement(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Return whether two ranks end with equal weights, and how far these are from those of one process."""
    files = [folder / f"{name}.npy" for name in ("alone", "first", "second")]
    with _started(arguments, folder) as alone:
        alone.ask({"file": str(files[0])})
    with ExitStack() as stack:
        ranks = [stack.enter_context(_started(arguments, folder, rank=rank, size=2)) for rank in range(2)]
        for rank, file in zip(ranks, files[1:], strict=True):
            rank.tell({"file": str(file)})
        for rank in ranks:
            rank.answer()
    (start, one), (_, first), (_, second) = (np.load(file, allow_pickle=False) for file in files)
    distance = np.linalg.norm(first - one)
    return {
        "ranks equal bit for bit": bool((first == second).all()),
        "relative distance to one process": float(distance / np.linalg.norm(one)),
        "distance over what the steps changed": float(distance / np.linalg.norm(one - start)),
    }


@click.command()
@click.option("--models", default=_MODELS, show_default=True, help="Short names, comma-separated.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--rounds", default=7, show_default=True, help="Timed turns of each process.")
@click.option("--seconds", default=1.0, show_default=True, help="Timed seconds of a turn.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the rows here, after each model.")
@click.option("--alone", is_flag=True, hidden=True, help="Answer commands in this process.")
@click.option("--rank", default=0, hidden=True)
@click.option("--size", default=0, hidden=True)
@click.option("--store", type=click.Path(path_type=Path), hidden=True)
def main(
    models: str,
    device: str,
    scale: str | None,
    rounds: int,
    seconds: float,
    json_file: Path | None,
    alone: bool,
    rank: int,
    size: int,
    store: Path | None,
) -> None:
    """Print the cost of a group of one and the agreement of two ranks, for each model."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    scale = scale or (Scale.ACCELERATOR if device == "cuda" else Scale.PROCESSOR).value
    if alone:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        if store is not None:
            os.environ.update(WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
            distributed.init_process_group("gloo", init_method=f"file://{store.resolve()}", rank=rank, world_size=size)
        serve(Rank(models, torch.device(device), Scale(scale)).handle)
        return
    rows: list[dict[str, Any]] = []
    for model in models.split(","):
        same = ["--models", model, "--device", device, "--scale", scale]
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append({"model": model, **agreement(same, Path(folder))})
                click.echo(f"{model:10} two ranks: {rows[-1]}")
                rows[-1] |= overhead(same, Path(folder), rounds=rounds, seconds=seconds)
                low, high = rows[-1]["ratios"][0], rows[-1]["ratios"][-1]
                click.echo(
                    f"{model:10} a group of one: {rows[-1]['median'] - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
                )
            except WorkerFailed as error:
                rows.append({"model": model, "failure": str(error)})
                click.echo(f"{model:10} failed: {error}")
        if json_file is not None:
            about = environment(torch.device(device), num_threads=1)
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
