"""The time of masks: a complete private step with a mask over the same step without one, interleaved.

    python -m benchmarks.masks --json-file results/benchmarks/masks_cpu.json

Every arm is a session with its own model, all in one process; a round takes one step of each. The time covers forward,
backward, norms, sums, noise and the optimizer's step. For models of linear maps two parts are timed separately in every
round: the product that a mask of coordinates adds, and the noise that a mask of half of them saves. The cost of such a
mask is at least the difference of the two.
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

from benchmarks.clocks import clock_for
from benchmarks.machine import environment, use_arena
from benchmarks.models import WORKLOADS, Images, Scale, Size
from benchmarks.networks import VisionTransformer
from privet.mechanism.clipping import Threshold
from privet.mechanism.granularity import Blocks, Coordinates, Rows
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch
from privet.models.convolutional import dp_cnn
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.randomness import Streams
from privet.training.session import Session, Step
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

_WARM_UP = 3
# Steps of an epoch of 50,000 examples in batches of 1,000; masks are drawn once per epoch.
_REFRESH = 50


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def _vit() -> nn.Module:
    return VisionTransformer(width=192, num_blocks=4, num_heads=3, patch=4, side=32, num_classes=10)


def _small_images(build: Callable[[], nn.Module], batch_size: int) -> Size:
    return Size(build=build, data=Images(channels=3, side=32), batch_size=batch_size)


_MODELS: dict[str, Size] = {
    "MLP 3072-1024-1024-10": _small_images(_mlp, 256),
    "MLP 3072-1024-1024-10, batch 128": _small_images(_mlp, 128),
    "MLP 3072-1024-1024-10, batch 64": _small_images(_mlp, 64),
    "DP-CNN": _small_images(dp_cnn, 32),
    "ViT width 192, 4 blocks": _small_images(_vit, 8),
    "ViT-S/16": WORKLOADS["vit_s"].sizes[Scale.PROCESSOR],
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
        step = next(self.steps)
        step.accumulate(self.losses)
        step.update()


def _session(size: Size, mask: Mask, device: torch.device, steps: int) -> Session:
    torch.manual_seed(0)
    model, batch = size.build().to(device), size.batch_size
    data = TensorDataset(*size.data.draw(batch, torch.Generator().manual_seed(0)))
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
    return privatize(model, optimizer, data, plan, performance=Performance(physical_batch_size=batch), seed=0)


def _parts(size: Size, device: torch.device) -> dict[str, Callable[[], None]]:
    """Return the work that a mask of coordinates adds to a step of linear maps, and the work that it saves."""
    model = size.build()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    number = sum(parameter.numel() for parameter in model.parameters())
    if number != sum(parameter.numel() for module in linear for parameter in module.parameters()):
        return {}
    factors = [
        (
            torch.rand(size.batch_size, module.in_features, device=device),
            (torch.rand(module.weight.shape, device=device) < 0.5).float(),
        )
        for module in linear
    ]
    source, draws = Streams.new(device, seed=0).noise, torch.zeros(number // 2, device=device)

    def products() -> None:
        for squares, keep in factors:
            torch.mm(squares, keep.mT)

    def noise() -> None:
        source.add_normal(draws, 1.0)

    return {"the extra product alone": products, "noise of half the coordinates alone": noise}


def _race(name: str, device: torch.device, rounds: int, threads: int) -> list[dict[str, Any]]:
    size = _MODELS[name]
    clock = clock_for(device, num_threads=threads)
    with ExitStack() as stack:
        work: dict[str, Callable[[], None]] = {}
        for arm, mask in _ARMS.items():
            session = stack.enter_context(_session(size, mask, device, steps=rounds + _WARM_UP))
            model = session.model

            def losses(inputs: Tensor, labels: Tensor, model: nn.Module = model) -> Tensor:
                return functional.cross_entropy(model(inputs), labels, reduction="none")

            work[arm] = _Arm(steps=session.steps(), losses=losses).step
        work |= _parts(size, device)
        taken: dict[str, list[float]] = {each: [] for each in work}
        for number in range(rounds + _WARM_UP):
            for each, run in work.items():
                seconds = clock.seconds(run)
                if number >= _WARM_UP:
                    taken[each].append(seconds)
    plain = taken["no mask"]
    return [
        {
            "model": name,
            "examples": size.batch_size,
            "arm": arm,
            "seconds": statistics.median(times),
            "over_no_mask": statistics.median(mine / base for mine, base in zip(times, plain, strict=True)),
        }
        for arm, times in taken.items()
    ]


@click.command()
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--rounds", default=15, show_default=True, help="Timed steps of every arm.")
@click.option("--threads", default=1, show_default=True, help="Threads of the processor.")
@click.option("--model", "models", multiple=True, help="Only these models; all by default.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the result here.")
def main(device: str, rounds: int, threads: int, models: tuple[str, ...], json_file: Path | None) -> None:
    """Time private steps with and without masks."""
    torch.set_num_threads(threads)
    use_arena()
    where = torch.device(device)
    rows = []
    for name in models or _MODELS:
        rows += (found := _race(name, where, rounds, threads))
        for row in found:
            click.echo(f"{row['model']:34} {row['arm']:36} {row['seconds'] * 1e3:9.1f} ms  {row['over_no_mask']:.3f}")
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
