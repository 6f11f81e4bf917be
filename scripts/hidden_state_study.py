"""Run the studies hidden-state-mnist and hidden-state-cifar10 in several processes, one JSON line per run.

    PRIVET_DATA=... python scripts/hidden_state_study.py --out results/hidden_state --workers 8

Runs that are in OUT/rows.jsonl already are not repeated, so the command can be broken off and given again, or cut up
with --dataset, --epsilon, --arm and --seeds. On a GPU several workers share it: one run alone leaves it mostly idle.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from privet.experiments.building import choose_device
from privet.experiments.studies.hidden_state import ARMS, Row, Setting, run_arm
from privet.experiments.studies.hidden_state_table import hidden_state_table

Job = tuple[str, Setting, int]


def run_job(job: Job, device: str, num_threads: int) -> Row:
    """Run one job in a worker process."""
    import torch

    torch.set_num_threads(num_threads)
    arm, setting, seed = job
    return run_arm(arm, setting, seed=seed, device=choose_device(device))


def jobs(settings: Sequence[Setting], arms: Sequence[str], num_seeds: int) -> Iterator[Job]:
    """List every run, those of one seed together, so that a broken-off table is complete for its first seeds."""
    for seed in range(num_seeds):
        for setting in settings:
            for arm in arms:
                yield arm, setting, seed


def carried_out(waiting: Sequence[Job], *, device: str, workers: int, threads: int) -> Iterator[dict[str, Any]]:
    """Run jobs in processes of their own and yield their rows as they come."""
    began = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(run_job, job, device, threads) for job in waiting]
        for number, finished in enumerate(as_completed(running), start=1):
            row = finished.result().to_dict()
            print(
                f"{number}/{len(waiting)} {row['dataset']} {row['epsilon_target']:g} {row['arm']} seed {row['seed']}: "
                f"{row['accuracy']:.4f}, {row['seconds']:.0f} s ({time.monotonic() - began:.0f} s in all)",
                flush=True,
            )
            yield row


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what names a run."""
    return tuple(row[name] for name in ("arm", "dataset", "epsilon_target", "epochs", "seed", "asked_rate", "decay"))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the rows and the table.")
@click.option("--dataset", "datasets", multiple=True, default=("mnist", "cifar10"), show_default=True)
@click.option("--epsilon", "epsilons", type=float, multiple=True, default=(4.76, 1.33), show_default=True)
@click.option("--arm", "arms", multiple=True, default=tuple(ARMS), show_default=True)
@click.option("--seeds", type=int, default=5, show_default=True)
@click.option("--epochs", type=int, default=400, show_default=True)
@click.option("--rate", "rates", type=float, multiple=True, help="Learning rates to try instead of each arm's own.")
@click.option("--decay", type=float, default=Setting().decay, show_default=True, help="Learning rate times ridge.")
@click.option("--workers", type=int, default=1, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of each worker.")
@click.option("--device", default="auto", show_default=True)
def main(
    out: Path,
    datasets: tuple[str, ...],
    epsilons: tuple[float, ...],
    arms: tuple[str, ...],
    seeds: int,
    epochs: int,
    rates: tuple[float, ...],
    decay: float,
    workers: int,
    threads: int,
    device: str,
) -> None:
    """Run what is missing, then write the table of everything there is."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {key_of(row) for row in rows}
    bases = [
        Setting(dataset=name, epsilon=epsilon, epochs=epochs, decay=decay) for name in datasets for epsilon in epsilons
    ]
    settings = [replace(base, learning_rate=rate) for base in bases for rate in (rates or (None,))]
    waiting = [
        job
        for job in jobs(settings, arms, seeds)
        if (job[0], job[1].dataset, job[1].epsilon, epochs, job[2], job[1].learning_rate, decay) not in done
    ]
    with path.open("a") as file:
        for row in carried_out(waiting, device=device, workers=workers, threads=threads):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    written = hidden_state_table(rows)
    (out / "table.md").write_text(written)
    print(written)


if __name__ == "__main__":
    main()
