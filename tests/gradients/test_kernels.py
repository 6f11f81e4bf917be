"""Kernels against plain torch, under triton's interpreter, so that they are checked on machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("kernel_check.py")


def test_every_kernel_equals_its_plain_counterpart() -> None:
    # the interpreter is chosen when triton is imported, so the check runs in a process of its own
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all kernels agree" in result.stdout
