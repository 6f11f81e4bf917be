"""The delay of a first private step against a first plain step, each in a new process.

    python -m benchmarks.first_step --models mnist,vit_s --json-file runs/first_step.json

The clock starts when torch, privet and the device are loaded and the model and its batch are on the device; it stops at
the end of the first step. The caches are empty at first; a second process of each contender finds the kernels that the
first process built, and the strategies that it chose.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.contenders import OURS, Settings
from benchmarks.machine import Precision, environment
from benchmarks.measure import make
from benchmarks.models import WORKLOADS, Scale
from benchmarks.pairs import now
from privet.durable import CACHE_VARIABLE

CONTENDERS = {contender.name: contender for contender in OURS}
_BASELINE = "non_private"


def first_step(model_name: str, contender_name: str, device: torch.device, scale: Scale) -> dict[str, float]:
    """Return the seconds of the set-up, of the first and of the second step, in this process."""
    size = WORKLOADS[model_name].sizes[scale]
    model, batch = make(size, size.batch_size, device=device, seed=0)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # torch loads its compiler with the first optimizer
    precision = Precision.TF32 if device.type == "cuda" else Precision.FP32
    with precision.applied():
        times = [now(device)]
        running = CONTENDERS[contender_name].setup(copy.deepcopy(model), Settings(logical_batch=size.batch_size))
        times.append(now(device))
        for _ in range(2):
            running.step([batch])
            times.append(now(device))
    return dict(
        zip(("setup", "first", "second"), (end - start for start, end in itertools.pairwise(times)), strict=True)
    )


def _alone(model: str, contender: str, device: str, scale: str, threads: int, kernels: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.first_step", "--alone", "--models", model, "--contenders", contender]
    command += ["--device", device, "--scale", scale, "--threads", str(threads)]
    chosen = os.environ | {"TRITON_CACHE_DIR": kernels, CACHE_VARIABLE: kernels}
    done = subprocess.run(  # noqa: S603 -- this program itself, with names from its own lists
        command, env=chosen, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{contender} failed on {model}:\n{done.stderr}")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def compare(models: list[str], contenders: list[str], device: str, scale: str, threads: int) -> list[dict[str, Any]]:
    """Run every contender twice on every model, in separate processes, plain training first."""
    rows: list[dict[str, Any]] = []
    for model in models:
        plain: dict[str, float] | None = None
        with tempfile.TemporaryDirectory() as folder:
            for contender in dict.fromkeys([_BASELINE, *contenders]):
                kernels = str(Path(folder, contender))
                new, again = (_alone(model, contender, device, scale, threads, kernels) for _ in range(2))
                # Only the first process reads libraries from the disk: the faster process of plain training counts.
                plain = plain or min(new, again, key=_whole)
                later = {"later": _whole(new) - _whole(plain), "later again": _whole(again) - _whole(plain)}
                rows.append({"model": model, "contender": contender, "new": new, "again": again, **later})
                click.echo(
                    f"{model:10} {contender:20} set-up {new['setup']:.2f} s, first step {new['first']:.2f} s, second "
                    f"{new['second']:.2f} s; later than plain by {later['later']:.2f} s, once kernels are built by "
                    f"{later['later again']:.2f} s"
                )
    return rows


def _whole(times: dict[str, float]) -> float:
    return times["setup"] + times["first"]


@click.command()
@click.option("--models", default=",".join(WORKLOADS), show_default=True, help="Short names, comma-separated.")
@click.option("--contenders", default="privet_bookkeeping", show_default=True, help="In addition to plain training.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--threads", default=1, show_default=True, help="Processor threads.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--alone", is_flag=True, hidden=True, help="Measure in this process.")
def main(
    models: str, contenders: str, device: str, scale: str | None, threads: int, json_file: Path | None, alone: bool
) -> None:
    """Compare first steps, each in a new process."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    scale = scale or (Scale.ACCELERATOR if device == "cuda" else Scale.PROCESSOR).value
    if alone:
        warnings.simplefilter("ignore")
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device=device).sum().item()  # the start of the device is not measured
        click.echo(json.dumps(first_step(models, contenders, torch.device(device), Scale(scale))))
        return
    rows = compare(models.split(","), contenders.split(","), device, scale, threads)
    if json_file is not None:
        about = environment(torch.device(device), num_threads=threads)
        json_file.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
