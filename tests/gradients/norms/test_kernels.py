"""Kernels against plain torch, under triton's interpreter, so that they are checked on machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        pytest.param("kernel_check.py", "all kernels agree", id="every kernel equals its plain counterpart"),
        pytest.param("rehearsal_check.py", "every kernel was foreseen", id="a rehearsal foresees every kernel"),
    ],
)
def test_checks_under_the_interpreter_pass(script: str, says: str) -> None:
    # the interpreter is chosen when triton is imported, so the check runs in a process of its own
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, str(Path(__file__).with_name(script))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert says in result.stdout
