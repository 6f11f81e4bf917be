"""The noise study as tables: one per task, arms by guarantees, and what the means say about shaping."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from privet_research.studies.clipping_table import summarise
from privet_research.studies.markdown import markdown
from privet_research.studies.noise_shape import ARMS, PLAIN

Row = Mapping[str, Any]


def noise_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: test accuracy in percent, mean over seeds with its standard error."""
    parts = []
    for task in dict.fromkeys(row["task"] for row in rows):
        chosen = [row for row in rows if row["task"] == task]
        parts.append("\n\n".join([f"## {task}", _terms(chosen), _lines(chosen), _finding(chosen)]))
    return "\n\n".join(parts) + "\n"


def _terms(rows: Sequence[Row]) -> str:
    row = rows[0]
    seeds = ", ".join(str(seed) for seed in sorted({found["seed"] for found in rows}))
    return (
        f"Every arm of a column keeps the same epsilon at delta {row['delta']:g} (add or remove one record, Poisson "
        f"sampling, {row['steps']} steps), the release of units included. Public units come from 180 further examples. "
        f"Seeds {seeds}."
    )


def _epsilons(rows: Sequence[Row]) -> list[float]:
    return sorted({row["epsilon"] for row in rows})


def _accuracies(rows: Sequence[Row], arm: str, epsilon: float) -> list[float]:
    return [row["accuracy"] for row in rows if row["arm"] == arm and row["epsilon"] == epsilon]


def _arms(rows: Sequence[Row]) -> list[str]:
    return [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]


def _lines(rows: Sequence[Row]) -> str:
    head = ["noise", *(f"epsilon {epsilon:g}" for epsilon in _epsilons(rows))]
    lines = [head]
    for arm in _arms(rows):
        found = [_accuracies(rows, arm, epsilon) for epsilon in _epsilons(rows)]
        lines.append([arm, *(summarise(values).shown(100, 2) if values else "" for values in found)])
    return markdown(lines)


def _finding(rows: Sequence[Row]) -> str:
    """Say which arms differ from plain noise by more than two standard errors."""
    sentences = []
    for epsilon in _epsilons(rows):
        plain = _accuracies(rows, PLAIN, epsilon)
        for arm in _arms(rows):
            found = _accuracies(rows, arm, epsilon)
            if arm == PLAIN or len(plain) < 2 or len(found) < 2:
                continue
            gain = statistics.fmean(found) - statistics.fmean(plain)
            error = math.sqrt(statistics.variance(found) / len(found) + statistics.variance(plain) / len(plain))
            if abs(gain) > 2 * error:
                verb = "gains" if gain > 0 else "loses"
                sentences.append(f"At epsilon {epsilon:g}, {arm} {verb} {abs(100 * gain):.1f} points over plain noise.")
    return " ".join(sentences) or "No arm differs from plain noise by more than two standard errors."
