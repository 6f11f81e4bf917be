"""Reproductions in Markdown: one page per table or figure, and one line for each in the list of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from privet_research.reproduction.entry import Entry, Profile
from privet_research.reproduction.verdicts import Finding, Verdict, counted
from privet_research.studies.catalogue import find_study
from privet_research.studies.markdown import markdown
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
        f"Cost: {made.cost.shown}." if made.rows else "",
    ]
    parts += entry.remarks
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
    """Return every claim with the paper's figure, ours with its 95 % interval, the rule and the verdict.

    *Effect* is the distance from the paper's figure or the bound in standard deviations over seeds.
    """
    head = ["claim", "paper", "ours (95 % interval)", "seeds", "effect", "holds if", "because", "verdict"]
    lines = [head]
    for one in findings:
        paper = "" if one.claim.paper is None else f"{one.claim.paper:g}"
        reason = f" ({one.reason})" if one.reason else ""
        verdict = f"{one.verdict.value}{reason}"
        effect = "" if one.effect is None else f"{one.effect:+.2g}"
        rule, because = one.claim.rule, one.claim.because or ""
        lines.append([one.claim.says, paper, one.shown, str(one.num_seeds or ""), effect, rule, because, verdict])
    return markdown(lines)


def _origin(made: Reproduction) -> str:
    if not made.rows:
        return ""
    if not made.environments:
        return f"{len(made.rows)} rows, as `privet study` wrote them."
    devices = ", ".join(sorted({str(one["device"]) for one in made.environments}))
    commits = ", ".join(made.commits)
    seeds = len({row["seed"] for row in made.rows})
    return f"{len(made.rows)} rows, {seeds} {'seed' if seeds == 1 else 'seeds'}, made on {devices}; commit {commits}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def verdict_lines(made: Reproduction) -> list[str]:
    """Return a line for every claim, with the paper's figure, ours and the effect, and one for the whole entry."""
    lines = []
    for one in made.findings:
        reason = f" ({one.reason})" if one.reason else ""
        paper = "" if one.claim.paper is None else f"; paper {one.claim.paper:g}"
        ours = f"; ours {one.shown}" if one.shown else ""
        effect = "" if one.effect is None else f"; effect {one.effect:+.2g}"
        lines.append(f"  {one.verdict.value}{reason}: {one.claim.says}{paper}{ours}{effect}")
    return [*lines, f"  {made.line}" + (f"; cost: {made.cost.shown}" if made.rows else "")]


def summary_page(reproductions: Sequence[Reproduction], *, links: bool = True) -> str:
    """Return verdicts and costs of several entries as one table, and the counts of all claims.

    Args:
        reproductions: The entries.
        links: Whether each name links to the page of its entry.
    """
    head = ["name", "publication", "what", "verdict", "cost"]
    lines = [head]
    for made in reproductions:
        where = f"[{made.name}]({made.name}/table.md)" if links else f"`{made.name}`"
        what = f"{made.entry.title}: {made.entry.shows}"
        lines.append([where, made.entry.paper, what, made.line, made.cost.shown if made.rows else ""])
    table = markdown(lines)
    return f"# Published tables and figures, repeated\n\n{counts_line(reproductions)}\n\n{table}\n"


def counts_line(reproductions: Sequence[Reproduction]) -> str:
    """Return in one sentence how many claims, and how many entries, got each verdict."""
    claims = counted([one for made in reproductions for one in made.findings])
    by_entry = [made.verdict[0] for made in reproductions]
    entries = {verdict: by_entry.count(verdict) for verdict in Verdict if verdict in by_entry}
    said = [", ".join(f"{count} {one.value}" for one, count in counts.items()) for counts in (claims, entries)]
    return f"Claims: {said[0]}. Entries: {said[1]}."


def list_page(entries: Mapping[str, Entry]) -> str:
    """Return what can be repeated, as Markdown, for the documentation."""
    head = ["name", "publication", "what it shows", "not as published"]
    lines = [head]
    for name, entry in entries.items():
        lines.append([f"`{name}`", f"{entry.paper}, {entry.title}", entry.shows, " ".join(entry.remarks)])
    return markdown(lines) + "\n"
