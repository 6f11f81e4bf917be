"""``privet certify``: a certificate of a run's guarantee, for third parties to check."""

from __future__ import annotations

import click

from privet.cli import console


@console.command("privet certify runs/demo", "python scripts/verify_certificate.py runs/demo")
@console.run_argument
@click.option("-o", "--output", type=click.Path(file_okay=False), help="Folder to write to.  [default: RUN]")
@console.json_option
def certify(run_folder: str, output: str | None, as_json: bool) -> int:
    """Write the certificate of RUN: certificate.json and an HTML page.

    It is computed from the ledger, whose chain is checked first. A separate
    program that shares no code with privet can verify the certificate. Exit
    code 3 says that the run differs from its plan or is not private; the
    certificate is still written and says so.
    """
    from privet.reports.certificate import Standing
    from privet.reports.certificate import certify as certified
    from privet.reports.certificate_page import write_certificate

    certificate = certified(run_folder)
    json_path, page_path = write_certificate(certificate, output or run_folder)
    if as_json:
        console.show_json(certificate.to_dict())
    else:
        console.show_heading(str(certificate.guarantee))
        console.show_facts(
            {
                "standing": certificate.standing.value.replace("_", " "),
                "device": ", ".join(certificate.devices) or "not recorded",
                "certificate": str(json_path),
                "page": str(page_path),
                "ledger head": certificate.head.sha256,
            }
        )
        for line in certificate.limits:
            click.echo(console.paragraphs(f"- {line}", hang="  "))
    return console.OK if certificate.standing in (Standing.COMPLETE, Standing.UNFINISHED) else console.BUDGET
