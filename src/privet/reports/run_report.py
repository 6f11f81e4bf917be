"""The report of a run: one self-contained HTML file without scripts; all values are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet import __version__
from privet.accounting.guarantee import Guarantee, rounded_up
from privet.errors import CheckpointError
from privet.reports import importance_rows, private_figure_rows, run_plots
from privet.reports.audits import AUDIT_HEADER, audit_note, audit_plot, audit_rows
from privet.reports.baseline import (
    BASELINE_HEADER,
    GROUP_PRICE_HEADER,
    baseline_rows,
    baseline_terms,
    group_prices,
    unequal_terms,
)
from privet.reports.confidence_rows import CONFIDENCE_HEADER, AttackRow, confidence_rows, membership_rows
from privet.reports.content import RunContent, gather
from privet.reports.differences import shown_numbers
from privet.reports.first_page import first_page
from privet.reports.page import load_template
from privet.reports.reconstruction_rows import REBUILT_HEADER, rebuilt_note, rebuilt_rows
from privet.reports.statement import attack_bounds, percent, promise, terms
from privet.runs.ledger_check import lost_steps_text
from privet.runs.measures import Measure
from privet.runs.recipes.data_sheet import DataSheet
from privet.runs.run_files import write_whole

REPORT_NAME = "report.html"


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    content: RunContent | None = None,
    baseline: RunContent | None = None,
    language: str = "en",
    sheet: DataSheet | None = None,
) -> Path:
    """Write a run's report and return its path; ``report.html`` in the run's folder unless another is named.

    Args:
        folder: The run's folder.
        output: Path of the report.
        content: The result of ``gather(folder)``, if the caller has it already.
        baseline: A run with little or no privacy, to compare with.
        language: The language of the first page: en, de, fr or es.
        sheet: The data sheet of the first page; that of the recipe if not given.

    Raises:
        PrivetError: the folder is not a run's, the ledger's chain is broken, or the file cannot be written.
        DependencyError: the packages that draw and write reports are not installed.
    """
    path = Path(output) if output is not None else Path(folder) / REPORT_NAME
    if not path.parent.is_dir():
        raise CheckpointError(f"The report {path} cannot be written: its folder does not exist. Make it first.")
    write_whole(path, render(content or gather(folder), baseline=baseline, language=language, sheet=sheet))
    return path


def render(
    content: RunContent,
    *,
    baseline: RunContent | None = None,
    language: str = "en",
    sheet: DataSheet | None = None,
) -> str:
    """Return the HTML text of a report."""
    template = load_template("report.html.j2")
    values = _values(content) | {"baseline": None if baseline is None else _baseline(content, baseline)}
    page = first_page(content, language=language, sheet=sheet)
    return template.render(values | {"page": page, "contents": _contents(values)})


# The parts of a report: anchor, heading, and the values of which one must be there for it to be shown.
_PARTS = (
    ("statement", "Privacy statement", ()),
    ("ledger", "Plan and ledger", ()),
    ("privacy", "Privacy profile and attackers", ()),
    ("private-evaluation", "Measured privately", ("private",)),
    ("coefficients", "What the model goes by", ("coefficients",)),
    ("importance", "Importance of columns", ("importance",)),
    ("utility", "Accuracy and budget over the run", ()),
    ("examination", "Calibration, attacks and audits", ("confidence", "membership", "audit", "rebuilt")),
    ("side-effects", "Differences between groups, and robustness", ("side_effects",)),
    ("unprotected", "Unprotected diagnostics", ("unprotected_plots",)),
    ("environment", "Origin of the run", ()),
)


def _contents(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (anchor, heading) of every part that is shown."""
    return [(anchor, name) for anchor, name, needs in _PARTS if not needs or any(values[need] for need in needs)]


def _values(content: RunContent) -> dict[str, Any]:
    spent = content.ledger.spent
    return {
        "version": __version__,
        "title": content.title,
        "description": "A training loop of your own" if content.recipe is None else content.recipe.description,
        "stamps": stamps(content),
        "tiles": _tiles(content),
        "statement": promise(spent),
        "terms": terms(content),
        "assumptions": () if spent.not_private_because else spent.assumptions,
        "attacks": [(percent(rate), percent(found)) for rate, found in attack_bounds(content)],
        "agrees": content.agrees,
        "mismatch": content.ledger.mismatch,
        "comparison": _comparison(content),
        "privacy_plots": run_plots.privacy_plots(content),
        "utility_plots": run_plots.utility_plots(content),
        "measures": [] if content.metrics is None else [_measure_row(row) for row in content.metrics.measures],
        "is_public": content.is_public,
        "is_own_loop": content.recipe is None,
        "unprotected_plots": run_plots.unprotected_plots(content),
        "private": _private(content),
        "coefficients": content.coefficients,
        "importance": _importance(content),
        "confidence": _confidence(content),
        "confidence_header": CONFIDENCE_HEADER,
        "membership": _membership(content),
        "rebuilt": _rebuilt(content),
        "audit": _audit(content),
        "examination_plots": run_plots.examination_plots(content),
        "side_effects": _side_effects(content),
        "environments": [_flat(entry) for entry in content.environments],
        "dataset": _dataset(content),
        "recipe_text": content.recipe_text,
        "plan_hash": content.ledger.plan_hash,
        "head": content.ledger.head,
    }


