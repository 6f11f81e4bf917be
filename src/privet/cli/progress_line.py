"""The progress of a run on a terminal, in a log, or nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from privet.accounting.guarantee import Guarantee
from privet.experiments.progress import Progress, Silent, StepUpdate
from privet.experiments.results import CurvePoint

SECONDS_BETWEEN_REDRAWS = 0.25
SECONDS_BETWEEN_LINES = 30.0
_SEPARATOR = " \N{MIDDLE DOT} "


def progress_for(stream: TextIO, *, quiet: bool) -> Progress:
    """Return the display that fits a stream: one redrawn line on a terminal, a line every 30 s elsewhere."""
    if quiet:
        return Silent()
    return ProgressLine(stream, is_terminal=stream.isatty())


class ProgressLine:
    """Shows where a run stands."""

    def __init__(self, stream: TextIO, *, is_terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._is_terminal, self._clock = stream, is_terminal, clock
        self._interval = SECONDS_BETWEEN_REDRAWS if is_terminal else SECONDS_BETWEEN_LINES
        self._began = self._shown = clock()
        self._first_step = 0
        self._newest: StepUpdate | None = None
        self._width = 0

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """Start the clock."""
        self._began = self._shown = self._clock()
        self._first_step = step

    def stepped(self, update: StepUpdate) -> None:
        """Show the step, if the last display is long enough ago."""
        self._newest = update
        now = self._clock()
        if now - self._shown >= self._interval:
            self._shown = now
            self._show()

    def evaluated(self, point: CurvePoint) -> None:
        """Show nothing: the line has room for the run, the report for its results."""

    def ended(self) -> None:
        """Show the last step and leave the line."""
        if self._newest is not None:
            self._show()
            if self._is_terminal:
                self._stream.write("\n")
                self._stream.flush()
            self._newest = None

    def _show(self) -> None:
        assert self._newest is not None
        line = self.line(self._newest)
        if self._is_terminal:
            # Spaces wipe what a longer line left behind.
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def line(self, update: StepUpdate) -> str:
        """Return the line for a step. A star marks what the guarantee does not cover."""
        elapsed = max(self._clock() - self._began, 1e-9)
        steps = update.step - self._first_step
        left = elapsed / steps * (update.num_steps - update.step) if steps else 0.0
        parts = [
            f"step {update.step}/{update.num_steps}",
            f"\N{GREEK SMALL LETTER EPSILON} {update.epsilon:.2f} / {update.epsilon_planned:.2f}",
        ]
        if update.loss is not None:
            parts.append(f"loss {update.loss:.2f}*")
        parts.append(f"{_short(steps * update.expected_batch_size / elapsed)} ex/s")
        parts.append(f"{_clock_time(left)} left")
        return _SEPARATOR.join(parts)


def _short(number: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
