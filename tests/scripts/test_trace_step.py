"""The path of one warm private step is as short as CONTRIBUTING.md says, so that a longer one is noticed."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.trace_step import by_function, traced

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
# The strategies that the planner finds fastest differ from machine to machine.
OF_STRATEGIES = 10


def test_one_warm_step_runs_through_no_more_functions_and_files_than_contributing_says() -> None:
    figures = re.search(r"about (\d+) functions in (\d+) files", CONTRIBUTING.read_text(encoding="utf-8"))
    assert figures is not None
    num_functions, num_files = map(int, figures.groups())
    found = by_function(traced())
    assert sum(map(len, found.values())) <= num_functions + OF_STRATEGIES
    assert len(found) <= num_files + 3
    # from the charge to the update
    for file, function in (
        ("accounting/ledger/ledger.py", "Ledger.reserve"),
        ("gradients/engines/clipper.py", "Clipper.finish"),
        ("training/randomness.py", "KeystreamNoise.add_normal"),
        ("training/release.py", "ChargedRelease.add_noise_and_compare"),
        ("mechanism/sums.py", "PrivateSum.write_gradients"),
    ):
        assert function in found[file]
