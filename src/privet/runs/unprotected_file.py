"""The file of values that the guarantee does not cover: one JSON line per step, readable by its owner only."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from privet.runs.json_lines import JsonLines
from privet.training.telemetry import Unprotected


class UnprotectedFile:
    """A receiver of telemetry that appends to a file. It creates the file with the first value."""

    def __init__(self, path: Path) -> None:
        self.newest_loss: float | None = None
        self._lines = JsonLines(path)

    def __call__(self, values: Unprotected) -> None:
        """Append one step's values; numbers that are not finite are written as absent."""
        self.newest_loss = values.mean_loss
        self._lines.append(asdict(values))

    def close(self) -> None:
        """Close the file; harmless when nothing was written."""
        self._lines.close()
