"""A file of JSON lines that is appended to while a run goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet.errors import CheckpointError


class JsonLines:
    """Appends plain values, one line each, readable by the file's owner only. The first line creates the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def append(self, values: Mapping[str, Any]) -> None:
        """Append one line; numbers that are not finite are written as absent.

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
