"""Atomic and durable file writes, also after a crash or on a full disk; and the folders of the user."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

STATE_VARIABLE = "PRIVET_STATE"
CACHE_VARIABLE = "PRIVET_CACHE"


def write_durably(path: Path, data: bytes, *, keep_previous: bool = False) -> None:
    """Replace the contents of a file atomically: write a new file, sync it, rename it, and sync the folder.

    Args:
        path: The file.
        data: The new contents.
        keep_previous: Keep the old contents as ``<name>.1``.

    Raises:
        OSError: the write failed. The old contents are unchanged and the new file is removed.
    """
    fresh, previous = path.with_name(path.name + ".new"), path.with_name(path.name + ".1")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep_previous and path.exists():
            previous.unlink(missing_ok=True)
            os.link(path, previous)
        os.replace(fresh, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def state_folder() -> Path:
    """Return the folder for state that stays on this machine: ``$PRIVET_STATE``, or the state folder of the user."""
    named = os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named).expanduser()
    given = os.environ.get("XDG_STATE_HOME")
    usual = Path(given or "~/.local/state").expanduser() / "privet"
    if sys.platform == "darwin" and not given and not usual.exists():
        return Path("~/Library/Application Support/privet").expanduser()
    return usual


def cache_folder() -> Path:
    """Return the folder for what can be found out again: ``$PRIVET_CACHE``, or the cache folder of the user."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "privet"
