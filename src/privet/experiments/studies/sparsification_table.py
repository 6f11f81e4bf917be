"""The sparsification study as a table: each arm at its best rate, the published figures, and what the control says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from privet.accounting.guarantee import rounded_up
from privet.experiments.studies.clipping_table import summarise
from privet.experiments.studies.sparsification import BASELINE, DECAY, MASKED

Row = Mapping[str, Any]


def sparsification_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: one table per setting, its guarantee, and a verdict on the claim."""
    parts = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == setting]
        best = {arm: _at_best_rate(own, arm) for arm in dict.fromkeys(row["arm"] for row in own)}
        epsilon = rounded_up(max(row["epsilon"] for row in own))
        guarantee = f"Every arm: epsilon {epsilon} at most, at delta {own[0]['delta']:g} (add or remove one record)."
        parts.append("\n\n".join([f"## {setting}", guarantee, _lines(best), _verdict(best)]))
    return "\n\n".join(parts) + "\n"


def _at_best_rate(rows: Sequence[Row], arm: str) -> list[Row]:
    """The runs of an arm at the rate with the best mean training accuracy: nothing is chosen on test images."""
    own = [row for row in rows if row["arm"] == arm]
    by_rate = {rate: [row for row in own if row["rate"] == rate] for rate in sorted({row["rate"] for row in own})}
    return max(by_rate.values(), key=lambda found: statistics.fmean(row["train_accuracy"] for row in found))


def _lines(best: Mapping[str, Sequence[Row]]) -> str:
    lines = [["arm", "learning rate", "steps", "test accuracy, %", "published, %"], ["---"] * 5]
    for arm, found in best.items():
        published = "" if found[0]["published"] is None else f"{found[0]['published']:.1f}"
        shown = summarise([row["accuracy"] for row in found]).shown(100, 1)
        lines.append([arm, f"{found[0]['rate']:g}", str(found[0]["steps"]), shown, published])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _verdict(best: Mapping[str, Sequence[Row]]) -> str:
    if not {BASELINE, MASKED, DECAY} <= set(best):
        return "The verdict needs all three arms."
    gain, gain_error = _difference(best[MASKED], best[BASELINE])
    over, over_error = _difference(best[MASKED], best[DECAY])
    if gain_error is None or over_error is None:
        return f"One seed: the mask gains {gain:+.1f} points over none and {over:+.1f} over a falling learning rate."
    gains = "gains" if gain > 2 * gain_error else "does not surely gain"
    control = "more than" if over > 2 * over_error else "no surely larger gain than"
    return (
        f"The mask {gains} over none ({gain:+.1f} points, standard error {gain_error:.1f}); it has {control} what a "
        f"falling learning rate gives ({over:+.1f} points, standard error {over_error:.1f})."
    )


def _difference(first: Sequence[Row], second: Sequence[Row]) -> tuple[float, float | None]:
    """Mean difference of test accuracies over shared seeds, in points, and its standard error."""
    others = {row["seed"]: row["accuracy"] for row in second}
    gaps = [100 * (row["accuracy"] - others[row["seed"]]) for row in first if row["seed"] in others]
    if len(gaps) < 2:
        return statistics.fmean(gaps), None
    return statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
