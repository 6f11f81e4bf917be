"""``privet predict``: predictions of a run's model for new records."""

from __future__ import annotations

import csv
import io

import click

from privet.cli import console
from privet.cli.table_address import DATA, address, sql_options


@console.command(
    "privet predict runs/people new.csv -o decided.csv",
    "privet predict runs/pets new_images",
    "privet predict runs/stays env:CLINIC --query 'SELECT * FROM stays' --key id",
)
@console.run_argument
@click.argument("data", type=DATA)
@sql_options
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="CSV file to write; printed by default.")
@console.device_option
def predict(
    run_folder: str,
    data: str,
    sql_table: str | None,
    sql_query: str | None,
    sql_key: str | None,
    output: str | None,
    device: str,
) -> None:
    """Predict the classes or numbers of the records of DATA with the model of RUN.

    DATA is a CSV file with the columns that RUN declares, with or without the
    label, the URL of a database with --table or --query, whose records are taken
    in the order of their key, or a folder of images. The output has one line per record: the class
    and the probability of every class, or the predicted number. An empty cell
    is replaced as in training, with a remark on stderr.

    The guarantee for the training records holds for any number of predictions.
    It does not protect the records in DATA.
    """
    from privet.runs.prediction import predict_new

    console.remark_if_unfinished(run_folder)
    where = address(data, table=sql_table, query=sql_query, key=sql_key)
    found = predict_new(run_folder, where, device=device)
    for gap in found.gaps:
        console.remark(
            f"{gap.count:,} of {len(found.names):,} records have an empty cell in the column {gap.column!r}: replaced "
            f"by {gap.taken_as!r}, as in training."
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["record", *found.columns])
    for name, *row in zip(found.names, *found.columns.values(), strict=True):
        writer.writerow([name, *(value if isinstance(value, str) else f"{value:.6f}" for value in row)])
    if output is None:
        click.echo(text.getvalue(), nl=False)
        return
    from pathlib import Path

    from privet.runs.run_files import write_whole

    write_whole(Path(output), text.getvalue())
    click.echo(f"{len(found.names):,} records: {output}", err=True)
