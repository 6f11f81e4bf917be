"""How much of training is left when images are decoded from files: by workers, in the training process, or not at all.

    python -m benchmarks.loading --images 50000 --workers 8 --json-file runs/loading.json
    python -m benchmarks.loading --device cpu --image-size 48 --crop 32 --width 16 --images 256 --logical 64 \
        --physical 16 --workers 2 --steps 6 --delay 0.002

JPEG files are made on the spot. A ResNet-50 with group norm is trained privately on them, in bf16 where the device is a
GPU, through an ordinary session: with all images decoded in the memory of the device, with files read by workers, and
with files read by the training process. Figures are images per second after the first steps, the best of several
rounds in turns; shares are of images in memory. ``--delay`` waits for so long at every file instead of decoding it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.machine import Precision, environment
from benchmarks.networks import ResNet50
from benchmarks.pairs import now
from privet.training.launch.replay import Launch

NUM_CLASSES = 100
_WARM_UP, _FEW = 3, 3


@dataclass(frozen=True, kw_only=True)
class Jpegs:
    """Image files with their labels; an item is decoded, and cropped in its middle, when it is asked for.

    Attributes:
        files: One for each image.
        crop: Side of the square that is kept.
        delay: Seconds to wait for a file instead of decoding it; the image is then grey.
    """

    files: tuple[Path, ...]
    crop: int
    delay: float | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image of bytes, channels first, and its label."""
        label = index % NUM_CLASSES
        if self.delay is not None:
            time.sleep(self.delay)
            return torch.full((3, self.crop, self.crop), label, dtype=torch.uint8), label
        from PIL import Image  # here, so that the benchmark can say that it is missing

        with Image.open(self.files[index]) as image:
            edge = (image.width - self.crop) // 2
            square = image.convert("RGB").crop((edge, edge, edge + self.crop, edge + self.crop))
            return torch.from_numpy(np.array(square)).movedim(2, 0), label


def write_jpegs(folder: Path, *, number: int, size: int) -> tuple[Path, ...]:
    """Write images of blurred noise, which take about as many bytes as photographs of their size."""
    from PIL import Image

    def write(index: int) -> Path:
        generator, file = np.random.default_rng(index), folder / f"{index}.jpg"
        coarse = generator.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
        grain = np.asarray(image).astype(np.int16) + generator.integers(-12, 13, (size, size, 3), dtype=np.int16)
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(file, quality=90)
        return file

    with ThreadPoolExecutor() as threads:  # coding, decoding and drawing leave Python's lock
        return tuple(threads.map(write, range(number)))


def in_memory(images: Jpegs, device: torch.device) -> TensorDataset:
    """Decode everything once, and keep it on a device."""
    pixels = torch.empty(len(images), 3, images.crop, images.crop, dtype=torch.uint8)
    labels = torch.empty(len(images), dtype=torch.int64)

    def place(index: int) -> None:
        pixels[index], labels[index] = images[index]

    with ThreadPoolExecutor() as threads:
        list(threads.map(place, range(len(images))))
    return TensorDataset(pixels.to(device), labels.to(device))


@dataclass(frozen=True, kw_only=True)
class Training:
    """One session of a few steps on any of the data sets.

    Attributes:
        logical: Images of a step.
        physical: Images that go through the network at once.
        steps: Steps that are timed, after the first ones.
    """

    device: torch.device
    width: int
    logical: int
    physical: int
    steps: int
    launch: Launch

    def run(self, dataset: Any, *, workers: int, is_slow: bool = False) -> dict[str, float]:
        """Return images per second, and the seconds it took to begin; a slow way is timed on fewer steps."""
        torch.manual_seed(0)
        num_steps = min(self.steps, _FEW) if is_slow else self.steps
        model: nn.Module = ResNet50(width=self.width, num_classes=NUM_CLASSES).to(self.device)
        plan = pv.Plan(
            # batches of one size, so that every way has the same work to do
            sampling=pv.sampling.FixedSize(
                dataset_size=len(dataset), batch_size=self.logical, steps=num_steps + _WARM_UP
            ),
            clipping=pv.Threshold(norm=1.0),
            noise=pv.Gaussian(noise_multiplier=1.0),
            delta=1e-5,
            adjacency=pv.Adjacency.REPLACE_ONE,
            unit=pv.Unit.RECORD,
        )
        performance = pv.Performance(physical_batch_size=self.physical, workers=workers, launch=self.launch)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        is_gpu, times = self.device.type == "cuda", [now(self.device)]

        def losses(images: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16) if is_gpu else contextlib.nullcontext():
                outputs = model(images.float() / 127.5 - 1)
            return functional.cross_entropy(outputs.float(), labels, reduction="none")

        with pv.privatize(model, optimizer, dataset, plan, performance=performance, seed=0) as session:
            times.append(now(self.device))
            for number, step in enumerate(session.steps(), 1):
                step.accumulate(losses)
                step.update()
                if number >= _WARM_UP:
                    times.append(now(self.device))
        # a step waits for the batches that were read ahead of it, and for no others: the mean over all of them counts
        return {"per_second": num_steps * self.logical / (times[-1] - times[2]), "began": times[1] - times[0]}


