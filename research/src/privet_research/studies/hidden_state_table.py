"""The table of the hidden-state comparison: one line per data set, epsilon and method."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from privet_research.studies.hidden_state import Setting, recomputed_epsilons
from privet_research.studies.markdown import markdown

_COLUMNS = "data", "target", "method", "proven epsilon", "claimed epsilon", "noise", "accuracy", "runs", "examples/s"
# Published accuracies in percent, by data set, epsilon and arm, where the printed table is unambiguous.
_PUBLISHED = {
    ("mnist", 4.76, "ssp_convex"): 67.0,
    ("mnist", 4.76, "ssp_random_relu"): 65.6,
    ("mnist", 4.76, "ssp_random_fourier"): 77.4,
    ("mnist", 4.76, "dpsgd_convex"): 94.9,
    ("mnist", 4.76, "dpsgd_relu"): 94.3,
    ("mnist", 4.76, "noisycgd_convex_clipped"): 94.4,
}
_PUBLISHED_NOISE = {1.33: 15.0, 4.76: 5.0}
_BATCHES = {"mnist": 60, "cifar10": 50}


def hidden_state_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown, means over seeds, followed by what the published noise really costs."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        name = (row["dataset"], row["epsilon_target"], row["arm"], row["epochs"], row["asked_rate"], row["decay"])
        groups.setdefault(name, []).append(row)
    heading = [*_COLUMNS, "published", "status"]
    lines = [heading, *(_cells(name, members) for name, members in sorted(groups.items(), key=str))]
    return markdown(lines) + "\n\n" + _recomputed({row["dataset"] for row in rows})


def _cells(name: tuple[Any, ...], members: Sequence[dict[str, Any]]) -> list[str]:
    dataset, target, arm, epochs, rate, decay = name
    first = members[0]
    shares = [100 * member["accuracy"] for member in members]
    spread = f" \N{PLUS-MINUS SIGN} {statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    published = _PUBLISHED.get((dataset, target, arm)) if epochs == Setting().epochs else None
    return [
        dataset,
        f"{target:g}",
        f"{arm}, {epochs} epochs{_changed('rate', rate, None)}{_changed('decay', decay, Setting().decay)}",
        f"{first['epsilon']:.4g}",
        f"{first['epsilon_claimed']:.4g}",
        f"{first['noise_multiplier']:.3f}",
        f"{statistics.mean(shares):.2f}{spread}",
        str(len(members)),
        f"{statistics.median(member['examples_per_second'] for member in members):,.0f}",
        "" if published is None else f"{published:.1f}",
        first["status"],
    ]


def _changed(name: str, value: float | None, usual: float | None) -> str:
    return "" if value == usual else f", {name} {value:g}"


def _recomputed(datasets: set[str]) -> str:
    asked = Setting()
    lines = [["data", "published noise", "published epsilon", "cyclic, last iterate", "Poisson"]]
    for dataset in sorted(datasets & set(_BATCHES)):
        for epsilon, noise in _PUBLISHED_NOISE.items():
            found = recomputed_epsilons(
                batches=_BATCHES[dataset],
                epochs=asked.epochs,
                noise_multiplier=noise,
                delta=asked.delta,
                decay=asked.decay,
            )
            lines.append([dataset, f"{noise:g}", f"{epsilon:g}", *(f"{value:.4f}" for value in found.values())])
    return markdown(lines) + "\n"
