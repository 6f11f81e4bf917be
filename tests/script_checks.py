"""Scripts that check kernels: triton's interpreter is chosen at its import, so each runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def check_interpreted(script: Path, says: str) -> None:
    """Run a script under triton's interpreter; skipped where triton is not installed."""
    pytest.importorskip("triton")
    _run(script, says, os.environ | {"TRITON_INTERPRET": "1"})


def check_on_a_device(script: Path, says: str) -> None:
    """Run a script on a CUDA device; skipped without one."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    _run(script, says, dict(os.environ))


def _run(script: Path, says: str, environment: dict[str, str]) -> None:
    command = [sys.executable, str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert says in result.stdout
