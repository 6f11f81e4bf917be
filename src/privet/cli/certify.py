"""``privet certify``: a certificate of a run's guarantee, for third parties to check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from privet.cli import console

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@console.command(
    "privet certify runs/demo",
    "privet certify runs/demo --new-key key.pem",
    "privet certify runs/demo --key key.pem",
    "python scripts/verify_certificate.py runs/demo",
)
@console.run_argument
@click.option("-o", "--output", type=click.Path(file_okay=False), help="Folder to write to.  [default: RUN]")
@click.option("--key", type=click.Path(dir_okay=False), help="Sign with this Ed25519 private key, a PEM file.")
@click.option("--new-key", type=click.Path(dir_okay=False), help="Make such a key first, in this new file, and sign.")
@console.json_option
def certify(run_folder: str, output: str | None, key: str | None, new_key: str | None, as_json: bool) -> int:
    """Write the certificate of RUN: certificate.json and an HTML page.

    It is computed from the ledger, whose chain is checked first. A separate
    program that shares no code with privet can verify the certificate. Exit
    code 3 says that the run differs from its plan or is not private; the
    certificate is still written and says so. With a key the certificate is
    signed, in certificate.signature.json; keep the key, and tell whoever checks
    the public key, which is printed. An older signature is removed.
    """
    from privet.reports.certificate import Standing
    from privet.reports.certificate import certify as certified
    from privet.reports.certificate_page import write_certificate
    from privet.reports.signature import SIGNATURE_NAME, sign_certificate

    if key is not None and new_key is not None:
        raise click.UsageError("--new-key makes a key and signs with it. Leave --key out.")
    held = None if key is None and new_key is None else _key(key, new_key)
    certificate = certified(run_folder)
    json_path, page_path = write_certificate(certificate, output or run_folder)
    (json_path.parent / SIGNATURE_NAME).unlink(missing_ok=True)  # of an earlier certificate
    signature, public = (None, None) if held is None else sign_certificate(json_path.parent, held)
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
                **({} if public is None else {"signature": str(signature), "public key": public}),
            }
        )
        for line in certificate.limits:
            click.echo(console.paragraphs(f"- {line}", hang="  "))
    return console.OK if certificate.standing in (Standing.COMPLETE, Standing.UNFINISHED) else console.BUDGET


def _key(path: str | None, new: str | None) -> Ed25519PrivateKey:
    """Return the key to sign with, a new one if asked; the password of an encrypted key is asked for."""
    from privet.reports.signature import PasswordNeeded, load_key, new_key

    if new is not None:
        new_key(new)
        return load_key(new)
    assert path is not None
    try:
        return load_key(path)
    except PasswordNeeded:
        return load_key(path, password=str(click.prompt(f"Password of {path}", hide_input=True, err=True)).encode())
