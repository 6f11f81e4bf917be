"""Running tests against a copy of the library in which one thing is wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import dp_accounting.pld  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch

from tests.mutants.mutant import PACKAGE, ROOT, Mutant, StaleMutant

# The packages above are loaded once, and every mutant's process is a copy of this one.
_COPIED = ("research/src", "scripts", "src", "tests")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# What pytest's exit status says: some test failed, or all passed. Anything else is no verdict on the mutant.
_SOME_FAILED, _ALL_PASSED, _NO_VERDICT = 1, 0, 70
_OURS = ("privet", "tests")
_PATIENCE = 1800.0


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

    def run(self, tests: Sequence[str], *options: str) -> tuple[int, str]:
        """Run tests of the copy in a process of its own; return pytest's exit status and what it printed."""
        printed = self.folder / "printed.txt"
        child = os.fork()
        if child == 0:
            os._exit(_in_the_child(self.folder, printed, [*options, *tests]))
        status = _awaited(child)
        return status, printed.read_text(encoding="utf-8", errors="replace")

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


def _in_the_child(folder: Path, printed: Path, arguments: Sequence[str]) -> int:
    """Run pytest as a fresh process would, but with torch and the other large packages loaded already."""
    status = _NO_VERDICT
    try:
        with printed.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(folder)
        for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
            del sys.modules[name]
        # What is imported from here on is the copy's.
        sys.path[:] = [str(folder), *(entry for entry in sys.path if not _is_ours(entry))]
        # No compiled files: two mutants of one file may have one length and one second of change.
        sys.dont_write_bytecode = True
        for name in [name for name in os.environ if name.startswith(("PYTEST_", "COV_"))]:
            del os.environ[name]
        status = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", *arguments]))
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 (told and turned into a status: a child must not return)
        os.write(2, traceback.format_exc().encode())
    finally:
        # Nothing of the parent may run in the child, whatever happened.
        os._exit(status)


def _is_ours(entry: str) -> bool:
    return Path(entry or os.curdir).resolve() in (ROOT, ROOT / "src", ROOT / "research" / "src")


def _awaited(child: int) -> int:
    """Wait for a child and return its exit status; one that takes too long is ended."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return _NO_VERDICT
        time.sleep(0.05)


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
    torch.set_num_threads(1)
    for name in _COPIED:
        # Times are kept, so that compiled files stay valid and a copy starts as fast as the original.
        shutil.copytree(ROOT / name, folder / name)
    for name in ("conftest.py", "constraints.txt", "pyproject.toml", "research/pyproject.toml"):
        shutil.copy2(ROOT / name, folder / name)
    assert (folder / PACKAGE / "__init__.py").is_file()
    yield Laboratory(folder=folder)
