"""What masks cost and save: the whole private step with a mask over the same step without one, interleaved.

    python -m benchmarks.masks --json-file results/benchmarks/masks_cpu.json

Every arm is a session of its own with a model of its own, all alive in one process; a round takes one step of each.
Forward, backward, norms, sums, noise and the optimizer's step are all in the time.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.machine import environment, use_arena
from benchmarks.measure import clock_for
from benchmarks.networks import VisionTransformer
from privet.mechanism.clipping import Threshold
from privet.mechanism.granularity import Blocks, Coordinates, Rows
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch
from privet.mechanism.schedules import Constant
from privet.mechanism.terms import Adjacency, Unit
from privet.models.dp_cnn import dp_cnn
from privet.plan import Plan
from privet.training.session import Session, privatize
from privet.training.step import Step

_WARM_UP = 3
# Steps of an epoch of 50,000 examples in batches of 1,000; masks are drawn once per epoch.
_REFRESH = 50


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def _vit() -> nn.Module:
    return VisionTransformer(width=192, num_blocks=4, num_heads=3, patch=4, side=32, num_classes=10)


_MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "MLP 3072-1024-1024-10": (_mlp, 256),
    "DP-CNN": (dp_cnn, 32),
    "ViT width 192, 4 blocks": (_vit, 8),
}


def _random(rate: float, granularity: Coordinates | Rows | Blocks) -> Mask:
    return RandomMask(schedule=Constant(value=rate), granularity=granularity, refresh_every=_REFRESH)


_ARMS: dict[str, Mask] = {
    "no mask": NoMask(),
    "no mask, second time": NoMask(),
    "coordinates, rate 0.5": _random(0.5, Coordinates()),
    "coordinates, rate 0.9": _random(0.9, Coordinates()),
    "rows, rate 0.5": _random(0.5, Rows()),
    "rows, rate 0.9": _random(0.9, Rows()),
    "blocks of 4 rows, rate 0.9": _random(0.9, Blocks(num_rows=4)),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arm:
    """A session whose steps can be taken one by one."""

    steps: Iterator[Step]
    losses: Callable[[Tensor, Tensor], Tensor]

    def step(self) -> None:
        """Take one whole step."""
        step = next(self.steps)
        step.accumulate(self.losses)
        step.update()


def _session(build: Callable[[], nn.Module], batch: int, mask: Mask, device: torch.device, steps: int) -> Session:
    torch.manual_seed(0)
    model = build().to(device)
    data = TensorDataset(torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,)))
    plan = Plan(
        sampling=FullBatch(steps=steps, expected_batch_size=batch),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        mask=mask,
        delta=1e-5,
        adjacency=Adjacency.ZERO_OUT,
        unit=Unit.RECORD,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return privatize(model, optimizer, data, plan, physical_batch_size=batch, seed=0)


def _race(name: str, device: torch.device, rounds: int, threads: int) -> list[dict[str, Any]]:
    build, batch = _MODELS[name]
    clock = clock_for(device, num_threads=threads)
    taken: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    with ExitStack() as stack:
        arms = {}
        for arm, mask in _ARMS.items():
            session = stack.enter_context(_session(build, batch, mask, device, steps=rounds + _WARM_UP))
            model = session.model

            def losses(inputs: Tensor, labels: Tensor, model: nn.Module = model) -> Tensor:
                return functional.cross_entropy(model(inputs), labels, reduction="none")

            arms[arm] = _Arm(steps=session.steps(), losses=losses)
        for number in range(rounds + _WARM_UP):
            for arm, running in arms.items():
                seconds = clock.seconds(running.step)
                if number >= _WARM_UP:
                    taken[arm].append(seconds)
    plain = taken["no mask"]
    return [
        {
            "model": name,
            "examples": batch,
            "arm": arm,
            "seconds": statistics.median(times),
            "over_no_mask": statistics.median(mine / base for mine, base in zip(times, plain, strict=True)),
        }
        for arm, times in taken.items()
    ]


@click.command()
@click.option("--device", default="cpu", show_default=True, help="Where to run.")
@click.option("--rounds", default=15, show_default=True, help="Timed steps of every arm.")
@click.option("--threads", default=1, show_default=True, help="Threads of the processor.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Where to write the result.")
def main(device: str, rounds: int, threads: int, json_file: Path | None) -> None:
    """Time private steps with and without masks."""
    torch.set_num_threads(threads)
    use_arena()
    where = torch.device(device)
    rows = []
    for name in _MODELS:
        rows += (found := _race(name, where, rounds, threads))
        for row in found:
            click.echo(f"{row['model']:26} {row['arm']:28} {row['seconds'] * 1e3:9.1f} ms  {row['over_no_mask']:.3f}")
    if json_file is not None:
        command = " ".join(["python -m benchmarks.masks", *sys.argv[1:]])
        record = {
            "command": command,
            "environment": environment(where, num_threads=threads),
            "rounds": rounds,
            "clock": type(clock_for(where, num_threads=threads)).__name__,
            "rows": rows,
        }
        json_file.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
