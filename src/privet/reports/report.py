"""A run as one self-contained HTML file: no script, nothing fetched, everything that came from a file escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from privet import __version__
from privet.accounting.guarantee import rounded_up
from privet.errors import CheckpointError, DependencyError
from privet.experiments.results import Measure
from privet.experiments.run_files import write_whole
from privet.reports.content import RunContent, gather
from privet.reports.examination import confidence_rows, membership_rows
from privet.reports.statement import attack_bounds, percent, promise, terms

REPORT_NAME = "report.html"


def write_report(folder: str | Path, output: str | Path | None = None, *, content: RunContent | None = None) -> Path:
    """Write a run's report and return its path; ``report.html`` in the run's folder unless another is named.

    Args:
        folder: The run's folder.
        output: Where to write.
        content: What ``gather(folder)`` returned, where it is already at hand.

    Raises:
        PrivetError: the folder is not a run's, the ledger's chain is broken, or the file cannot be written.
        DependencyError: the packages that draw and write reports are not installed.
    """
    path = Path(output) if output is not None else Path(folder) / REPORT_NAME
    if not path.parent.is_dir():
        raise CheckpointError(f"The report {path} cannot be written: its folder does not exist. Make it first.")
    write_whole(path, render(content or gather(folder)))
    return path


def render(content: RunContent) -> str:
    """Return the HTML text of a report."""
    try:
        import jinja2
        import matplotlib  # noqa: F401 (only its presence matters here; plots are drawn elsewhere)
    except ImportError as error:
        raise DependencyError(
            f"A report needs jinja2 and matplotlib; {error.name} is missing. Install them with: "
            "pip install 'privet[report]'."
        ) from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (resources.files("privet") / "reports" / "templates" / "report.html.j2").read_text("utf-8")
    return environment.from_string(template).render(_values(content))


def _values(content: RunContent) -> dict[str, Any]:
    spent = content.ledger.spent
    return {
        "version": __version__,
        "title": content.recipe.title,
        "description": content.recipe.description,
        "stamps": _stamps(content),
        "tiles": _tiles(content),
        "statement": promise(spent),
        "guarantee": str(spent),
        "terms": terms(content),
        "assumptions": spent.assumptions,
        "attacks": [(percent(rate), percent(found)) for rate, found in attack_bounds(content)],
        "agrees": content.agrees,
        "mismatch": content.ledger.mismatch,
        "comparison": _comparison(content),
        "privacy_plots": _privacy_plots(content),
        "utility_plots": _utility_plots(content),
        "measures": [] if content.metrics is None else [_measure_row(row) for row in content.metrics.measures],
        "is_public": content.recipe.is_public,
        "unprotected_plots": _unprotected_plots(content),
        "confidence": None if content.calibration is None else confidence_rows(content.calibration),
        "membership": [row for found in content.membership for row in membership_rows(found)],
        "examination_plots": _examination_plots(content),
        "side_effects": _side_effects(content),
        "environments": [_flat(entry) for entry in content.environments],
        "dataset": _dataset(content),
        "recipe_text": content.recipe_text,
        "plan_hash": content.ledger.plan_hash,
        "head": content.ledger.head,
    }


def _stamps(content: RunContent) -> list[tuple[str, str]]:
    """Return (kind, text) of the marks at the top."""
    found = []
    if content.ledger.spent.not_private_because:
        found.append(("bad", "NOT PRIVATE"))
    if not content.agrees:
        found.append(("bad", "ledger mismatch"))
    if content.recipe.is_public:
        found.append(("plain", "benchmark data"))
    if not content.is_finished:
        found.append(("warn", "unfinished run"))
    return found


def _tiles(content: RunContent) -> list[tuple[str, str, str]]:
    """Return (name, value, note) of the few numbers that come first."""
    spent = content.ledger.spent
    tiles = [
        ("epsilon", rounded_up(spent.epsilon), f"promised {rounded_up(content.promised.epsilon)}"),
        ("delta", rounded_up(spent.delta), f"per {spent.unit.value}"),
    ]
    if spent.mu is not None:
        tiles.append(("mu (Gaussian DP)", rounded_up(spent.mu, 3), "at most"))
    if content.metrics is not None and content.metrics.measures:
        first = content.metrics.measures[0]
        star = "" if content.recipe.is_public else " *"
        row = _measure_row(first)
        tiles.append((f"test {first.name}{star}", row["value"], f"{row['low']} to {row['high']}, n = {row['n']}"))
    return tiles


def _measure_row(measure: Measure) -> dict[str, str]:
    is_share = measure.name == "accuracy"

    def shown(value: float) -> str:
        return f"{100 * value:.1f} %" if is_share else f"{value:.4g}"

    return {
        "name": measure.name,
        "value": shown(measure.value),
        "low": shown(measure.low),
        "high": shown(measure.high),
        "n": f"{measure.num_examples:,}",
        "interval": measure.interval,
    }


def _comparison(content: RunContent) -> list[tuple[str, str, str, bool]]:
    """Return (what, planned, in the ledger, fine) for everything that can be held against the plan."""
    ledger, promised = content.ledger, content.promised
    return [
        (
            "rounds",
            f"{ledger.rounds_planned:,}",
            f"{ledger.rounds_charged:,} charged",
            ledger.rounds_charged <= ledger.rounds_planned,
        ),
        (
            "epsilon",
            rounded_up(promised.epsilon),
            rounded_up(ledger.spent.epsilon),
            ledger.spent.epsilon <= promised.epsilon,
        ),
        ("rounds run otherwise", "0", f"{ledger.num_mismatches:,}", ledger.num_mismatches == 0),
        ("rounds given up", "any", f"{ledger.num_voids:,}", True),
        ("hash chain", "intact", f"intact, {ledger.num_rows:,} rows", True),
        (
            "plan",
            content.plan.hash[:16],
            ledger.plan_hash[:16],
            content.plan.hash == ledger.plan_hash,
        ),
    ]


def _privacy_plots(content: RunContent) -> list[Any]:
    from privet.reports import plots

    ledger = content.ledger
    if ledger.rounds_charged == 0 or math.isinf(ledger.spent.epsilon):
        return []
    adjacency, event = ledger.spent.adjacency, ledger.event
    profile = plots.profile_plot(event, adjacency, epsilon=ledger.spent.epsilon, delta=ledger.spent.delta)
    return [profile, *plots.trade_off_plots(event, adjacency)]


def _utility_plots(content: RunContent) -> list[Any]:
    from privet.reports import plots

    ledger = content.ledger
    found = []
    if not math.isinf(ledger.spent.epsilon):
        table = content.plan.epsilon_by_round
        charged, epsilon = ledger.rounds_charged, ledger.spent.epsilon
        found.append(plots.spending_plot(table, rounds_charged=charged, epsilon_spent=epsilon))
    if content.metrics is not None and len(content.metrics.curve) > 1:
        is_share = content.metrics.curve[0].measure.name == "accuracy"
        found.append(plots.curve_plot(content.metrics.curve, is_share=is_share))
    return found


def _unprotected_plots(content: RunContent) -> list[Any]:
    from privet.reports import plots

    return plots.unprotected_plots(content.unprotected) if content.unprotected else []


def _examination_plots(content: RunContent) -> list[Any]:
    from privet.reports import examination_plots

    found = [] if content.calibration is None else [examination_plots.reliability_plot(content.calibration)]
    if content.membership:
        ledger = content.ledger
        found.append(examination_plots.roc_plot(content.membership, ledger.event, ledger.spent.adjacency))
    return found


def _side_effects(content: RunContent) -> dict[str, Any] | None:
    """Return what is shown of groups and attacks; None when neither was asked for."""
    from privet.reports import side_effect_plots, side_effects

    fairness, robustness, info = content.fairness, content.robustness, content.recipe.info
    if fairness is None and robustness is None and content.long_tail is None:
        return None
    attributes = () if fairness is None else fairness.attributes
    # A declared column is known by its name and by each of its categories.
    parts = [part for name in info.feature_names for part in (name.partition("=")[0], name.partition("=")[2])]
    known = {"class", *info.class_names, *parts} - {""}
    plots = [
        side_effect_plots.group_plot(found, number=number, known_names=known)
        for number, found in enumerate(attributes, start=1)
    ]
    if robustness is not None:
        plots.append(side_effect_plots.radius_plot(robustness))
    return {
        "group_header": side_effects.GROUP_HEADER,
        "groups": [(found.attribute, side_effects.group_rows(found)) for found in attributes],
        "gap_header": side_effects.GAP_HEADER,
        "gaps": [] if fairness is None else side_effects.gap_rows(fairness),
        "source_header": side_effects.SOURCE_HEADER,
        "sources": [] if fairness is None else side_effects.source_rows(fairness),
        "radius_header": side_effects.RADIUS_HEADER,
        "radii": [] if robustness is None else side_effects.radius_rows(robustness),
        "attack": None if robustness is None else robustness,
        "growth": None if content.growth is None else side_effects.growth_sentence(content.growth),
        "long_tail": content.long_tail,
        "plots": plots,
    }


def _dataset(content: RunContent) -> list[tuple[str, str]]:
    info = content.recipe.info
    return [
        ("data set", info.name),
        ("licence", info.licence),
        ("source", info.source),
        ("model", content.recipe.model),
    ]


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of every value; a table within the table keeps the names of its entries."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        rows += _flat(value) if isinstance(value, Mapping) else [(key, str(value))]
    return rows
