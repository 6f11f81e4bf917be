"""A certificate as two files: JSON for programs, and a self-contained HTML page without scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from privet import __version__
from privet.accounting.guarantee import rounded_up
from privet.errors import CheckpointError, DependencyError
from privet.reports.certificate import Certificate, Standing
from privet.reports.statement import promise, protection
from privet.runs.run_files import write_whole

JSON_NAME = "certificate.json"
PAGE_NAME = "certificate.html"

_VERDICTS: Mapping[Standing, tuple[str, str]] = {
    Standing.COMPLETE: ("good", "The run used exactly the budget of its plan, and its ledger is intact."),
    Standing.UNFINISHED: ("warn", "The run is not finished. The budget used so far is certified below."),
    Standing.DIFFERS_FROM_PLAN: ("bad", "The run differs from its plan. The figures are those of the ledger."),
    Standing.NOT_PRIVATE: ("bad", "Not private: nothing is promised for this run."),
}


def write_certificate(certificate: Certificate, folder: str | Path) -> tuple[Path, Path]:
    """Write both files into a folder and return their paths.

    Raises:
        CheckpointError: the folder does not exist, or a file cannot be written.
        DependencyError: the package that writes pages is not installed.
    """
    target = Path(folder)
    if not target.is_dir():
        raise CheckpointError(f"A certificate cannot be written to {target}: there is no such folder. Make it first.")
    page = render_page(certificate)
    json_path, page_path = target / JSON_NAME, target / PAGE_NAME
    write_whole(json_path, json.dumps(certificate.to_dict(), indent=2, allow_nan=False) + "\n")
    write_whole(page_path, page)
    return json_path, page_path


def render_page(certificate: Certificate) -> str:
    """Return the HTML text; all values are escaped."""
    try:
        import jinja2
    except ImportError as error:
        raise DependencyError(
            f"The page of a certificate needs jinja2; {error.name} is missing. Install it with: "
            "pip install 'privet[report]'."
        ) from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (resources.files("privet") / "reports" / "templates" / "certificate.html.j2").read_text("utf-8")
    return environment.from_string(template).render(_values(certificate))


def _values(certificate: Certificate) -> dict[str, Any]:
    spent, check = certificate.guarantee, certificate.check
    kind, verdict = _VERDICTS[certificate.standing]
    return {
        "version": __version__,
        "kind": kind,
        "verdict": verdict,
        "tiles": [
            ("epsilon", rounded_up(spent.epsilon), "at most, from the ledger"),
            ("delta", rounded_up(spent.delta), f"per {spent.unit.value}"),
            ("rounds", f"{check.rounds_charged:,}", f"charged, of {check.rounds_planned:,} planned"),
        ],
        "statement": promise(spent),
        "assumptions": spent.assumptions,
        "limits": certificate.limits,
        "terms": _terms(certificate),
        "events": [(_event_text(event), f"{count:,}") for event, count in certificate.events],
        "fingerprints": _fingerprints(certificate),
        "versions": ["; ".join(_flat(entry)) for entry in certificate.versions],
    }


def _terms(certificate: Certificate) -> list[tuple[str, str]]:
    spent, noise = certificate.guarantee, certificate.noise
    found = [
        *protection(spent),
        ("Accounted by", f"the {spent.accountant} accountant"),
    ]
    if spent.witness is not None:
        found.append(("Confirmed by", f"the dp-accounting library, which gives epsilon {rounded_up(spent.witness)}"))
    found.append(("Computed on", ", ".join(certificate.devices) or "not recorded"))
    found.append(("Noise from", noise.generator))
    if noise.delta is not None and noise.reach is not None:
        text = f"no draw exceeds {noise.reach:.2f} standard deviations, which costs at most {rounded_up(noise.delta)}"
        found.append(("Truncation of its tail", f"{text} of delta"))
    return found


def _fingerprints(certificate: Certificate) -> list[tuple[str, str]]:
    found = [
        ("Ledger, newest row", f"{certificate.head.sha256} (row {certificate.head.seq:,})"),
        ("Plan", certificate.check.plan_hash),
    ]
    if certificate.plan_file_sha256 is not None:
        found.append(("Plan's file", certificate.plan_file_sha256))
    if certificate.model is not None:
        found.append((f"Model, {certificate.model.name}", certificate.model.sha256))
    return found


def _event_text(event: Mapping[str, Any]) -> str:
    """Return the name and the numbers of an event."""
    numbers = [
        f"{name.replace('_', ' ')} {value:.6g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in event.items()
        if isinstance(value, int | float | str) and name != "type"
    ]
    inner = [_event_text(value) for value in event.values() if isinstance(value, Mapping)]
    parts = [str(event.get("type", "event")).replace("_", " "), *numbers]
    return ", ".join(parts) + "".join(f"; of {part}" for part in inner)


def _flat(values: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        found += _flat(value) if isinstance(value, Mapping) else [f"{name} {value}"]
    return found
