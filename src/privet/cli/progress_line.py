"""The progress of a run on a terminal or in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from privet.accounting.guarantee import Guarantee
from privet.runs.measures import CurvePoint
from privet.training.tracking.progress import Progress, Silent, StepUpdate

SECONDS_BETWEEN_REDRAWS = 0.25
SECONDS_BETWEEN_LINES = 30.0
LINES_OF_A_PRIVATE_RUN = 20
_SEPARATOR = " \N{MIDDLE DOT} "


def progress_for(stream: TextIO, *, quiet: bool) -> Progress:
    """Return the display for a stream: one redrawn line on a terminal, separate lines elsewhere."""
    if quiet:
        return Silent()
    return ProgressLine(stream, is_terminal=stream.isatty())


class ProgressLine:
    """Shows the steps and the epsilon of a run.

    Guarantee:
        Outside of a terminal neither the output nor its times depend on private data: lines are written after fixed
        steps and contain no durations. On public data they are written every 30 seconds, with speed and remaining time;
        a terminal always shows these, because its viewer can measure time anyway.
    """

    def __init__(self, stream: TextIO, *, is_terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._is_terminal, self._clock = stream, is_terminal, clock
        self._interval = SECONDS_BETWEEN_REDRAWS if is_terminal else SECONDS_BETWEEN_LINES
        self._began = self._shown = clock()
        self._first_step = 0
        self._newest: StepUpdate | None = None
        self._is_shown = False
        self._width = 0

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        self._began = self._shown = self._clock()
        self._first_step = step

    def stepped(self, update: StepUpdate) -> None:
        """Show the step if one is due: by the clock, or by the number of steps where durations are private."""
        self._newest, self._is_shown = update, False
        if not self._may_use_clock(update):
            if update.step * LINES_OF_A_PRIVATE_RUN % update.num_steps < LINES_OF_A_PRIVATE_RUN:
                self._show()
            return
        now = self._clock()
        if now - self._shown >= self._interval:
            self._shown = now
            self._show()

    def _may_use_clock(self, update: StepUpdate) -> bool:
        return self._is_terminal or update.may_show_time

    def evaluated(self, point: CurvePoint) -> None:
        """Show nothing: measures are in the report."""

    def ended(self) -> None:
        """Show the last step and end the line."""
        if self._newest is not None:
            if not self._is_shown:
                self._show()
            if self._is_terminal:
                self._stream.write("\n")
            if self._newest.loss is not None:
                self._stream.write("* mean loss of the step's examples: not covered by the guarantee\n")
            self._stream.flush()
            self._newest = None

    def _show(self) -> None:
        assert self._newest is not None
        self._is_shown = True
        line = self.line(self._newest)
        if self._is_terminal:
            # Spaces overwrite the rest of a longer line.
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def line(self, update: StepUpdate) -> str:
        """Return the line for a step. A star marks values that the guarantee does not cover."""
        at_most = "\N{GREEK SMALL LETTER EPSILON} \N{LESS-THAN OR EQUAL TO}"
        parts = [
            f"step {update.step}/{update.num_steps}",
            f"{at_most} {update.epsilon:.2f} / {update.epsilon_planned:.2f}",
        ]
        if update.loss is not None:
            parts.append(f"loss {update.loss:.2f}*")
        if self._may_use_clock(update):
            parts += self._times(update)
        return _SEPARATOR.join(parts)

    def _times(self, update: StepUpdate) -> list[str]:
        elapsed = max(self._clock() - self._began, 1e-9)
        steps = update.step - self._first_step
        left = elapsed / steps * (update.num_steps - update.step) if steps else 0.0
        return [f"{_short(steps * update.expected_batch_size / elapsed)} ex/s", f"{_clock_time(left)} left"]


def _short(number: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
