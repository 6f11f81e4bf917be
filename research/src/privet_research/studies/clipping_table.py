"""The clipping study as a table: our means and standard errors beside the published figures, and what they say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from privet.accounting.guarantee import rounded_up
from privet_research.studies.arms import ARMS, GLOBAL, LOCAL, MIXED, NON_PRIVATE, SCALED
from privet_research.studies.markdown import markdown

Row = Mapping[str, Any]
# Column heading, key of the rows, factor for display, digits.
_COLUMNS = (
    ("accuracy %", "accuracy", 100, 1),
    ("loss", "loss", 1, 3),
    ("ECE-15 %", "ece_15", 100, 1),
    ("ECE-10 %", "ece_10", 100, 1),
    ("MCE-15 %", "mce_15", 100, 1),
    ("over-confidence %", "over_confidence", 100, 1),
    ("attack AUC", "attack_auc", 1, 3),
)


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the paper prints for one arm, in percent; None where it prints nothing."""

    accuracy: float | None
    expected_error: float
    largest_error: float


PUBLISHED: Mapping[str, Mapping[str, Published]] = MappingProxyType(
    {
        "mnist": {
            NON_PRIVATE: Published(accuracy=None, expected_error=0.8, largest_error=21.1),
            LOCAL: Published(accuracy=96.0, expected_error=2.5, largest_error=50.2),
            GLOBAL: Published(accuracy=95.0, expected_error=0.5, largest_error=22.8),
        },
        "cifar10": {
            NON_PRIVATE: Published(accuracy=61.3, expected_error=13.9, largest_error=20.9),
            LOCAL: Published(accuracy=47.6, expected_error=20.0, largest_error=32.0),
            GLOBAL: Published(accuracy=43.5, expected_error=3.3, largest_error=9.9),
        },
    }
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean over seeds, with its standard error; the error of a single run is not known."""

    mean: float
    error: float | None

    def shown(self, factor: float, digits: int) -> str:
        """Return the mean and its error as text."""
        text = f"{factor * self.mean:.{digits}f}"
        return text if self.error is None else f"{text} ± {factor * self.error:.{digits}f}"


def summarise(values: Sequence[float]) -> Summary:
    """Return the mean of one figure over seeds."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Summary(mean=statistics.fmean(values), error=error)


def clipping_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: one table per data set, the guarantee, and a sentence on what was found."""
    parts = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        chosen = [row for row in rows if row["dataset"] == dataset]
        parts.append("\n\n".join([f"## {dataset}", _guarantees(chosen), _lines(dataset, chosen), _finding(chosen)]))
    return "\n\n".join(parts) + "\n"


def _by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {arm: found for arm in ARMS if (found := [row for row in rows if row["arm"] == arm])}


def _guarantees(rows: Sequence[Row]) -> str:
    private = [row for row in rows if row["epsilon"] is not None]
    if not private:
        return "No arm is private."
    row = private[0]
    claim = row.get("claimed_epsilon")
    said = "" if claim is None else f"; the paper claims {claim:g}, from a central limit that is not a bound"
    limit = row.get("attack_auc_limit")
    bound = "" if limit is None else f" No attack can have an AUC above {limit:.3f}."
    return (
        f"Every private arm: epsilon {rounded_up(row['epsilon'])} at delta {row['delta']:g} (add or remove one record, "
        f"Poisson sampling{said}).{bound} "
        f"{row['epochs']} epochs, {row['num_test']:,} test examples, seeds {_seeds(rows)}."
    )


def _seeds(rows: Sequence[Row]) -> str:
    return ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))


def _lines(dataset: str, rows: Sequence[Row]) -> str:
    published = PUBLISHED.get(dataset, {})
    columns = [column for column in _COLUMNS if all(column[1] in row for row in rows)]
    head = ["arm", *(column[0] for column in columns)]
    if published:
        head += ["paper: accuracy", "paper: ECE", "paper: MCE"]
    lines = [head]
    for arm, found in _by_arm(rows).items():
        cells = [summarise([row[key] for row in found]).shown(factor, digits) for _, key, factor, digits in columns]
        if published:
            entry = published.get(arm)
            said = (entry.accuracy, entry.expected_error, entry.largest_error) if entry else (None, None, None)
            cells += ["" if value is None else f"{value:g}" for value in said]
        lines.append([arm, *cells])
    return markdown(lines)


def _finding(rows: Sequence[Row]) -> str:
    """Say whether the claim holds and what the control says, from the means alone."""
    means = {
        arm: {key: statistics.fmean(row[key] for row in found) for key in ("ece_15", "accuracy", "loss")}
        for arm, found in _by_arm(rows).items()
    }
    rivals = [arm for arm in (GLOBAL, MIXED) if arm in means]
    if not rivals or not {LOCAL, SCALED} <= set(means):
        return "A finding needs the arms local, local + temperature, and global or mixed."
    local, scaled = means[LOCAL], means[SCALED]
    sentences = []
    for arm in rivals:
        other = means[arm]
        gain, cost = 100 * (local["ece_15"] - other["ece_15"]), 100 * (local["accuracy"] - other["accuracy"])
        better = "matches or beats" if scaled["ece_15"] <= other["ece_15"] + 0.005 else "does not reach"
        sentences.append(
            f"Against local clipping, {arm} clipping changes the expected calibration error by {-gain:+.1f} points and "
            f"accuracy by {-cost:+.1f}. Temperature scaling of the local model, which keeps its accuracy, {better} "
            f"that calibration ({100 * scaled['ece_15']:.1f} % against {100 * other['ece_15']:.1f} %), with a loss of "
            f"{scaled['loss']:.3f} against {other['loss']:.3f}."
        )
    return " ".join(sentences) + _CAUTION


_CAUTION = (
    " Where nothing is dropped, global clipping is local clipping with the cutoff as its bound and a learning rate "
    "that is norm / cutoff times as large, so part of any difference is a difference of learning rates."
)
