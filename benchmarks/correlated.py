"""The time of a private step with correlated noise, beside one with independent noise.

    python -m benchmarks.correlated --models lora,minilm_lora --json-file results/benchmarks/correlated_h200.json
    python -m benchmarks.correlated --models lora --scale tiny --device cpu --rounds 4

All kinds of noise train the same network on the same batches in a fixed order, each in a session of its own, and take
turns step by step. ``banded`` keeps the noise of earlier steps. ``inverse`` keeps earlier draws, as the default is for
small vectors; ``inverse_again`` makes them again, as the default is for large ones.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.machine import Precision, environment
from benchmarks.measure import make
from benchmarks.models import Scale, losses_of
from benchmarks.names import pick
from benchmarks.pairs import now
from benchmarks.public import CASES, Case
from privet.mechanism import correlated_noise
from privet.mechanism.noise import Noise

PLAIN = "independent"
AGAIN = "inverse_again"
_WARM_UP = 8


def kinds(bands: int, steps: int) -> dict[str, Noise]:
    """Return the kinds of noise, independent noise first; an epoch has as many batches as there are bands."""
    inverse = pv.noise.BandedInverseGaussian.square_root(bands=bands, batches=bands, epochs=-(-steps // bands))
    found: dict[str, Noise] = {
        PLAIN: pv.Gaussian(noise_multiplier=1.0),
        "banded": pv.noise.BandedGaussian.square_root(bands=bands).with_multiplier(1.0),
        "inverse": inverse.with_multiplier(1.0),
    }
    found[AGAIN] = found["inverse"]
    return found


def run_of(noise: Noise, case: Case, scale: Scale, device: torch.device, bands: int, steps: int) -> Any:
    """Return a session that trains the case with this noise, and its loss function; not opened."""
    size = case.workload.sizes[scale]
    model, (inputs, labels) = make(size, size.batch_size * bands, device=device, seed=0)
    trained = [value for value in model.parameters() if value.requires_grad]
    plan = pv.Plan(
        sampling=pv.sampling.Cyclic(
            batches=bands, epochs=-(-steps // bands), expected_batch_size=float(size.batch_size)
        ),
        clipping=pv.Threshold(norm=1.0),
        noise=noise,
        delta=1e-6,
        adjacency=pv.Adjacency.ZERO_OUT,
        unit=pv.Unit.RECORD,
    )
    session = pv.privatize(
        model,
        torch.optim.SGD(trained, lr=1e-3, momentum=0.9),
        TensorDataset(inputs, labels),
        plan,
        performance=pv.Performance(physical_batch_size=size.batch_size),
    )
    return session, _losses(model), sum(value.numel() for value in trained)


def _losses(model: nn.Module) -> Any:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return losses_of(model(inputs), labels)

    return losses


def measure(case: Case, scale: Scale, device: torch.device, *, bands: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of a step of each kind, and its extra time over that of independent noise."""
    steps = _WARM_UP + bands + rounds  # so that every timed step has all its bands
    times: dict[str, list[float]] = {}
    coordinates = 0
    with ExitStack() as stack, case.precision.applied() if device.type == "cuda" else Precision.FP32.applied():
        walks: dict[str, tuple[Iterator[Any], Any]] = {}
        for name, noise in kinds(bands, steps).items():
            freely_kept = 0 if name == AGAIN else correlated_noise.FREELY_KEPT
            with patch.object(correlated_noise, "FREELY_KEPT", freely_kept):
                session, losses, coordinates = run_of(noise, case, scale, device, bands, steps)
            stack.enter_context(session)
            walks[name] = iter(session.steps()), losses
            times[name] = []
        for number in range(steps):
            order = list(walks) if number % 2 else list(walks)[::-1]
            for name in order:
                walk, losses = walks[name]
                step = next(walk)
                start = now(device)
                step.accumulate(losses)
                step.update()
                found = now(device) - start
                if number >= steps - rounds:
                    times[name].append(found)
    plain = times[PLAIN]
    rows = []
    for name, own in times.items():
        shares = sorted((mine - other) / statistics.median(plain) for mine, other in zip(own, plain, strict=True))
        away = int(1.96 * rounds**0.5 / 2) + 1
        middle = rounds // 2
        rows.append(
            {
                "noise": name,
                "seconds": statistics.median(own),
                "extra": statistics.median(shares),
                "extra_low": shares[max(0, middle - away)],
                "extra_high": shares[min(rounds - 1, middle + away)],
            }
        )
    return {"model": case.name, "coordinates": coordinates, "bands": bands, "rounds": rounds, "rows": rows}


@click.command()
@click.option("--models", default="lora,minilm_lora", show_default=True, help="Short names, comma-separated.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--bands", default=32, show_default=True, help="Bands of the correlated kinds.")
@click.option("--rounds", default=40, show_default=True, help="Timed steps of every kind.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write the record here.")
def main(models: str, scale: str | None, device: str, bands: int, rounds: int, json_file: Path | None) -> None:
    """Measure what correlated noise adds to a step."""
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    chosen = Scale(scale) if scale else (Scale.ACCELERATOR if where.type == "cuda" else Scale.PROCESSOR)
    found: dict[str, Any] = {"machine": environment(where, num_threads=torch.get_num_threads()), "models": []}
    for case in pick("models", CASES, models):
        result = measure(case, chosen, where, bands=bands, rounds=rounds)
        found["models"].append(result)
        for row in result["rows"]:
            click.echo(
                f"{result['model']:8} {row['noise']:14} {1e3 * row['seconds']:8.2f} ms  {100 * row['extra']:+6.2f} % "
                f"({100 * row['extra_low']:+.2f} to {100 * row['extra_high']:+.2f})"
            )
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
