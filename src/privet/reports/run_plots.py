"""The plots of a run's report. Those that need the packages for drawing are loaded when they are drawn."""

from __future__ import annotations

import math
from typing import Any

from privet.reports.content import RunContent
from privet.vocabulary import Release


def privacy_plots(content: RunContent) -> list[Any]:
    """Return the plots of the privacy profile, and the trade-off of attackers."""
    from privet.reports import plots
    from privet.reports.trade_off_plots import trade_off_plots

    ledger = content.ledger
    if ledger.rounds_charged == 0 or math.isinf(ledger.spent.epsilon):
        return []
    adjacency, event = ledger.spent.adjacency, ledger.event
    profile = plots.profile_plot(event, adjacency, epsilon=ledger.spent.epsilon, delta=ledger.spent.delta)
    return [
        profile,
        *trade_off_plots(event, adjacency, attacks=content.membership, audited=_audited(content)),
    ]


def _audited(content: RunContent) -> tuple[float, float] | None:
    """Return the largest (epsilon, delta) that audits of the whole plan proved; None if they proved nothing."""
    if content.audit is None or not content.plan.matches_hash(content.audit.plan_hash):
        return None
    whole = [
        (found.epsilon_bound, found.delta)
        for found in content.audit.findings
        if found.num_rounds == content.plan.num_rounds
        and 0 < found.epsilon_bound < math.inf
        # The audit with little noise does not have the run's noise.
        and math.isclose(found.noise_claim, content.noise_multiplier or math.nan, rel_tol=1e-9)
    ]
    return max(whole, default=None)


def utility_plots(content: RunContent) -> list[Any]:
    """Return the plots of the budget and the measures over the run."""
    from privet.reports import plots

    ledger = content.ledger
    found = []
    if not math.isinf(ledger.spent.epsilon):
        table = content.plan.epsilon_by_round
        charged, epsilon = ledger.rounds_charged, ledger.spent.epsilon
        points = () if content.metrics is None else content.metrics.curve
        # Where only the last model is released, the rows belong to plans with fewer rounds and are no quick bounds.
        is_quicker = len(points) > 1 and content.plan.release is Release.EVERY_ITERATE
        found.append(
            plots.spending_plot(
                table,
                rounds_charged=charged,
                epsilon_spent=epsilon,
                with_evaluations=bool(ledger.further),
                is_quicker_than_measurements=is_quicker,
            )
        )
    if content.metrics is not None and len(content.metrics.curve) > 1:
        is_share = content.metrics.curve[0].measure.name == "accuracy"
        found.append(plots.curve_plot(content.metrics.curve, is_share=is_share))
        if not math.isinf(ledger.spent.epsilon):
            found.append(plots.budget_plot(content.metrics.curve, is_share=is_share))
    return found


def unprotected_plots(content: RunContent) -> list[Any]:
    """Return the plots of values of training batches that the guarantee does not cover."""
    from privet.reports.unprotected_plots import unprotected_plots

    return unprotected_plots(content.unprotected) if content.unprotected else []


def examination_plots(content: RunContent) -> list[Any]:
    """Return the plots of calibration, and attacks beside their limits."""
    from privet.reports import confidence_plots

    found = [] if content.calibration is None else [confidence_plots.reliability_plot(content.calibration)]
    if content.membership:
        ledger = content.ledger
        found.append(confidence_plots.roc_plot(content.membership, ledger.event, ledger.spent.adjacency))
    return found
