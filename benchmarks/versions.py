"""Compare the speed of two versions of privet: the same session, in alternating processes.

    python -m benchmarks.versions --before ../old/src --after src --rounds 7 --json-file runs/versions.json

Each process trains one model for a few private steps in an ordinary session (``step.accumulate``) and reports the
median time of a warm step. The processes of both versions alternate, so that a slowdown of the machine affects both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.machine import Precision, environment
from benchmarks.models import WORKLOADS, Batch, Scale, Size, losses_of
from benchmarks.pairs import now

WARM_UP = 5  # untimed steps, in which programs are proven, strategies chosen and kernels built


def _batch(size: Size, device: torch.device) -> Batch:
    inputs, labels = size.data.draw(size.batch_size, torch.Generator().manual_seed(0))
    return inputs.to(device), labels.to(device)


def warm_step(model_name: str, device: torch.device, scale: Scale, seconds: float) -> float:
    """Return the median seconds of a warm private step of this process's privet."""
    size = WORKLOADS[model_name].sizes[scale]
    torch.manual_seed(0)
    model = size.build().to(device).train()
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
    times: list[float] = []
    precision = Precision.TF32 if device.type == "cuda" else Precision.FP32

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return losses_of(model(inputs), labels)

    with precision.applied(), pv.privatize(model, optimizer, TensorDataset(*batch), plan, **options) as session:
        start = now(device)
        for number, step in enumerate(session.steps(), 1):
            step.accumulate(losses)
            step.update()
            end = now(device)
            if number > WARM_UP:
                times.append(end - start)
            if len(times) >= 3 and sum(times) > seconds:
                break
            start = now(device)
    return statistics.median(times)


def _alone(version: Path, arguments: list[str]) -> float:
    paths = [str(version.resolve()), str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(  # noqa: S603 -- this program itself, with names from its own lists
        [sys.executable, "-m", "benchmarks.versions", "--alone", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(f"{version} failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


@click.command()
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Folder of the old package.")
@click.option("--after", type=click.Path(exists=True, path_type=Path), help="Folder of the new package.")
@click.option("--models", default=",".join(WORKLOADS), show_default=True, help="Short names, comma-separated.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--rounds", default=7, show_default=True, help="Processes of each version and model.")
@click.option("--seconds", default=3.0, show_default=True, help="Timed seconds of each process.")
@click.option("--threads", default=1, show_default=True, help="Processor threads.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the rows here, after each model.")
@click.option("--alone", is_flag=True, hidden=True, help="Measure in this process.")
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
        click.echo(repr(warm_step(models, torch.device(device), Scale(scale), seconds)))
        return
    if before is None or after is None:
        raise click.UsageError("Name both versions: --before FOLDER --after FOLDER.")
    rows: list[dict[str, Any]] = []
    for model in models.split(","):
        same = ["--models", model, "--device", device, "--scale", scale]
        same += ["--seconds", str(seconds), "--threads", str(threads)]
        pairs = [(_alone(before, same), _alone(after, same)) for _ in range(rounds)]
        ratios = sorted(old / new for old, new in pairs)
        rows.append({"model": model, "pairs": pairs, "median": statistics.median(ratios), "ratios": ratios})
        click.echo(
            f"{model:10} new / old speed {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); "
            f"{1e3 * statistics.median(old for old, _ in pairs):.2f} ms, now "
            f"{1e3 * statistics.median(new for _, new in pairs):.2f} ms"
        )
        if json_file is not None:
            about = environment(torch.device(device), num_threads=threads)
            json_file.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
