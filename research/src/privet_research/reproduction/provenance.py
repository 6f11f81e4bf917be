"""Which state of the source made a row."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import privet

UNKNOWN = "unknown"


@cache
def commit() -> str:
    """Return the commit of the checkout that this package runs from, with ``-dirty`` if files differ from it.

    An installed package has no commit of its own: that of a checkout around it would say nothing.
    """
    package = Path(privet.__file__).resolve().parent
    git = shutil.which("git")
    if git is None or not (package.parents[1] / ".git").exists() or package.parent.name != "src":
        return UNKNOWN
    words = [git, "-C", str(package.parents[1]), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 (fixed words)
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return found.stdout.strip() or UNKNOWN
