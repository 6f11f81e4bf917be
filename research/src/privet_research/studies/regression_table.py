"""The regression study as a table: each arm at the rate that held-out records choose, and what it says of a claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from scipy.special import stdtrit

from privet.accounting.guarantee import rounded_up
from privet_research.studies.arms import GLOBAL, LOCAL
from privet_research.studies.markdown import markdown

Row = Mapping[str, Any]
_CONFIDENCE = 0.95
# Figure 9 of the paper shows curves without numbers; what can be read off is which method ends lower.
_PUBLISHED: Mapping[str, str] = MappingProxyType({LOCAL: "above global", GLOBAL: "below local"})


def regression_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: one table per setting, its guarantee, and a sentence on the claim."""
    parts = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        chosen = [row for row in rows if row["setting"] == setting]
        best = {arm: _at_best_rate(chosen, arm) for arm in dict.fromkeys(row["arm"] for row in chosen)}
        parts.append(
            "\n\n".join([f"## {setting}", _guarantee(chosen), _lines(best), _finding(best), _edges(chosen, best)])
        )
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _at_best_rate(rows: Sequence[Row], arm: str) -> list[Row]:
    """The runs of an arm at the rate of least mean validation error; rates at which a run diverged come last."""
    own = [row for row in rows if row["arm"] == arm]
    by_rate = {rate: [row for row in own if row["rate"] == rate] for rate in {row["rate"] for row in own}}
    return min(by_rate.values(), key=lambda found: _mean(found, "validation_error"))


def _mean(rows: Sequence[Row], key: str) -> float:
    values = [row[key] for row in rows]
    return math.inf if None in values else statistics.fmean(values)


def _guarantee(rows: Sequence[Row]) -> str:
    private = [row for row in rows if row["epsilon"] is not None]
    if not private:
        return "No arm is private."
    row = private[0]
    seeds = ", ".join(str(seed) for seed in sorted({found["seed"] for found in rows}))
    rates = ", ".join(f"{rate:g}" for rate in sorted({found["rate"] for found in rows}))
    return (
        f"Every private arm: epsilon {rounded_up(row['epsilon'])} at delta {row['delta']:g} (add or remove one "
        f"record), noise multiplier {row['noise_multiplier']:g}, {row['steps']} steps; seeds {seeds}. The learning "
        f"rate of each arm is that of {rates} with the least validation error. Intervals are 95 % (Student's t over "
        "seeds)."
    )


def _lines(best: Mapping[str, Sequence[Row]]) -> str:
    lines = [["arm", "learning rate", "test MSE", "validation MSE", "training MSE", "paper (figure 9)"]]
    for arm, found in best.items():
        errors = [_shown(found, key) for key in ("test_error", "validation_error", "train_error")]
        lines.append([arm, f"{found[0]['rate']:g}", *errors, _PUBLISHED.get(arm, "")])
    return markdown(lines)


def _shown(rows: Sequence[Row], key: str) -> str:
    values = [row[key] for row in rows]
    if None in values:
        return "diverged"
    width = half_width(values)
    text = f"{statistics.fmean(values):.3f}"
    return text if width is None else f"{text} ± {width:.3f}"


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of a mean over seeds; None for a single run."""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _finding(best: Mapping[str, Sequence[Row]]) -> str:
    """Judge the claim by the difference of the two arms within each seed, which share their initial weights."""
    if not {LOCAL, GLOBAL} <= set(best):
        return "The claim needs the arms local and global."
    local, kept = ({row["seed"]: row["test_error"] for row in best[arm]} for arm in (LOCAL, GLOBAL))
    claim = "The claim that global clipping has no larger test error than local clipping"
    if None in kept.values():
        return f"{claim} does not hold here: global clipping diverged at every rate."
    if None in local.values():
        return f"{claim} holds here: local clipping diverged at every rate."
    differences = [kept[seed] - local[seed] for seed in kept if seed in local]
    mean, width = statistics.fmean(differences), half_width(differences)
    means = f"{statistics.fmean(kept.values()):.3f} against {statistics.fmean(local.values()):.3f}"
    if width is None or abs(mean) <= width:
        shown = "" if width is None else f"; difference {mean:+.3f} ± {width:.3f}"
        return f"{claim} can be neither confirmed nor denied here ({means}{shown})."
    word = "holds" if mean < 0 else "does not hold"
    return f"{claim} {word} here ({means}; difference {mean:+.3f} ± {width:.3f})."


def _edges(rows: Sequence[Row], best: Mapping[str, Sequence[Row]]) -> str:
    """Name the arms whose best rate is the grid's first or last, where a wider grid might find a better one."""
    rates = sorted({row["rate"] for row in rows})
    found = [arm for arm, runs in best.items() if len(rates) > 1 and runs[0]["rate"] in (rates[0], rates[-1])]
    return f"At the edge of the grid: {', '.join(found)}." if found else ""
