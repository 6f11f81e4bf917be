"""Units of work: the smallest parts of a reproduction that are kept, each in a file that is there whole or not at all.

A unit that is there is never run again, whichever table or figure asks for it: several of them share a study.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.errors import DataError, DependencyError
from privet.runs.run_files import read_json, write_json
from privet_research.reproduction.entry import Profile
from privet_research.reproduction.pieces import WHOLE, pieces_of
from privet_research.reproduction.provenance import commit
from privet_research.studies.catalogue import find_study
from privet_research.studies.study import Row

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One part of one study at one profile.

    Attributes:
        study: Name of the study.
        piece: Name of the part of the study.
        seeds: Seeds it is run with.
        profile: Full or quick.
    """

    study: str
    piece: str
    seeds: tuple[int, ...]
    profile: Profile

    @property
    def title(self) -> str:
        """What a user is told."""
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        return f"{self.study}, {seeds}" if self.piece == WHOLE else f"{self.study}, {self.piece}, {seeds}"

    def path(self, folder: Path) -> Path:
        """Return where its rows are kept below the user's folder."""
        seeds = "-".join(str(seed) for seed in (self.seeds[0], *self.seeds[-1:][: len(self.seeds) - 1]))
        # A short digest keeps two pieces apart whose names differ in signs that a file name cannot hold.
        plain = re.sub(r"[^A-Za-z0-9.]+", "_", self.piece)
        digest = hashlib.sha256(self.piece.encode()).hexdigest()[:6]
        name = f"seed-{seeds}" if self.piece == WHOLE else f"{plain}-{digest}-seed-{seeds}"
        return folder / self.profile.value / "rows" / self.study / f"{name}.json"


def units_of(study: str, *, num_seeds: int, profile: Profile) -> list[Unit]:
    """Return the units of a study, seed after seed."""
    quick = profile is Profile.QUICK
    pieces = pieces_of(find_study(study))
    groups = [(seed,) for seed in range(num_seeds)] if pieces.by_seed else [tuple(range(num_seeds))]
    return [
        Unit(study=study, piece=piece, seeds=seeds, profile=profile) for seeds in groups for piece in pieces.runs(quick)
    ]


def kept_rows(unit: Unit, folder: Path) -> dict[str, Any] | None:
    """Return what is kept of a unit; None if it has not been run to its end.

    Raises:
        DataError: a file of this name holds something else.
    """
    path = unit.path(folder)
    if not path.exists():
        return None
    kept = read_json(path)
    asked = {"study": unit.study, "piece": unit.piece, "seeds": list(unit.seeds), "profile": unit.profile.value}
    if any(kept.get(key) != value for key, value in asked.items()) or not isinstance(kept.get("rows"), list):
        raise DataError(f"{path} does not hold the rows of {unit.title}. Move it elsewhere, or name another folder.")
    return kept


def run_unit(unit: Unit, folder: Path, device_name: str) -> float:
    """Run one unit to its end, keep its rows, and return the seconds it took.

    A study that can go on after some of its rows keeps each row at once, in a file beside the unit's, so that an
    interrupted unit loses one run at most.
    """
    from privet.runs.building import choose_device
    from privet.runs.environment import describe_environment

    device, quick = choose_device(device_name), unit.profile is Profile.QUICK
    path = unit.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    study, unfinished = find_study(unit.study), path.with_name(f"{path.stem}.unfinished.json")
    resume = study.resume if unit.piece == WHOLE else None
    earlier = read_json(unfinished) if resume is not None and unfinished.exists() else {}
    run = pieces_of(study).runs(quick)[unit.piece] if resume is None else resume(earlier.get("rows", []))
    began, worked, rows = time.monotonic(), time.process_time(), list[Row]()

    def kept() -> dict[str, Any]:
        return {
            "study": unit.study,
            "piece": unit.piece,
            "seeds": list(unit.seeds),
            "profile": unit.profile.value,
            "seconds": round(earlier.get("seconds", 0.0) + time.monotonic() - began, 1),
            # What it would take alone on this machine: wall time also counts waiting for other work.
            "processor_seconds": round(earlier.get("processor_seconds", 0.0) + time.process_time() - worked, 1),
            "commit": commit(),
            "environment": describe_environment(device),
            "rows": rows,
        }

    for row in run(unit.seeds, device, quick):
        rows.append(row)
        if resume is not None and len(rows) > len(earlier.get("rows", [])):
            write_json(unfinished, kept())
    whole = kept()
    write_json(path, whole)
    unfinished.unlink(missing_ok=True)
    return float(whole["seconds"])


def run_missing(units: Sequence[Unit], folder: Path, *, device: str, num_workers: int, say: Say) -> dict[Unit, str]:
    """Run the units that are not kept yet; return those that could not be run, each with the reason.

    What the machine lacks (data, a package) is a reason, not an error: other units go on. Everything else is raised.
    """
    asked = list(dict.fromkeys(units))
    missing = [unit for unit in asked if kept_rows(unit, folder) is None]
    if len(asked) > len(missing):
        say(f"{len(asked) - len(missing)} of {len(asked)} parts are kept already.")
    outcomes = (_alone if num_workers == 1 or len(missing) < 2 else _side_by_side)(
        missing, folder, device, min(num_workers, len(missing))
    )
    failures = {}
    for place, (unit, seconds, reason) in enumerate(outcomes, start=1):
        said = f"{seconds:.1f} s" if reason is None else f"not run: {reason}"
        say(f"[{place}/{len(missing)}] {unit.title}: {said}")
        if reason is not None:
            failures[unit] = reason
    return failures


Outcome = tuple[Unit, float, str | None]


def _outcome(unit: Unit, folder: Path, device: str) -> Outcome:
    try:
        return unit, run_unit(unit, folder, device), None
    except (DataError, DependencyError) as error:
        return unit, 0.0, str(error)


def _alone(units: Sequence[Unit], folder: Path, device: str, num_workers: int) -> Iterator[Outcome]:
    for unit in units:
        yield _outcome(unit, folder, device)


def _side_by_side(units: Sequence[Unit], folder: Path, device: str, num_workers: int) -> Iterator[Outcome]:
    # Fresh processes: a forked one would inherit a device that it cannot use.
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // num_workers)
    pool = concurrent.futures.ProcessPoolExecutor(num_workers, context, initializer=_begin, initargs=(threads,))
    try:
        waiting = [pool.submit(_outcome, unit, folder, device) for unit in units]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()
    finally:
        # An interrupted command waits for what is running and begins nothing more; what is done is kept.
        pool.shutdown(cancel_futures=True)


def _begin(num_threads: int) -> None:
    import torch

    torch.set_num_threads(num_threads)
