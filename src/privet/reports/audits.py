"""Audits of a run's plan as table rows and as a plot: each proven lower bound beside the claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privet.accounting.guarantee import rounded_up
from privet.attacks.audit_claim import AuditFinding
from privet.reports.plots import BLUE, INK, ORANGE, Plot
from privet.runs.run_files import RunFiles, listed, read_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AUDIT_HEADER = ("audit", "attacker sees", "n scores", "rounds", "epsilon at least", "claimed at most", "verdict")
_KNOWN_AUDITS = ("canaries, little noise", "canaries per round", "canaries per run", "one run")


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """The audits stored with a run.

    Attributes:
        plan_hash: Fingerprint of the plan that was audited.
        findings: One per audit and attacker.
    """

    plan_hash: str
    findings: tuple[AuditFinding, ...]


def read_audit(files: RunFiles) -> AuditRecord | None:
    """Read the findings of audits; None without audits."""

    def parse(found: dict[str, Any]) -> AuditRecord:
        findings = tuple(AuditFinding.from_dict(row) for row in listed(found.get("findings")))
        return AuditRecord(plan_hash=str(found.get("plan")), findings=findings)

    return read_result(files.audit, parse)


def audit_rows(record: AuditRecord) -> list[tuple[tuple[str, ...], bool]]:
    """Return for each finding the cells of ``AUDIT_HEADER`` without the verdict, and whether the claim holds."""
    return [
        (
            (
                found.audit,
                found.attacker,
                f"{found.num_observations:,}",
                f"{found.num_rounds:,}",
                # A lower bound is rounded down, so that the printed figure is proven.
                f"{int(found.epsilon_bound * 1000) / 1000:g}",
                rounded_up(found.epsilon_claim),
            ),
            not found.is_broken,
        )
        for found in record.findings
    ]


def audit_note(record: AuditRecord) -> str:
    """Return a note on the confidence and delta of the findings."""
    first = record.findings[0]
    return (
        f"Both epsilons are at delta {first.delta:g} and for the audited rounds, which may be fewer than the run's. "
        f"Each lower bound is one-sided and holds with confidence {100 * first.confidence:.6g} %. The audit with "
        "little noise runs the same code without sampling, where faults show soonest: its epsilons are not the run's. "
        "Correct code gives a bound below the claim; such a bound does not prove that the code is correct."
    )


def audit_plot(record: AuditRecord) -> Plot:
    """Plot each proven lower bound as a share of its claim."""
    findings = [one for one in record.findings if 0 < one.epsilon_claim < float("inf")]
    shares = [one.epsilon_bound / one.epsilon_claim for one in findings]
    names = [one.audit if one.audit in _KNOWN_AUDITS else f"audit {place + 1}" for place, one in enumerate(findings)]

    def draw(axes: Axes) -> None:
        places = list(range(len(findings)))
        axes.barh(places, shares, height=0.55, color=BLUE, alpha=0.75)
        axes.plot(shares, places, "o", color=BLUE, markersize=6, clip_on=False)
        axes.axvline(1.0, color=ORANGE, linewidth=2)
        axes.annotate("claim", (1.0, -0.75), ha="center", color=INK, annotation_clip=False)
        limit = max([1.15, *(share * 1.1 for share in shares)])
        axes.set(xlabel="proven lower bound, share of the claim", xlim=(0, limit), ylim=(len(findings) - 0.4, -0.6))
        axes.set_yticks(places, names)
        axes.grid(axis="y", visible=False)
        axes.set_axisbelow(True)

    return Plot(
        name="audit",
        title="Proven lower bounds of the audits, against the claim",
        note="A bar that passes the line proves a fault in the code. A short bar proves nothing.",
        draw=draw,
        columns=("audit", "num_scores", "num_rounds", "epsilon_at_least", "epsilon_claimed"),
        rows=tuple(
            (float(place + 1), float(one.num_observations), float(one.num_rounds), one.epsilon_bound, one.epsilon_claim)
            for place, one in enumerate(findings)
        ),
    )
