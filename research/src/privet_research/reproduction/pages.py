"""Reproductions in Markdown: one page per table or figure, and one line for each in the list of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from privet_research.reproduction.entry import Entry, Profile
from privet_research.reproduction.verdicts import Finding
from privet_research.studies.catalogue import find_study
from privet_research.studies.study import Row

if TYPE_CHECKING:
    from privet_research.reproduction.running import Reproduction


def entry_page(made: Reproduction) -> str:
    """Return the page of one entry: what it is, its claims beside ours, and its table."""
    entry = made.entry
    quick = " --quick" if made.profile is Profile.QUICK else ""
    parts = [
        f"# {entry.paper}, {entry.title}",
        f"{_sentence(entry.shows)} Made by `privet reproduce {made.name}{quick}`.",
        f"**{made.line}**",
    ]
    if entry.reconstructed is not None:
        parts.append(f"Reconstructed: {entry.reconstructed}")
    if entry.unavailable is not None:
        parts.append(f"Not available: {entry.unavailable}")
    parts += [f"Not run: {reason}" for reason in made.failures]
    if made.findings:
        parts.append(claims_table(made.findings))
    for study in entry.studies:
        rows = made.rows_of(study)
        if rows:
            parts.append(f"## Rows of {study}\n\n{_table(study, rows)}")
    parts.append(_origin(made))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(study: str, rows: list[Row]) -> str:
    try:
        return find_study(study).table(rows).strip()
    except KeyError as error:
        # Stored rows may be older than the study; their claims were judged, where they could be.
        return f"No table: the rows lack {error}, so another version of the study made them. Run it anew."


def claims_table(findings: Sequence[Finding]) -> str:
    """Return every claim with the paper's figure, ours with its 95 % interval, the rule and the verdict."""
    head = ["claim", "paper", "ours (95 % interval)", "seeds", "holds if", "verdict"]
    lines = [head, ["---"] * len(head)]
    for one in findings:
        paper = "" if one.claim.paper is None else f"{one.claim.paper:g}"
        reason = f" ({one.reason})" if one.reason else ""
        verdict = f"{one.verdict.value}{reason}"
        lines.append([one.claim.says, paper, one.shown, str(one.num_seeds or ""), one.claim.rule, verdict])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _origin(made: Reproduction) -> str:
    if not made.rows:
        return ""
    if not made.environments:
        return f"{len(made.rows)} rows, as `privet study` wrote them."
    devices = ", ".join(sorted({str(one["device"]) for one in made.environments}))
    commits = ", ".join(made.commits)
    seeds = len({row["seed"] for row in made.rows})
    return (
        f"{len(made.rows)} rows, {seeds} {'seed' if seeds == 1 else 'seeds'}, {made.seconds:,.0f} s of running on "
        f"{devices}; commit {commits}."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def summary_page(reproductions: Sequence[Reproduction]) -> str:
    """Return the verdicts of several entries as one table."""
    head = ["name", "publication", "what", "verdict"]
    lines = [head, ["---"] * len(head)]
    for made in reproductions:
        where = f"[{made.name}]({made.name}/table.md)"
        lines.append([where, made.entry.paper, f"{made.entry.title}: {made.entry.shows}", made.line])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"# Published tables and figures, repeated\n\n{table}\n"


def list_page(entries: Mapping[str, Entry]) -> str:
    """Return what can be repeated, as Markdown, for the documentation."""
    head = ["name", "publication", "what it shows", "not as published"]
    lines = [head, ["---"] * len(head)]
    for name, entry in entries.items():
        remarks = [text for text in (entry.reconstructed, entry.unavailable) if text is not None]
        lines.append([f"`{name}`", f"{entry.paper}, {entry.title}", entry.shows, " ".join(remarks)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
