"""Run the comparison of noisy cyclic descent with its rivals, one JSON line per run, and a table at the end.

    PRIVET_DATA=... python scripts/convex_table.py --out results/convex --workers 8

Runs that are in OUT/rows.jsonl already are not repeated, so the command can be broken off and given again, or cut up
with --dataset, --epsilon, --arm and --seeds. On a GPU several workers share it: one run alone leaves it mostly idle.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from privet.experiments.building import choose_device
from privet.experiments.convex_table import ARMS, Row, Setting, recomputed_epsilons, run_arm

Job = tuple[str, Setting, int]
CLAIMED = {1.33: 15.0, 4.76: 5.0}
BATCHES = {"mnist": 60, "cifar10": 50}


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


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what names a run."""
    return tuple(row[name] for name in ("arm", "dataset", "epsilon_target", "epochs", "seed", "asked_rate"))


def plain(row: Row) -> dict[str, Any]:
    """Return the row as it is written; the target and the proven epsilon are two things."""
    asked = row.setting
    return row.to_dict() | {"epsilon_target": asked.epsilon, "epsilon": row.epsilon, "asked_rate": asked.learning_rate}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table: one line per data set, epsilon and arm."""
    lines = [
        "| data | target | method | proven epsilon | claimed epsilon | noise | accuracy | runs | examples/s | status |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        name = (row["dataset"], row["epsilon_target"], row["epochs"], row["arm"], row["asked_rate"])
        groups.setdefault(name, []).append(row)
    for (dataset, target, epochs, arm, rate), members in sorted(groups.items(), key=str):
        first = members[0]
        shares = [100 * member["accuracy"] for member in members]
        spread = f" ± {statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
        fast = statistics.median(member["examples_per_second"] for member in members)
        label = f"{arm}, {epochs} epochs" + ("" if rate is None else f", rate {rate:g}")
        lines.append(
            f"| {dataset} | {target:g} | {label} | {first['epsilon']:.4g} | {first['epsilon_claimed']:.4g} | "
            f"{first['noise_multiplier']:.3f} | {statistics.mean(shares):.2f}{spread} | {len(members)} | "
            f"{fast:,.0f} | {first['status']} |"
        )
    return "\n".join(lines) + "\n"


def recomputed() -> str:
    """Return what the published noise costs by honest accounting."""
    lines = ["| data | published noise | published epsilon | cyclic, last iterate | Poisson |", "|---|---|---|---|---|"]
    for dataset, batches in BATCHES.items():
        for epsilon, noise in CLAIMED.items():
            found = recomputed_epsilons(
                batches=batches, epochs=400, noise_multiplier=noise, delta=1e-5, decay=Setting().decay
            )
            cells = [f"{value:.4f}" for value in found.values()]
            lines.append(f"| {dataset} | {noise:g} | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the rows and the table.")
@click.option("--dataset", "datasets", multiple=True, default=("mnist", "cifar10"), show_default=True)
@click.option("--epsilon", "epsilons", type=float, multiple=True, default=(4.76, 1.33), show_default=True)
@click.option("--arm", "arms", multiple=True, default=tuple(ARMS), show_default=True)
@click.option("--seeds", type=int, default=5, show_default=True)
@click.option("--epochs", type=int, default=400, show_default=True)
@click.option("--rate", "rates", type=float, multiple=True, help="Learning rates to try instead of each arm's own.")
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
    workers: int,
    threads: int,
    device: str,
) -> None:
    """Run what is missing, then write the table of everything there is."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {key_of(row) for row in rows}
    bases = [Setting(dataset=name, epsilon=epsilon, epochs=epochs) for name in datasets for epsilon in epsilons]
    settings = [replace(base, learning_rate=rate) for base in bases for rate in (rates or (None,))]
    waiting = [
        job
        for job in jobs(settings, arms, seeds)
        if (job[0], job[1].dataset, job[1].epsilon, epochs, job[2], job[1].learning_rate) not in done
    ]
    began = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool, path.open("a") as file:
        running = [pool.submit(run_job, job, device, threads) for job in waiting]
        for number, finished in enumerate(as_completed(running), start=1):
            row = plain(finished.result())
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(
                f"{number}/{len(waiting)} {row['dataset']} {row['epsilon_target']:g} {row['arm']} seed {row['seed']}: "
                f"{row['accuracy']:.4f}, {row['seconds']:.0f} s ({time.monotonic() - began:.0f} s in all)",
                flush=True,
            )
    written = f"{table(rows)}\n{recomputed()}"
    (out / "table.md").write_text(written)
    print(written)


if __name__ == "__main__":
    main()
