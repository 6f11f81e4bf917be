"""The log that every run keeps: one JSON line per step, of public values only."""

from __future__ import annotations

import math
from pathlib import Path

from privet.accounting.guarantee import Guarantee
from privet.runs.json_lines import JsonLines
from privet.runs.progress import StepUpdate
from privet.runs.results import CurvePoint


class StepLog:
    """Appends every step to a file.

    Guarantee:
        A line holds the step's number, the learning rate and the masked share, and at some steps the epsilon spent by
        then: all known before any data is read, or released and accounted. No loss, no batch size, and no time, which
        would tell how many examples the step had.
    Edge cases: a line without epsilon says that it was not computed there; a run without privacy spends "infinity".
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """Nothing is written before a step."""

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
        """Measurements have a file of their own."""

    def ended(self) -> None:
        """Close the file."""
        self._lines.close()