def compare(
    training: Training, images: Jpegs, *, workers: int, rounds: int, tell: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Train in the three ways in turns, and return the best figures of each; ``tell`` gets them after each session."""
    ways: dict[str, tuple[Any, int]] = {
        "in memory": (in_memory(images, training.device), 0),
        f"{workers} workers": (images, workers),
        "no workers": (images, 0),
    }
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, (dataset, number) in ways.items():
            is_slow = dataset is images and number == 0
            found.setdefault(name, []).append(training.run(dataset, workers=number, is_slow=is_slow))
            tell(_rows(found))
    return _rows(found)


def _rows(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, results in found.items():
        rate, began = (pick(each[key] for each in results) for pick, key in ((max, "per_second"), (min, "began")))
        rows.append({"way": name, "images_per_second": rate, "seconds_to_begin": began})
    for row in rows:
        row["share"] = row["images_per_second"] / rows[0]["images_per_second"]
    return rows


@click.command()
@click.option("--images", "num_images", default=4_096, show_default=True, help="How many files.")
@click.option("--image-size", default=256, show_default=True, help="Side of a file's image.")
@click.option("--crop", default=224, show_default=True, help="Side of what the network sees.")
@click.option("--width", default=64, show_default=True, help="Width of the network; 64 is ResNet-50.")
@click.option("--logical", default=1_024, show_default=True, help="Images of a step.")
@click.option("--physical", default=128, show_default=True, help="Images through the network at once.")
@click.option("--steps", default=8, show_default=True, help="Steps that are timed.")
@click.option("--rounds", default=2, show_default=True, help="Sessions of each way, in turns.")
@click.option("--workers", default=8, show_default=True)
@click.option("--delay", type=float, help="Seconds to wait at every file instead of decoding it.")
@click.option("--eager", is_flag=True, help="Launch one operation after the other, and replay no CUDA graphs.")
@click.option("--device", "device_name", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
@click.option("--json-file", type=click.Path(dir_okay=False, path_type=Path))
def main(
    num_images: int,
    image_size: int,
    crop: int,
    width: int,
    logical: int,
    physical: int,
    steps: int,
    rounds: int,
    workers: int,
    delay: float | None,
    eager: bool,
    device_name: str,
    json_file: Path | None,
) -> None:
    """Compare training on images in memory with training on files."""
    if delay is None and importlib.util.find_spec("PIL") is None:
        raise click.ClickException("Pillow makes and reads the files: pip install pillow, or give --delay 0.002.")
    device = torch.device(device_name)
    training = Training(
        device=device,
        width=width,
        logical=logical,
        physical=physical,
        steps=steps,
        launch=pv.launch.Eager() if eager else pv.launch.Automatic(),
    )
    precision = Precision.BF16 if device.type == "cuda" else Precision.FP32
    settings = {
        "images": num_images,
        "logical": logical,
        "physical": physical,
        "crop": crop,
        "width": width,
        "eager": eager,
    }

    def tell(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            click.echo(
                f"{row['way']:12} {row['images_per_second']:9.1f} images/s, {row['share']:.3f} of in memory; began in "
                f"{row['seconds_to_begin']:.1f} s"
            )
        if json_file is not None:
            about = environment(device, num_threads=torch.get_num_threads())
            text = json.dumps({"environment": about, "settings": settings, "rows": rows}, indent=1) + "\n"
            json_file.write_text(text, encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder, precision.applied():
        if delay is None:
            files = write_jpegs(Path(folder), number=num_images, size=image_size)
            click.echo(f"{num_images} files of {sum(file.stat().st_size for file in files) // num_images} bytes each")
        else:
            files = (Path(folder),) * num_images
        compare(training, Jpegs(files=files, crop=crop, delay=delay), workers=workers, rounds=rounds, tell=tell)


if __name__ == "__main__":
    main()
