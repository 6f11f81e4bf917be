"""Ctrl-C and SIGTERM: the first asks for a clean end after the step, the second gives the step up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click


@contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Within the block, signals are noted; the value handed out says whether one came.

    A second signal raises ``KeyboardInterrupt`` at once: the session then gives the step up, which stays charged.
    """
    came = [0]

    def note(number: int, frame: FrameType | None) -> None:
        came[0] += 1
        if came[0] > 1:
            raise KeyboardInterrupt
        click.echo("\nstopping after this step; once more to give the step up", err=True)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came[0] > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
