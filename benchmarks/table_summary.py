"""The page of ``python -m benchmarks.tables show``: means, standard errors and ranks of the learners, by table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

FIGURES = {"accuracy": 1, "auc": 1, "log_loss": -1, "r2": 1, "mae": -1}
FAMILIES = ("privet", "opacus_linear", "opacus_mlp", "diffprivlib", "dp_ebm")
TUNING_SEEDS = 2
Rows = Sequence[Mapping[str, Any]]


def _values(rows: Rows, family: str, figure: str) -> list[float]:
    """Return a family's figure for every seed; of several learning rates, those of the best on the first seeds."""
    own = [row for row in rows if row["learner"].partition(" ")[0] == family and figure in row]
    names = sorted({row["learner"] for row in own})
    early = {
        name: [FIGURES[figure] * row[figure] for row in own if row["learner"] == name and row["seed"] < TUNING_SEEDS]
        for name in names
    }
    tried = {name: float(np.mean(values)) for name, values in early.items() if values}
    if not tried:
        return []
    best = max(tried, key=lambda name: tried[name])
    return [row[figure] for row in sorted(own, key=lambda row: row["seed"]) if row["learner"] == best]


def summary(rows: Rows) -> str:
    """Return the page."""
    cells = sorted({(row["table"], row["epsilon"]) for row in rows})
    lines, ranks, behind, above = [], {family: [] for family in FAMILIES}, [], []
    for table, epsilon in cells:
        own = [row for row in rows if (row["table"], row["epsilon"]) == (table, epsilon)]
        for figure, sign in FIGURES.items():
            found = {family: _values(own, family, figure) for family in (*FAMILIES, "constant")}
            if not found["privet"]:
                continue
            rivals = {family: values for family, values in found.items() if values and family != "constant"}
            lines.append(
                f"| {table} | {epsilon:g} | {figure} | "
                + " | ".join(_shown(found[family]) for family in (*FAMILIES, "constant"))
                + " |"
            )
            if figure == "log_loss" and np.mean(found["privet"]) > np.mean(found["constant"] or [np.inf]):
                above.append(f"{table} at {epsilon:g}")
            if len(rivals) < 2:
                continue
            order = sorted(rivals, key=lambda family: -sign * float(np.mean(rivals[family])))
            for family in rivals:
                ranks[family].append(1 + order.index(family))
            if order[0] != "privet":
                gap = sign * (np.mean(rivals[order[0]]) - np.mean(rivals["privet"]))
                error = np.hypot(_error(rivals[order[0]]), _error(rivals["privet"]))
                if gap > 2 * error:
                    behind.append(f"{table} at {epsilon:g}, {figure}: {order[0]}, {gap / max(error, 1e-12):.1f} errors")
    mean_ranks = ", ".join(f"{name} {np.mean(found):.2f}" for name, found in ranks.items() if found)
    return "\n".join(
        [
            "# Private learners on tables",
            "",
            "`python -m benchmarks.tables run`, `python -m benchmarks.tables show`. Mean, standard error, seeds.",
            "The learning rates of Opacus are the best of five on test data; DP-EBM does not tell several classes",
            "apart; diffprivlib promises pure epsilon. Rivals get one record of each person of the hospitals. The",
            "constant is not private. Errors of `mae` are in the units of the target.",
            "",
            f"Mean rank, over the cells below in which a rival ran: {mean_ranks}.",
            "",
            f"Cells in which privet is behind the best by more than two standard errors: {_listed(behind)}.",
            "",
            f"Tables where its mean log loss is above that of the class shares: {_listed(above)}.",
            "",
            "| table | epsilon | figure | " + " | ".join((*FAMILIES, "constant")) + " |",
            "| --- " * (4 + len(FAMILIES)) + "|",
            *lines,
            "",
        ]
    )


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _listed(words: Iterable[str]) -> str:
    return "; ".join(words) or "none"


def _shown(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g} ± {_error(values):.2g} ({len(values)})" if values else "-"
