"""The sparsification study as a table: each arm at its best rate, the published figures, and what the control says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from privet.accounting.guarantee import rounded_up
from privet_research.studies.clipping_table import summarise
from privet_research.studies.markdown import markdown
from privet_research.studies.sparsification import BASELINE, DECAY, MASKED

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
    """The runs of an arm at the rate it was tuned to, or would be: by training accuracy, never on test images.

    Rates that more seeds trained with were chosen by those that came before.
    """
    own = [row for row in rows if row["arm"] == arm]
    by_rate = {rate: [row for row in own if row["rate"] == rate] for rate in sorted({row["rate"] for row in own})}
    return max(
        by_rate.values(), key=lambda found: (len(found), statistics.fmean(row["train_accuracy"] for row in found))
    )


def _lines(best: Mapping[str, Sequence[Row]]) -> str:
    lines = [["arm", "learning rate", "steps", "test accuracy, %", "published, %"]]
    for arm, found in best.items():
        shown = summarise([row["accuracy"] for row in found]).shown(100, 1)
        lines.append([arm, f"{found[0]['rate']:g}", str(found[0]["steps"]), shown, _published(found[0])])
    return markdown(lines)


def _published(row: Row) -> str:
    if row["published"] is None:
        return ""
    error = row.get("published_error")
    return f"{row['published']:.1f}" if error is None else f"{row['published']:.1f} ± {error:.2f}"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean difference of test accuracies over shared seeds, in points, and half its 95 % interval, if it is known."""

    mean: float
    margin: float | None

    @classmethod
    def between(cls, first: Sequence[Row], second: Sequence[Row]) -> Difference:
        """Compare runs seed by seed; the interval is Student's, so that few seeds give a wide one."""
        others = {row["seed"]: row["accuracy"] for row in second}
        gaps = [100 * (row["accuracy"] - others[row["seed"]]) for row in first if row["seed"] in others]
        if len(gaps) < 2:
            return cls(mean=statistics.fmean(gaps) if gaps else math.nan, margin=None)
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        return cls(mean=statistics.fmean(gaps), margin=float(stdtrit(len(gaps) - 1, 0.975)) * error)

    @property
    def is_sure(self) -> bool:
        """Whether the interval lies above zero."""
        return self.margin is not None and self.mean > self.margin

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" if self.margin is None else f"{self.mean:+.1f} ± {self.margin:.1f}"


def _verdict(best: Mapping[str, Sequence[Row]]) -> str:
    if not {BASELINE, MASKED, DECAY} <= set(best):
        return "The verdict needs all three arms."
    gain = Difference.between(best[MASKED], best[BASELINE])
    over = Difference.between(best[MASKED], best[DECAY])
    control = Difference.between(best[DECAY], best[BASELINE])
    said = [best[arm][0]["published"] for arm in (MASKED, BASELINE)]
    published = "" if None in said else f" The publication's gain is {said[0] - said[1]:+.1f} points."
    if gain.margin is None:
        return f"One seed: the mask gains {gain} points over none and {over} over a falling learning rate.{published}"
    gains = "gains" if gain.is_sure else "does not surely gain"
    than = "more than" if over.is_sure else "no surely larger gain than"
    return (
        f"The mask {gains} over none ({gain} points, 95 % interval); it has {than} what a falling learning rate gives "
        f"({over} points), which itself is {control} points from no mask.{published}"
    )
