"""``privet schema``: a schema file for the columns of a table, to be completed by its owner."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from privet.cli import console
from privet.cli.table_address import DATA, DataPath, address, sql_options


@console.command(
    "privet schema visits.csv --target ill -o schema.toml",
    "privet schema visits.csv --target ill --public-sample old.csv",
    "privet schema env:CLINIC --table visits --target ill -o schema.toml",
)
@click.argument("data", metavar="TABLE", type=DataPath(exists=True, dir_okay=False))
@click.option("--target", "targets", multiple=True, required=True, help="A column to predict; may be repeated.")
@click.option("--person", help="The column that names a record's person; it is no input of the model.")
@click.option("--public-sample", type=DATA, help="Public records to derive ranges from.")
@click.option("--delimiter", help="The character between cells; a comma by default.")
@sql_options
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="File to write; printed by default.")
def schema(
    data: str,
    targets: tuple[str, ...],
    person: str | None,
    public_sample: str | None,
    delimiter: str | None,
    sql_table: str | None,
    sql_query: str | None,
    sql_key: str | None,
    output: str | None,
) -> None:
    """Write a schema of TABLE to complete: its columns, and what each may hold.

    TABLE is a file, or the URL of a database with --table or --query. Only its
    header is read. What a column holds is guessed from its
    name, and a ? is left to fill in. With public records of the same columns,
    ranges and categories are theirs.
    """
    from privet.datasets.words import composed
    from privet.runs.recipes.table_schema import schema_of_public_sample, schema_to_write, written

    table = address(data, table=sql_table, query=sql_query, key=sql_key)
    targets, person = tuple(map(composed, targets)), None if person is None else composed(person)
    mark = delimiter or ("\t" if ".tsv" in Path(table).name.lower() else ",")
    if public_sample is None:
        text = schema_to_write(table, targets=targets, delimiter=mark, person=person)
    else:
        text = written(schema_of_public_sample(public_sample, private=table, targets=targets, delimiter=mark))
    if output is None:
        click.echo(text)
        return
    from privet.runs.run_files import write_whole

    write_whole(Path(output), text + "\n")
    told = " ".join(f"--target {target}" for target in targets)
    told += "" if person is None else f" --person {person} --persons NUMBER"
    click.echo(
        f"Replace every ? in {output}, then: privet train {shlex.quote(table)} {told} --schema {output} --epsilon 3",
        err=True,
    )
