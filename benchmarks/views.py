"""A whole job beside the isolated step of its network: CIFAR-10's shapes, several views of an image, Poisson batches.

    python -m benchmarks.views --views 4,16 --json-file runs/views.json
    python -m benchmarks.views --device cpu --widening 1 --records 64 --logical 16 --images-at-once 8 --views 2

The job is a wide residual network with weight standardisation and group norm (De et al. 2022), trained by an ordinary
session: made-up images in device memory, shifted and mirrored at each use, Poisson batches, a ledger in a folder, an
average of the weights. The isolated step clips, sums, adds noise and updates for one batch of images that is already
there, as the benchmark of engines does (``privet_graph``). An image is one view.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.contenders import OURS, Settings
from benchmarks.machine import Precision, environment
from benchmarks.networks import WideResNet16, with_standardised_weights
from benchmarks.pairs import now
from privet.training.launch.replay import Launch

NUM_CLASSES, _SIDE = 10, 32
_WARM_UP = 3
_ISOLATED_SECONDS = 2.0
_CONTENDERS = {contender.name: contender for contender in OURS}


@dataclass(kw_only=True)
class Counted:
    """A transform that counts the images it is given."""

    transform: Callable[[Tensor], Tensor] = field(default_factory=pv.augmentation.ShiftAndFlip)
    number: int = 0

    def __call__(self, images: Tensor) -> Tensor:
        """Transform and count."""
        self.number += len(images)
        return self.transform(images)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A session of a few steps.

    Attributes:
        records: Images of the data set.
        logical: Expected images of a batch, each with all its views.
        images_at_once: Views that go through the network at once.
        steps: Steps that are timed, after the first ones.
    """

    device: torch.device
    widening: int
    records: int
    logical: int
    images_at_once: int
    steps: int

    def network(self) -> nn.Module:
        """Return the network with the weights of a seed."""
        torch.manual_seed(0)
        return with_standardised_weights(WideResNet16(widening=self.widening)).to(self.device)

    def isolated(self) -> float:
        """Return the images per second of steps on one batch."""
        is_gpu = self.device.type == "cuda"
        contender = _CONTENDERS["privet_graph" if is_gpu else "privet_bookkeeping"]
        running = contender.setup(self.network(), Settings(logical_batch=self.images_at_once))
        batch = _images(self.images_at_once, self.device)
        for _ in range(2 * _WARM_UP):
            running.step([batch])
        start, number = now(self.device), 0
        while number < 2 or now(self.device) - start < _ISOLATED_SECONDS:
            for _ in range(10 if is_gpu else 1):
                running.step([batch])
                number += 1
        rate = number * self.images_at_once / (now(self.device) - start)
        running.close()
        return rate

    def run(self, num_views: int, launch: Launch) -> dict[str, float]:
        """Return the images per second of a session, and the seconds of its first step."""
        model, counted = self.network(), Counted()
        data = pv.augmentation.Views(
            dataset=TensorDataset(*_images(self.records, self.device)), transform=counted, num_views=num_views
        )
        plan = pv.Plan(
            sampling=pv.Poisson(
                rate=self.logical / self.records, steps=self.steps + _WARM_UP, expected_batch_size=float(self.logical)
            ),
            clipping=pv.Threshold(norm=1.0),
            noise=pv.Gaussian(noise_multiplier=3.0),
            delta=1e-5,
            adjacency=pv.Adjacency.ADD_REMOVE,
            unit=pv.Unit.RECORD,
        )

        @pv.augmentation.mean_over_views
        def losses(images: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(model(images), labels, reduction="none")

        times, images = [now(self.device)], [0]
        performance = pv.Performance(physical_batch_size=max(1, self.images_at_once // num_views), launch=launch)
        with (
            tempfile.TemporaryDirectory() as folder,
            pv.privatize(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                data,
                plan,
                performance=performance,
                folder=Path(folder, "run"),
                averaging=pv.optim.ExponentialAverage(decay=0.999),
            ) as session,
        ):
            for step in session.steps():
                step.accumulate(losses)
                step.update()
                times.append(now(self.device))
                images.append(counted.number)
        return {
            "images_per_second": (images[-1] - images[_WARM_UP]) / (times[-1] - times[_WARM_UP]),
            "first_step_seconds": times[1] - times[0],
        }


def _images(number: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randn(number, 3, _SIDE, _SIDE, device=device, generator=generator)
    return images, torch.randint(NUM_CLASSES, (number,), device=device, generator=generator)


def compare(job: Job, views: list[int], *, tell: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Return the rows of all numbers of views, between two of the isolated step; ``tell`` gets them as they grow."""
    rows: list[dict[str, Any]] = [{"way": "isolated step", "images_per_second": job.isolated()}]
    tell(rows)
    launches: dict[str, Launch] = {"default": pv.launch.Automatic(), "one by one": pv.launch.Eager()}
    for way, launch in launches.items():
        for num_views in views:
            found = job.run(num_views, launch)
            share = found["images_per_second"] / rows[0]["images_per_second"]
            rows.append({"way": f"{num_views} views, {way}", **found, "share": share})
            tell(rows)
    rows.append({"way": "isolated step again", "images_per_second": job.isolated()})
    tell(rows)
    return rows


@click.command()
@click.option("--views", default="4,16", show_default=True, help="Numbers of views, comma-separated.")
@click.option("--records", default=50_000, show_default=True, help="Images of the data set.")
@click.option("--logical", default=4_096, show_default=True, help="Expected images of a batch.")
@click.option("--images-at-once", default=512, show_default=True, help="Views through the network at once.")
@click.option("--widening", default=4, show_default=True, help="4 is WRN-16-4.")
@click.option("--steps", default=5, show_default=True, help="Steps that are timed.")
@click.option("--device", "device_name", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
@click.option("--json-file", type=click.Path(dir_okay=False, path_type=Path))
def main(
    views: str,
    records: int,
    logical: int,
    images_at_once: int,
    widening: int,
    steps: int,
    device_name: str,
    json_file: Path | None,
) -> None:
    """Compare whole jobs with the isolated step of their network."""
    device = torch.device(device_name)
    torch.backends.cudnn.benchmark = True
    job = Job(
        device=device, widening=widening, records=records, logical=logical, images_at_once=images_at_once, steps=steps
    )
    settings = {"records": records, "logical": logical, "images at once": images_at_once, "widening": widening}

    def tell(rows: list[dict[str, Any]]) -> None:
        row = rows[-1]
        share = f", {row['share']:.3f} of the isolated step" if "share" in row else ""
        click.echo(f"{row['way']:24} {row['images_per_second']:9.1f} images/s{share}")
        if json_file is not None:
            about = environment(device, num_threads=torch.get_num_threads())
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(
                json.dumps({"environment": about, "settings": settings, "rows": rows}, indent=1) + "\n",
                encoding="utf-8",
            )

    with (Precision.TF32 if device.type == "cuda" else Precision.FP32).applied():
        compare(job, [int(number) for number in views.split(",")], tell=tell)


if __name__ == "__main__":
    main()