def _baseline(content: RunContent, other: RunContent) -> dict[str, Any]:
    rows = baseline_rows(content, other)
    return {
        "terms": baseline_terms(other),
        "header": BASELINE_HEADER,
        "rows": [row.cells for row in rows],
        "sentences": [row.sentence for row in rows if row.sentence is not None],
        "is_private": not other.ledger.spent.not_private_because,
        "group_header": GROUP_PRICE_HEADER,
        "groups": group_prices(content, other),
        "unequal": unequal_terms(content, other),
    }


def _confidence(content: RunContent) -> list[tuple[str, ...]] | None:
    if content.calibration is None:
        return None
    measures = () if content.metrics is None else content.metrics.measures
    same = [row.name for row in measures if row.num_examples == content.calibration.num_examples]
    return [*confidence_rows(content.calibration, measured=same)]


def _membership(content: RunContent) -> list[tuple[str, AttackRow]]:
    """Return (number and name of the attack, row) of every measure; plots refer to attacks by number."""
    return [
        (f"{number}: {row.attack}", row)
        for number, found in enumerate(content.membership, start=1)
        for row in membership_rows(found)
    ]


def _rebuilt(content: RunContent) -> dict[str, Any] | None:
    if content.rebuilt is None:
        return None
    return {
        "header": REBUILT_HEADER,
        "rows": rebuilt_rows(content.rebuilt),
        "note": rebuilt_note(content.rebuilt),
        "pictures": content.rebuilt_pictures,
    }


def _private(content: RunContent) -> dict[str, Any] | None:
    """Return the content of the part on the private evaluation; None without one."""
    found = content.evaluation
    if found is None:
        return None
    header, confusion = private_figure_rows.confusion_rows(found)
    return {
        "warnings": found.figures.warnings,
        "headline_header": private_figure_rows.HEADLINE_HEADER,
        "headline": private_figure_rows.headline_rows(found),
        "confusion_header": header,
        "confusion": confusion,
        "class_header": private_figure_rows.CLASS_HEADER,
        "classes": private_figure_rows.class_rows(found),
        "group_header": private_figure_rows.GROUP_HEADER,
        "groups": private_figure_rows.group_rows(found),
        "reliability_header": private_figure_rows.RELIABILITY_HEADER,
        "reliability": private_figure_rows.reliability_rows(found),
        "note": private_figure_rows.note(found),
    }


def _importance(content: RunContent) -> list[dict[str, Any]]:
    """Return the parts on the importance of columns, each with what it rests on."""
    found = []
    if content.evaluation is not None:
        note = importance_rows.private_note(content.evaluation)
        parts = importance_rows.private_parts(content.evaluation)
        found += [{"part": part, "kind": "measured privately", "note": note} for part in parts]
    if content.importance is not None:
        note = importance_rows.public_note(content.importance)
        parts = importance_rows.public_parts(content.importance)
        found += [{"part": part, "kind": "on public records", "note": note} for part in parts]
    return found


def _audit(content: RunContent) -> dict[str, Any] | None:
    if content.audit is None:
        return None
    is_current = content.plan.matches_hash(content.audit.plan_hash)
    return {
        "is_current": is_current,
        "header": AUDIT_HEADER,
        "rows": audit_rows(content.audit) if is_current else [],
        "note": audit_note(content.audit),
        "plots": [audit_plot(content.audit)] if is_current else [],
    }


def stamps(content: RunContent) -> list[tuple[str, str]]:
    """Return (kind, text) of the marks at the top."""
    found = []
    if content.ledger.spent.not_private_because:
        found.append(("bad", "NOT PRIVATE"))
    if not content.agrees:
        found.append(("bad", "ledger mismatch"))
    if content.recipe is not None and content.is_public:
        # A user's own data are public by declaration, and not a benchmark.
        found.append(("plain", "benchmark data" if content.recipe.info.public else "data declared public"))
    if not content.is_finished:
        found.append(("warn", "unfinished run"))
    return found


