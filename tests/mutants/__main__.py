"""``python -m tests.mutants``: try every mutant and print who noticed it; fails if one survives or is out of date."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.record import RECORD, Entry, name_of_test, read_record, write_record
from tests.mutants.running import Fate, Outcome, laboratory
from tests.mutants.table import MUTANTS

_NAME, _TEST = 48, 100


def _line(outcome: Outcome) -> str:
    killer = outcome.killer.removeprefix("tests/")
    return f"{outcome.mutant.name:<{_NAME}} {outcome.fate.value:<9}{outcome.seconds:6.1f} s  {killer[:_TEST]}"


def _chosen(words: list[str]) -> list[Mutant]:
    return [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]


def _one_after_another(mutants: list[Mutant]) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="privet-mutants-") as folder, laboratory(Path(folder)) as room:
        for mutant in mutants:
            yield room.try_out(mutant)


def _all(mutants: list[Mutant]) -> list[Outcome]:
    return list(_one_after_another(mutants))


def _outcomes(mutants: list[Mutant], workers: int) -> Iterator[Outcome]:
    """Yield what became of each; a worker takes a few at a time into a copy of the library of its own."""
    if workers == 1:
        yield from _one_after_another(mutants)
        return
    parts = [mutants[start : start + 3] for start in range(0, len(mutants), 3)]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for part in pool.imap(_all, parts):
            yield from part


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="try only mutants whose name contains one of these words")
    parser.add_argument("--record", action="store_true", help=f"store what came out in {RECORD.relative_to(ROOT)}")
    parser.add_argument("--workers", type=int, default=1, help="mutants tried side by side")
    asked = parser.parse_args()
    outcomes = []
    for outcome in _outcomes(_chosen(asked.words), asked.workers):
        outcomes.append(outcome)
        sys.stdout.write(_line(outcome) + "\n")
        sys.stdout.flush()
        if asked.record:
            entry = Entry(fate=outcome.fate.value, killer=name_of_test(outcome.killer))
            write_record(MUTANTS, read_record() | {outcome.mutant.name: entry})
    num_killed = sum(outcome.fate is Fate.KILLED for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    sys.stdout.write(f"\n{num_killed} of {len(outcomes)} mutants killed in {seconds:.0f} s\n")
    for outcome in outcomes:
        if outcome.fate is not Fate.KILLED:
            sys.stdout.write(f"{outcome.fate.value}: {outcome.mutant.name}: {outcome.mutant.breaks}\n")
    return 0 if outcomes and num_killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
