"""The regression study as a table: each arm at its best rate, and what that says about the claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from privet.accounting.guarantee import rounded_up
from privet.experiments.studies.arms import GLOBAL, LOCAL
from privet.experiments.studies.clipping_table import summarise

Row = Mapping[str, Any]


def regression_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: one table per setting, its guarantee, and a sentence on the claim."""
    parts = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        chosen = [row for row in rows if row["setting"] == setting]
        best = {arm: _at_best_rate(chosen, arm) for arm in dict.fromkeys(row["arm"] for row in chosen)}
        parts.append("\n\n".join([f"## {setting}", _guarantee(chosen), _lines(best), _finding(best)]))
    return "\n\n".join(parts) + "\n"


def _at_best_rate(rows: Sequence[Row], arm: str) -> list[Row]:
    """The runs of an arm at the rate whose mean training error is least; rates at which a run diverged come last."""
    own = [row for row in rows if row["arm"] == arm]
    by_rate = {rate: [row for row in own if row["rate"] == rate] for rate in {row["rate"] for row in own}}
    return min(by_rate.values(), key=lambda found: _mean(found, "train_error"))


def _mean(rows: Sequence[Row], key: str) -> float:
    values = [row[key] for row in rows]
    return math.inf if None in values else statistics.fmean(values)


def _guarantee(rows: Sequence[Row]) -> str:
    private = [row for row in rows if row["epsilon"] is not None]
    if not private:
        return "No arm is private."
    row = private[0]
    seeds = ", ".join(str(seed) for seed in sorted({found["seed"] for found in rows}))
    return (
        f"Every private arm: epsilon {rounded_up(row['epsilon'])} at delta {row['delta']:g} (add or remove one "
        f"record), noise multiplier {row['noise_multiplier']:g}, {row['steps']} steps; seeds {seeds}."
    )


def _lines(best: Mapping[str, Sequence[Row]]) -> str:
    lines = [["arm", "learning rate", "test MSE", "training MSE"], ["---"] * 4]
    for arm, found in best.items():
        errors = [_shown(found, key) for key in ("test_error", "train_error")]
        lines.append([arm, f"{found[0]['rate']:g}", *errors])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(rows: Sequence[Row], key: str) -> str:
    values = [row[key] for row in rows]
    return "diverged" if None in values else summarise(values).shown(1, 3)


def _finding(best: Mapping[str, Sequence[Row]]) -> str:
    if not {LOCAL, GLOBAL} <= set(best):
        return "The claim needs the arms local and global."
    local, kept = (_mean(best[arm], "test_error") for arm in (LOCAL, GLOBAL))
    errors = [_error(best[arm]) for arm in (LOCAL, GLOBAL)]
    if math.isfinite(kept) and abs(kept - local) <= 2 * math.hypot(*errors):
        word = "can be neither confirmed nor denied"  # the two are within two standard errors of each other
    else:
        word = "holds" if kept < local else "does not hold"
    return (
        f"The claim that global clipping has no larger test error than local clipping {word} here "
        f"({kept:.3f} against {local:.3f})."
    )


def _error(rows: Sequence[Row]) -> float:
    values = [row["test_error"] for row in rows]
    return 0.0 if None in values else summarise(values).error or 0.0
