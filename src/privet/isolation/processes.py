"""Processes that a program starts: a copy of the program sees the examples, and no mode sees the copy."""

from __future__ import annotations

import os


class Forks:
    """Counts how often this process was copied."""

    def __init__(self) -> None:
        """Count from now on; other ways to start a process hand no memory over."""
        self.number = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._count)

    def _count(self) -> None:
        self.number += 1


FORKS = Forks()
