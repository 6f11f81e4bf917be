"""Write results/isolation/coverage.md: train each architecture for a step, and compare with a loop of single examples.

Each architecture runs in a process of its own, forked from this one. Findings are kept in a file of JSON lines, so that
a run that was stopped goes on where it was.

Usage: HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 python -m scripts.coverage_table [--only PART ...] [--findings FILE]
    [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import multiprocessing
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

# Before anything imports transformers: nothing is downloaded.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tests.isolation.architecture import Architecture
from tests.isolation.architectures import COVERED
from tests.isolation.coverage import Coverage, Result, measure

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "transformers", "peft", "diffusers", "timm", "torchvision", "torch_geometric")
_HEAD = """# Architectures whose clipped sum is exact

Written by `HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 python -m scripts.coverage_table`; do not edit by hand. Each model is
small and has random weights. A private session takes one full-batch step with the bound at the median norm, and its
clipped sum is compared with a loop of single examples in plain torch, in double precision where the model takes that
(relative error at most 1e-5; 2e-3 in single precision). Dropout is off, and parameters that take no part in the loss
are frozen. An architecture *mixes* if plain torch gives other losses or gradients in a batch than for its single
examples.

{versions}

{counts}

"""


def _work(row: Architecture, connection: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries
    logging.disable(logging.WARNING)
    connection.send(measure(row))


def found_by_process(row: Architecture, limit: float) -> Coverage:
    """Measure one architecture in a process of its own."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_work, args=(row, theirs))
    process.start()
    theirs.close()
    begin, answer = time.monotonic(), None
    try:
        while time.monotonic() - begin < limit and process.is_alive() and not mine.poll(0.2):
            pass
        if mine.poll(0):
            answer = mine.recv()
    except EOFError:
        pass
    if answer is None and process.is_alive():
        process.kill()
        answer = Coverage(name=row.name, result=Result.CRASHED, message=f"no answer after {limit:.0f} seconds")
    process.join()
    return answer or Coverage(name=row.name, result=Result.CRASHED, message=f"exit code {process.exitcode}")


def _as_row(found: Coverage) -> dict[str, object]:
    return {**asdict(found), "result": found.result.name}


def _versions() -> str:
    found = [f"{name} {version(name)}" for name in _PACKAGES if importlib.util.find_spec(name)]
    return f"Python {platform.python_version()}, {', '.join(found)}."


def _table(rows: Iterable[dict[str, object]]) -> str:
    lines = ["| architecture | result | proven | error | message |", "|---|---|---|---|---|"]
    for row in rows:
        message = str(row["message"]).replace("|", "/").replace("\n", " ")[:400]
        error = "" if row["error"] != row["error"] else f"{row['error']:.0e}"
        is_proven = "yes" if row["is_proven"] else ""
        lines.append(f"| {row['name']} | {Result[str(row['result'])].value} | {is_proven} | {error} | {message} |")
    return "\n".join(lines) + "\n"


def _counts(rows: Sequence[dict[str, object]]) -> str:
    counts = Counter(str(row["result"]) for row in rows)
    apart = sum(counts.values()) - counts["MIXES"]
    words = ", ".join(f"{counts[kind.name]} {kind.value}" for kind in Result)
    share = f"{counts['EXACT']} of the {apart} that keep their examples apart are exact."
    return f"{len(rows)} architectures: {words}. {share}"


def main() -> None:
    """Measure all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of architectures")
    parser.add_argument("--findings", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--limit", type=float, default=180, help="seconds for one architecture")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name in _PACKAGES:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    known: dict[str, dict[str, object]] = {}
    if given.findings.exists():
        for line in given.findings.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            known[str(row["name"])] = row
    wanted = [
        row
        for row in COVERED
        if all(map(importlib.util.find_spec, row.needs))
        and (not given.only or any(part in row.name for part in given.only))
    ]
    with given.findings.open("a", encoding="utf-8") as file:
        for row in wanted:
            if row.name in known and not given.only:
                continue
            begin = time.monotonic()
            found = found_by_process(row, given.limit)
            known[row.name] = _as_row(found)
            file.write(json.dumps(known[row.name]) + "\n")
            file.flush()
            print(
                f"{time.monotonic() - begin:5.1f} s {found.result.name:8} {row.name}: {found.message[:300]}", flush=True
            )
    rows = [known[row.name] for row in wanted if row.name in known]
    print(_counts(rows))
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        text = _HEAD.format(versions=_versions(), counts=_counts(rows)) + _table(rows)
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
