"""What noise costs to draw: every kind against torch's own normal numbers on a vector of the same length.

    python -m benchmarks.noise --size 1000000 --json-file results/benchmarks/noise_cpu.json

The kinds take turns in one process and the median of their times is reported. Torch draws single-precision normal
numbers into the vector; all of privet's kinds draw in double precision, on a CPU from a cryptographic keystream.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.machine import environment
from benchmarks.measure import clock_for
from privet.mechanism.geometry import Factored, Frame
from privet.mechanism.laplace import BlockL2, L2Laplace, ProductLaplace
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian, Noise, NormalSource
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.sums import ClippedSum
from privet.training.randomness import Streams


def kinds(width: int) -> dict[str, Noise]:
    """Return one piece of every kind for two square parameters of this width."""
    size = 2 * width * width
    units = tuple((1 + np.arange(width) / width).tolist())
    return {
        "Gaussian": Gaussian(noise_multiplier=1.0),
        "GroupwiseGaussian": GroupwiseGaussian(noise_multiplier=1.0),
        "EllipticalGaussian": EllipticalGaussian(
            geometry=Factored(rows=(units, units), columns=(units, units)), noise_multiplier=1.0
        ),
        "L2Laplace": L2Laplace(num_coordinates=size, noise_multiplier=1.0),
        "ProductLaplace": ProductLaplace(sizes=(1.0,) * size, noise_multiplier=1.0),
        "BlockL2": BlockL2(
            block_of=tuple((np.arange(size) % 4).tolist()), coefficients=(0.5, 0.5, 0.5, 0.5), noise_multiplier=1.0
        ),
    }


def measured(width: int, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Time all kinds in turns and return their medians in milliseconds."""
    shape = (width, width)
    layout = Layout(names=("a", "b"), shapes=(shape, shape), groups=(0, 1))
    flat = torch.zeros(layout.num_coordinates, device=device)
    source, clock = Streams.new(device, seed=0).noise, clock_for(device, num_threads=1)
    pieces = kinds(width)
    frames = {
        name: Frame.of(piece.geometry, layout, flat)
        for name, piece in pieces.items()
        if isinstance(piece, EllipticalGaussian)
    }
    times: dict[str, list[float]] = {name: [] for name in ("torch normal", *pieces)}
    for turn in range(rounds + 1):
        for name in times:
            flat.zero_()
            total = ClippedSum(
                flat=flat, layout=layout, sensitivity=Sensitivity(bounds=(1.0, 1.0)), frame=frames.get(name)
            )
            seconds = clock.seconds(partial(_draw, pieces.get(name), total, source))
            if turn > 0:  # the first turn warms up
                times[name].append(seconds)
    base = statistics.median(times["torch normal"])
    return [
        {
            "noise": name,
            "milliseconds": round(1000 * statistics.median(values), 3),
            "over_torch_normal": round(statistics.median(values) / base, 3),
        }
        for name, values in times.items()
    ]


def _draw(piece: Noise | None, total: ClippedSum, source: NormalSource) -> None:
    if piece is None:
        total.flat.normal_()
    else:
        piece.add(total, source)


@click.command()
@click.option("--size", default=1_000_000, show_default=True, help="Coordinates, up to rounding to two squares.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--json-file", type=click.Path(path_type=Path), default=None)
def main(size: int, rounds: int, device: str, json_file: Path | None) -> None:
    """Measure and print; with a file, also keep the figures."""
    torch.set_num_threads(1)
    width = round((size / 2) ** 0.5)
    rows = measured(width, torch.device(device), rounds)
    for row in rows:
        click.echo(f"{row['noise']:20} {row['milliseconds']:10.2f} ms {row['over_torch_normal']:8.2f} x")
    if json_file is not None:
        found = {
            "command": " ".join(["python -m benchmarks.noise", *sys.argv[1:]]),
            "size": 2 * width * width,
            "environment": environment(torch.device(device), num_threads=1),
            "rows": rows,
        }
        json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
