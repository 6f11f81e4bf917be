"""Kernels against plain torch, under triton's interpreter, so that they are checked on machines without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.script_checks import check_interpreted


@pytest.mark.parametrize(
    ("script", "says"),
    [
        pytest.param("kernel_check.py", "all kernels agree", id="every kernel equals its plain counterpart"),
        pytest.param("rehearsal_check.py", "every kernel was foreseen", id="a rehearsal foresees every kernel"),
    ],
)
def test_checks_under_the_interpreter_pass(script: str, says: str) -> None:
    check_interpreted(Path(__file__).with_name(script), says)
