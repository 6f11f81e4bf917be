"""Fixtures that the tests of the library have, too."""

from __future__ import annotations

from tests.cli.conftest import ask
from tests.runs.conftest import run_folder, tiny

__all__ = ["ask", "run_folder", "tiny"]
