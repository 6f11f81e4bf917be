"""Running tests against a copy of the library in which one thing is wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutants.mutant import PACKAGE, ROOT, Mutant, StaleMutant

_COPIED = ("src", "tests")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# What pytest's exit status says: some test failed, or all passed. Anything else is no verdict on the mutant.
_SOME_FAILED, _ALL_PASSED = 1, 0


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    STALE = "STALE"
    BROKEN = "BROKEN"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one mutant.

    Attributes:
        mutant: Which one.
        fate: What became of it.
        killer: The test that failed first, or why there is no verdict.
        seconds: How long it took.
    """

    mutant: Mutant
    fate: Fate
    killer: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Laboratory:
    """A copy of the library and its tests, in which one mutant after another is tried."""

    folder: Path

    def run(self, tests: Sequence[str], *options: str, timeout: float = 900) -> tuple[int, str]:
        """Run tests of the copy in a process of its own; return the exit status and what was printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *options, *tests]
        # No compiled files are written: two mutants of one file may have one length and one second of change.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        # The copy must be found by its own settings alone.
        environment.pop("PYTHONPATH", None)
        for name in [name for name in environment if name.startswith(("PYTEST_", "COV_"))]:
            environment.pop(name)
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def try_out(self, mutant: Mutant) -> Outcome:
        """Make a mutant, run the tests that must notice it, and undo it."""
        began = time.monotonic()
        try:
            changed = mutant.files(self.folder)
        except StaleMutant as error:
            return Outcome(mutant=mutant, fate=Fate.STALE, killer=str(error), seconds=0.0)
        kept = {path: (self.folder / path).read_bytes() for path in changed}
        try:
            for path, text in changed.items():
                (self.folder / path).write_text(text, encoding="utf-8")
            status, printed = self.run(mutant.killed_by, "-x")
        finally:
            for path, original in kept.items():
                (self.folder / path).write_bytes(original)
        fate, killer = _verdict(status, printed)
        return Outcome(mutant=mutant, fate=fate, killer=killer, seconds=time.monotonic() - began)


def _verdict(status: int, printed: str) -> tuple[Fate, str]:
    found = _FAILED.search(printed)
    if status == _SOME_FAILED and found is not None:
        return Fate.KILLED, found[1]
    if status == _ALL_PASSED:
        return Fate.SURVIVED, "no test failed"
    return Fate.BROKEN, f"pytest ended with status {status}: {printed.strip()[-200:]!r}"


@contextmanager
def laboratory(folder: Path) -> Iterator[Laboratory]:
    """Copy the library and its tests into an empty folder."""
    for name in _COPIED:
        # Times are kept, so that compiled files stay valid and a copy starts as fast as the original.
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder / name)
    assert (folder / PACKAGE / "__init__.py").is_file()
    yield Laboratory(folder=folder)
