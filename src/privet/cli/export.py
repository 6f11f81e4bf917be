"""``privet export``: the model of a run in a folder that serves without privet."""

from __future__ import annotations

import click

from privet.cli import console


@console.command("privet export runs/mine -o served", "python served/predict.py new.csv > predicted.csv")
@console.run_argument
@click.option("-o", "--output", type=click.Path(), required=True, help="The folder to write; new or empty.")
@console.json_option
def export(run_folder: str, output: str, as_json: bool) -> int:
    """Write the model of RUN in a folder that serves without privet.

    It holds the weights, the declaration of the records, the network, a program
    predict.py, the packages that it needs (numpy for tables, pillow too for images,
    torch and transformers for texts), ONNX where onnx is installed, the model card,
    and the certificate with all that is needed to check it. No record is read.
    """
    from pathlib import Path

    from privet.reports.certificate import Standing, certify
    from privet.reports.certificate_page import write_certificate
    from privet.reports.model_card import write_card
    from privet.reports.signature import copy_signature
    from privet.runs.serving.export import export_run

    found = export_run(run_folder, output)
    certificate = certify(run_folder)
    write_certificate(certificate, output)
    write_card(run_folder, Path(output) / "README.md")
    copy_signature(Path(run_folder), Path(output))
    written = sorted(path.name for path in found.folder.iterdir())
    if as_json:
        told = {"folder": str(found.folder), "files": written, "needs": list(found.needs)}
        console.show_json({**told, "left_out": list(found.left_out)})
    else:
        console.show_facts({"folder": str(found.folder), "files": ", ".join(written)})
        for line in found.left_out:
            console.remark(f"Left out: {line}")
        if found.needs:
            console.remark(
                f"Next: python {found.folder / 'predict.py'} FILE > predicted.csv  (needs {', '.join(found.needs)})"
            )
    return console.OK if certificate.standing in (Standing.COMPLETE, Standing.UNFINISHED) else console.BUDGET
