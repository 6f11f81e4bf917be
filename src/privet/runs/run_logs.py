"""The logs of a run, one JSON line per step: public values always, unprotected values where they may be shown."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privet.accounting.guarantee import Guarantee
from privet.errors import CheckpointError
from privet.runs.measures import CurvePoint
from privet.training.telemetry import Unprotected
from privet.training.tracking.progress import StepUpdate


class StepLog:
    """Appends every step to a file.

    Guarantee:
        A line holds the step's number, the learning rate and the masked share, and at some steps the epsilon spent by
        then: all known before any data is read, or released and accounted. No loss, no batch size, and no time, which
        would reveal how many examples the step had.
    Edge cases: a line without epsilon says that it was not computed there; a run without privacy spends "infinity".
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """Write nothing before a step."""

    def stepped(self, update: StepUpdate) -> None:
        """Append one line."""
        spent = update.epsilon_spent
        known = {} if spent is None else {"epsilon": "infinity" if math.isinf(spent) else spent}
        self._lines.append(
            {
                "step": update.step,
                **known,
                "learning_rate": update.learning_rate,
                "masked_share": update.masked_share,
            }
        )

    def evaluated(self, point: CurvePoint) -> None:
        """Write nothing: measures have their own file."""

    def ended(self) -> None:
        """Close the file."""
        self._lines.close()


class UnprotectedFile:
    """Appends the values that the guarantee does not cover to a file. The first value creates the file."""

    def __init__(self, path: Path) -> None:
        self.newest_loss: float | None = None
        self._lines = JsonLines(path)

    def __call__(self, values: Unprotected) -> None:
        self.newest_loss = values.mean_loss
        self._lines.append(asdict(values))

    def close(self) -> None:
        self._lines.close()


class JsonLines:
    """Appends plain values, one line each, readable by the file's owner only. The first line creates the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def append(self, values: Mapping[str, Any]) -> None:
        """Append one line; numbers that are not finite are written as null.

        Raises:
            CheckpointError: the disk refuses.
        """
        row = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            if self._handle is None:
                self._handle = self._open()
            if os.write(self._handle, line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise CheckpointError(
                f"Could not write {self._path}: {error.strerror}. Free space, then run the same command "
                "again to resume."
            ) from error

    def _open(self) -> int:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        # A process that was killed may have left half a line, which the next line would make unreadable.
        size = os.fstat(handle).st_size
        tail = os.pread(handle, 4096, max(0, size - 4096))
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            os.ftruncate(handle, size - len(tail) + whole)
        return handle

    def close(self) -> None:
        """Close the file; harmless when nothing was written."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
