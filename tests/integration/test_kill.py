"""Real training, killed without warning at random moments: the ledger charges at least what was released."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import privet


def tally_of(folder: Path, num_kills: int) -> dict[str, Any]:
    # Other moments every time; the seed is printed for whoever wants the same ones again.
    seed = secrets.randbits(32)
    sources = Path(privet.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("nursery.py")), str(folder), str(num_kills), str(seed)],
        env={**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=30 + 10 * num_kills,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    sys.stdout.write(f"seed {seed}: {found}\n{done.stderr}")
    return found


def check(found: dict[str, Any], num_kills: int) -> None:
    assert found["kills"] == num_kills
    assert found["runs_finished"] >= 1
    assert found["looks"] > num_kills
    # kills that all come before the first release, or all after the last, would show nothing
    assert found["kills_before_a_release"] < num_kills / 2
    assert found["largest_over_count"] > 0
    assert found["under_counts"] == 0
    assert found["beyond_the_plan"] == 0
    assert found["over_count_too_large"] == 0
    assert found["unreadable"] == []
    assert found["failed_children"] == 0


@pytest.mark.parametrize(
    "num_kills", [12, pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.slow)]
)
def test_a_training_killed_at_random_moments_is_never_under_counted_and_ends(
    tmp_path: Path, num_kills: int, record_property: Callable[[str, object], None]
) -> None:
    found = tally_of(tmp_path, num_kills)
    record_property("kills", found["kills"])
    record_property("under-counts", found["under_counts"])
    record_property("largest over-count in steps", found["largest_over_count"])
    check(found, num_kills)
