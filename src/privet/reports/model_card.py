"""A model card in the form that Hugging Face reads: front matter, the statement, and how to verify it.

It is a function of the run's ledger, plan and certificate, and of the measurements that the run published.
"""

from __future__ import annotations

import json
from pathlib import Path

from privet.reports import private_figure_rows
from privet.reports.certificate import Certificate, certify
from privet.reports.content import RunContent, gather
from privet.reports.statement import promise, protection
from privet.runs.run_files import write_whole

CARD_NAME = "README.md"
_SIDE_EFFECTS = (
    "Clipping and noise cost accuracy, most of it on classes and groups with few records. Measure them apart.",
    "Probabilities of privately trained models can be badly calibrated.",
    "The guarantee bounds what the model reveals about one {unit}. It does not make predictions fair, right or safe.",
)


def write_card(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the model card of a run, as ``README.md`` in its folder by default.

    Raises:
        LedgerError: the ledger is damaged or was rolled back, so nothing can be stated.
    """
    target = Path(path) if path is not None else Path(folder) / CARD_NAME
    text = card(gather(folder), certify(folder))
    write_whole(target, text)
    return target


def card(content: RunContent, certificate: Certificate) -> str:
    """Return the text of a model card.

    Guarantee: every figure about privacy is that of the certificate; what a schema spent besides stands in a part of
    its own. Measurements are those of a private evaluation, which the certificate covers, and others only where the run
    published them, with the words "not covered by the guarantee".
    """
    spent = certificate.guarantee
    parts = [
        _front_matter(content, certificate),
        f"# {_plain(content.title)}\n",
        "This model was trained with differential privacy by privet.\n"
        if not spent.not_private_because
        else "**NOT PRIVATE.** Nothing is promised for this model.\n",
        f"## Guarantee\n\n    {spent}\n\n{promise(spent)}\n",
        "| term | meaning |\n| --- | --- |\n"
        + "".join(f"| {_plain(name)} | {_plain(value)} |\n" for name, value in protection(spent)),
        "## Assumptions\n\n" + "".join(f"* {_plain(each)}\n" for each in spent.assumptions),
        "## Not covered\n\n" + "".join(f"* {_plain(each)}\n" for each in certificate.limits),
        _in_all(content),
        _measured_privately(content),
        _measured(content),
        "## Side effects\n\n" + "".join(f"* {each.format(unit=spent.unit.value)}\n" for each in _SIDE_EFFECTS),
        _verification(certificate),
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(content: RunContent, certificate: Certificate) -> str:
    """Return the YAML block of the card. Its texts are quoted as JSON strings, which YAML reads as they are."""
    spent = certificate.guarantee
    facts = {
        "epsilon": repr(spent.epsilon) if spent.epsilon < float("inf") else ".inf",
        "delta": repr(spent.delta),
        "adjacency": json.dumps(spent.adjacency.value),
        "unit": json.dumps(spent.unit.value),
        "accountant": json.dumps(spent.accountant),
        "standing": json.dumps(certificate.standing.value),
        "ledger_head": json.dumps(certificate.head.sha256),
    }
    rows = "".join(f"  {name}: {value}\n" for name, value in facts.items())
    tags = "".join(f"- {tag}\n" for tag in ("differential-privacy", "privet"))
    return f"---\nlibrary_name: privet\ntags:\n{tags}differential_privacy:\n{rows}---\n"


def _in_all(content: RunContent) -> str:
    """Return what run and schema spent together; empty where no schema was released from private records."""
    if content.in_all is None:
        return ""
    return (
        "## With its schema\n\nThe ranges and counts of the columns were released from the same private records, on a "
        f"ledger of their own. Together:\n\n    {content.in_all.guarantee}\n"
    )


def _measured_privately(content: RunContent) -> str:
    found = content.evaluation
    if found is None:
        return ""
    header = ("measure", *private_figure_rows.HEADLINE_HEADER[1:])
    rows = [header, ("---",) * len(header), *private_figure_rows.headline_rows(found)]
    table = "".join(f"| {' | '.join(cell if row[0] == '---' else _plain(cell) for cell in row)} |\n" for row in rows)
    warned = "".join(f"* {_plain(each)}\n" for each in found.figures.warnings)
    return f"## Measured privately\n\n{table}\n{_plain(private_figure_rows.note(found))}\n" + (warned and f"\n{warned}")


def _measured(content: RunContent) -> str:
    if content.metrics is None or not content.metrics.measures:
        return ""
    rows = "".join(
        f"| {_plain(each.name)} | {each.value:.4g} | {each.low:.4g} to {each.high:.4g} ({_plain(each.interval)}) |\n"
        for each in content.metrics.measures
    )
    heading = "## Measured on test data\n\nNot covered by the guarantee.\n\n| measure | value | interval |\n"
    return f"{heading}| --- | --- | --- |\n{rows}"


def _verification(certificate: Certificate) -> str:
    return (
        "## Verify\n\nThe certificate lies beside the ledger. The second program shares no code with privet and "
        "computes every figure again; it is in privet's source, and RUN is the folder of this file:\n\n```console\n"
        "python scripts/verify_certificate.py RUN\n```\n\n"
        f"Newest row of the ledger: `{certificate.head.sha256}`.\n"
    )


def _plain(text: str) -> str:
    """Return text that is no markup: one line, with what Markdown and HTML read as signs escaped."""
    line = " ".join(str(text).split())
    for sign in "\\`*_[]<>|#":
        line = line.replace(sign, f"\\{sign}")
    return line
