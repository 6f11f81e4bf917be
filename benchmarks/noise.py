"""The time of drawing noise: every kind against torch's own normal numbers on a vector of the same length.

    python -m benchmarks.noise --size 1000000 --size 100000000 --json-file research/results/noise/sampling_cpu.json
    python -m benchmarks.noise --size 1000000 --device cuda --json-file research/results/noise/sampling_cuda.json

The kinds take turns in one process. Reported are the median of their times, and the peak of extra memory of a draw as a
multiple of the vector. Torch draws single-precision normal numbers into the vector; all of privet's kinds draw in
double precision, on a CPU from a cryptographic keystream. Of kinds with one parameter per coordinate only the draw is
measured, not the storage of the parameters.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.clocks import clock_for
from benchmarks.machine import environment
from privet.mechanism.draws import add_radial_at, add_two_sided
from privet.mechanism.geometry import Factored, Frame
from privet.mechanism.laplace import L2Laplace
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.sums import ClippedSum, NormalSource
from privet.training.randomness import Streams

Draw = Callable[[Tensor], None]
_NUM_BLOCKS = 4


def kinds(width: int, device: torch.device, source: NormalSource) -> dict[str, Draw]:
    """Return one draw of every kind for two square parameters of this width, torch's own first."""
    size = 2 * width * width
    units = tuple((1 + np.arange(width) / width).tolist())
    layout = Layout(names=("a", "b"), shapes=((width, width),) * 2, groups=(0, 1))
    shaped = EllipticalGaussian(geometry=Factored(rows=(units, units), columns=(units, units)), noise_multiplier=1.0)
    frame = Frame.of(shaped.geometry, layout, torch.zeros(1, device=device))
    blocks = np.array_split(np.arange(size), _NUM_BLOCKS)

    def added(piece: Noise, where: Frame | None, flat: Tensor) -> None:
        sensitivity = Sensitivity(bounds=(1.0, 1.0))
        piece.add(ClippedSum(flat=flat, layout=layout, sensitivity=sensitivity, frame=where), source)

    def normal(flat: Tensor) -> None:
        flat.normal_()

    def in_blocks(flat: Tensor) -> None:
        for places in blocks:
            add_radial_at(flat, places, scale=1.0, source=source)

    return {
        "torch normal": normal,
        "Gaussian": partial(added, Gaussian(noise_multiplier=1.0), None),
        "GroupwiseGaussian": partial(added, GroupwiseGaussian(noise_multiplier=1.0), None),
        "EllipticalGaussian": partial(added, shaped, frame),
        "L2Laplace": partial(added, L2Laplace(num_coordinates=size, noise_multiplier=1.0), None),
        "ProductLaplace": lambda flat: add_two_sided(flat, scales=1.0, source=source, keep=None),
        "BlockL2": in_blocks,
    }


class HostPeak:
    """The most memory that the process held, from the kernel's own high-water mark."""

    def start(self) -> None:
        """Begin with the memory held now."""
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._kibibytes("VmRSS")

    def extra_bytes(self) -> int:
        """Return the peak of extra memory since the start."""
        return 1024 * (self._kibibytes("VmHWM") - self._before)

    @staticmethod
    def _kibibytes(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class DevicePeak:
    """The peak of memory that torch allocated on a device."""

    def start(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def extra_bytes(self) -> int:
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self._before


def measured(width: int, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Time all kinds in turns and return their medians in milliseconds, and their extra memory."""
    flat = torch.zeros(2 * width * width, device=device)
    source = Streams.new(device, seed=0).noise
    pieces = kinds(width, device, source)
    peak = DevicePeak() if device.type == "cuda" else HostPeak()
    clock = clock_for(device, num_threads=1)
    times: dict[str, list[float]] = {name: [] for name in pieces}
    extra: dict[str, float] = {}
    for turn in range(rounds + 2):
        for name, draw in pieces.items():
            flat.zero_()
            if turn == 0:  # warm-up: the set-up of a library is not part of a draw
                draw(flat)
            elif turn == 1:
                peak.start()
                draw(flat)
                extra[name] = peak.extra_bytes() / (flat.numel() * flat.element_size())
            else:
                times[name].append(clock.seconds(partial(draw, flat)))
    base = statistics.median(times["torch normal"])
    return [
        {
            "noise": name,
            "milliseconds": round(1000 * statistics.median(values), 3),
            "over_torch_normal": round(statistics.median(values) / base, 3),
            "extra_memory_over_vector": round(extra[name], 3),
        }
        for name, values in times.items()
    ]


@click.command()
@click.option("--size", "sizes", multiple=True, default=(1_000_000,), type=int, show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--json-file", type=click.Path(path_type=Path), default=None)
def main(sizes: tuple[int, ...], rounds: int, device: str, json_file: Path | None) -> None:
    """Measure and print; with a file, also write the figures. Sizes are rounded to two squares."""
    torch.set_num_threads(1)
    tables = []
    for size in sizes:
        width = round((size / 2) ** 0.5)
        rows = measured(width, torch.device(device), rounds)
        tables.append({"size": 2 * width * width, "rows": rows})
        click.echo(f"{2 * width * width:,} coordinates")
        for row in rows:
            click.echo(
                f"{row['noise']:20} {row['milliseconds']:10.2f} ms {row['over_torch_normal']:8.2f} x "
                f"{row['extra_memory_over_vector']:8.3f} vectors"
            )
    if json_file is not None:
        found = {
            "command": " ".join(["python -m benchmarks.noise", *sys.argv[1:]]),
            "environment": environment(torch.device(device), num_threads=1),
            "tables": tables,
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
