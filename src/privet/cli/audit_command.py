"""``privet audit``: attack a plan with canaries, and compare the proven lower bound with the claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.runs.auditing import AuditReport


@console.command(
    "privet audit demo",
    "privet audit runs/demo --kind canary --kind one-run",
    "privet audit mine.toml --model mine.py:build --canaries 10000",
)
@click.argument("recipe_or_run")
@console.set_option
@click.option("--model", metavar="CODE", help="A network of your own, file.py:function; THAT CODE IS RUN.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(["canary", "one-run"]),
    multiple=True,
    default=("canary",),
    show_default=True,
    help="The audit to run. May be repeated.",
)
@click.option("--canaries", type=click.IntRange(min=1), default=2000, show_default=True, help="Number of canaries.")
@click.option("--rounds", type=click.IntRange(min=1), default=10, show_default=True, help="Rounds of the canary audit.")
@click.option(
    "--confidence",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    default=0.9999,
    show_default=True,
    help="A correct program passes each test with at least this probability.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all random numbers.")
@console.device_option
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), help="File for the findings: audit.json, or the run's own."
)
@console.json_option
def audit(
    recipe_or_run: str,
    overrides: tuple[str, ...],
    model: str | None,
    kinds: tuple[str, ...],
    canaries: int,
    rounds: int,
    confidence: float,
    seed: int,
    device: str,
    output: str | None,
    as_json: bool,
) -> int:
    """Attack the plan of RECIPE_OR_RUN and compare with its claim.

    The plan's own sampling, clipping, mask and noise run on its own network,
    with made-up records (canaries) that an attacker tries to detect. The
    attacker's success proves a lower bound on epsilon; the accountant claims an
    upper bound. Exit code 3 says that the lower bound is above the claim: the
    code is broken.

    --kind canary reads no data and takes seconds. --kind one-run trains on the
    data, which must be public, and takes as long as training.
    """
    from privet.runs.auditing import AuditKind, find_subject
    from privet.runs.auditing import audit as run_audit
    from privet.runs.run_files import write_json

    subject = find_subject(recipe_or_run, overrides, model=model)
    report = run_audit(
        subject,
        kinds=[AuditKind(kind) for kind in kinds],
        num_canaries=canaries,
        num_rounds=rounds,
        confidence=confidence,
        seed=seed,
        device=device,
    )
    target = Path(output) if output is not None else (subject.folder or Path()) / "audit.json"
    is_replaced = target.exists()
    write_json(target, report.to_dict())
    if as_json:
        console.show_json(report.to_dict())
        console.remark(f"The findings are also in {target}.")
    else:
        _print(report)
        click.echo(f"Findings: {target}")
    if is_replaced:
        console.remark(f"{target} existed and was replaced. To keep both, name another file with -o.")
    return console.BUDGET if report.is_broken else console.OK


def _print(report: AuditReport) -> None:
    from privet.accounting.guarantee import rounded_up
    from privet.runs.auditing import LITTLE_NOISE

    rows = [
        [
            finding.audit,
            finding.attacker,
            f"{finding.num_observations:,}",
            f"{finding.num_rounds:,}",
            f"{finding.noise_claim:.3g}",
            f"{finding.epsilon_bound:.3f}",
            rounded_up(finding.epsilon_claim),
            "BROKEN" if finding.is_broken else "ok",
        ]
        for finding in report.findings
    ]
    header = ["audit", "attacker sees", "scores", "rounds", "noise", "epsilon >=", "claim <=", ""]
    console.show_table(header, rows, right=(2, 3, 4, 5, 6))
    delta, confidence = report.findings[0].delta, report.findings[0].confidence
    click.echo(
        console.paragraphs(
            f"Epsilons at delta {delta:g}, for the audited rounds. Each lower bound holds with confidence "
            f"{confidence:.6g}. Correct code gives a bound below the claim; such a bound does not prove that the code "
            "is correct."
        )
    )
    little = next((finding for finding in report.findings if finding.audit == LITTLE_NOISE), None)
    if little is not None:
        click.echo(
            console.paragraphs(
                f"'{LITTLE_NOISE}' is the same code at a noise multiplier of {little.noise_claim:g} and without "
                "sampling, where faults of noise and clipping show soonest; its epsilons are not the run's."
            )
        )
    if report.is_broken:
        click.echo("The claim is BROKEN: the plan leaks more than the accountant claims. Do not train with it.")