def _tiles(content: RunContent) -> list[tuple[str, str, str]]:
    """Return (name, value, note) of the headline numbers."""
    spent = content.ledger.spent
    note = "not promised" if spent.not_private_because else f"promised {rounded_up(content.promised.epsilon)}"
    if content.ledger.further:
        note = f"training {rounded_up(content.ledger.trained.epsilon)}, and private evaluations"
    tiles = [] if content.in_all is None else [_tile_in_all(content.in_all.guarantee, spent)]
    tiles += [
        ("epsilon", rounded_up(spent.epsilon), note),
        ("delta", rounded_up(spent.delta), f"per {spent.unit.value}"),
    ]
    if spent.mu is not None:
        tiles.append(("mu (Gaussian DP)", rounded_up(spent.mu, 3), "at most, up to delta"))
    if content.metrics is not None and content.metrics.measures:
        first = content.metrics.measures[0]
        star = "" if content.is_public else " *"
        row = _measure_row(first)
        tiles.append((f"test {first.name}{star}", row["value"], f"{row['low']} to {row['high']}, n = {row['n']}"))
    return tiles


def _tile_in_all(total: Guarantee, spent: Guarantee) -> tuple[str, str, str]:
    return ("epsilon in all", rounded_up(total.epsilon), f"run {rounded_up(spent.epsilon)}, and its schema")


def _measure_row(measure: Measure) -> dict[str, str]:
    figures = (measure.value, measure.low, measure.high)
    is_share = measure.name == "accuracy"
    value, low, high = [f"{100 * each:.1f} %" for each in figures] if is_share else shown_numbers(figures)
    return {
        "name": measure.name,
        "value": value,
        "low": low,
        "high": high,
        "n": f"{measure.num_examples:,}",
        "interval": measure.interval,
    }


def _comparison(content: RunContent) -> list[tuple[str, str, str, bool]]:
    """Return (name, planned, in the ledger, whether they agree) for every quantity of the plan."""
    ledger, promised = content.ledger, content.promised
    total = ledger.spent.epsilon
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
            rounded_up(ledger.trained.epsilon),
            ledger.trained.epsilon <= promised.epsilon,
        ),
        *(
            [("epsilon with private evaluations", f"{len(ledger.further)} besides the plan", rounded_up(total), True)]
            if ledger.further
            else []
        ),
        ("rounds that differ from the plan", "0", f"{ledger.num_mismatches:,}", ledger.num_mismatches == 0),
        ("steps charged and not in the model", "any number", lost_steps_text(ledger), True),
        ("hash chain", "intact", f"intact, {ledger.num_rows:,} rows", True),
        (
            "plan",
            content.plan.hash[:16],
            ledger.plan_hash[:16],
            content.plan.matches_hash(ledger.plan_hash),
        ),
    ]


def _side_effects(content: RunContent) -> dict[str, Any] | None:
    """Return the content of the section on groups and attacks; None if neither was measured."""
    from privet.reports import side_effect_plots, side_effect_rows

    fairness, robustness = content.fairness, content.robustness
    if content.recipe is None or (fairness is None and robustness is None and content.long_tail is None):
        return None
    info = content.recipe.info
    attributes = () if fairness is None else fairness.attributes
    # Declared names: of columns and of their categories.
    parts = [part for name in info.feature_names for part in (name.partition("=")[0], name.partition("=")[2])]
    known = {"class", *info.class_names, *parts} - {""}
    plots = [
        side_effect_plots.group_plot(found, number=number, known_names=known)
        for number, found in enumerate(attributes, start=1)
    ]
    if robustness is not None:
        plots.append(side_effect_plots.radius_plot(robustness))
    return {
        "group_header": side_effect_rows.GROUP_HEADER,
        "groups": [(found.attribute, side_effect_rows.group_rows(found)) for found in attributes],
        "gap_header": side_effect_rows.GAP_HEADER,
        "gaps": [] if fairness is None else side_effect_rows.gap_rows(fairness),
        "source_header": side_effect_rows.SOURCE_HEADER,
        "sources": [] if fairness is None else side_effect_rows.source_rows(fairness),
        "radius_header": side_effect_rows.RADIUS_HEADER,
        "radii": [] if robustness is None else side_effect_rows.radius_rows(robustness),
        "attack": None if robustness is None else robustness,
        "growth": None if content.growth is None else side_effect_rows.growth_sentence(content.growth),
        "long_tail": content.long_tail,
        "plots": plots,
    }


def _dataset(content: RunContent) -> list[tuple[str, str]]:
    named = [("data set", content.data_name), ("model", content.model_name)]
    if content.recipe is None:
        return named
    info = content.recipe.info
    return [named[0], ("licence", info.licence), ("source", info.source), named[1]]


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of every value; nested tables are flattened."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        rows += _flat(value) if isinstance(value, Mapping) else [(key, str(value))]
    return rows
