"""``privet schema``: a schema file for the columns of a table, to be completed by its owner."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console
from privet.cli.table_address import DATA, DataPath, address, sql_options

if TYPE_CHECKING:
    from privet.datasets.counted_columns import BucketColumn, WordColumn
    from privet.runs.schema_release import CountedTable


@console.command(
    "privet schema visits.csv --target ill -o schema.toml",
    "privet schema visits.csv --target ill --public-sample old.csv",
    "privet schema env:CLINIC --table visits --target ill -o schema.toml",
    "privet schema visits.csv --target ill --epsilon 0.5 --size 2000 -o s.toml",
)
@click.argument("data", metavar="TABLE", type=DataPath(exists=True, dir_okay=False))
@click.option("--target", "targets", multiple=True, required=True, help="A column to predict; may be repeated.")
@click.option("--person", help="The column that names a record's person; it is no input of the model.")
@click.option("--public-sample", type=DATA, help="Public records to derive ranges from.")
@click.option("--delimiter", help="The character between cells; a comma by default.")
@sql_options
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="File to write; printed by default.")
@click.option("--epsilon", type=float, help="Release bounds and counts from the records, and spend this.")
@click.option("--delta", type=float, help="With --epsilon: delta; the default follows from --size.")
@click.option("--size", type=int, help="With --epsilon: approximate number of records; public.")
@click.option("--persons", type=int, help="With --epsilon and --person: approximate number of persons; public.")
@click.option("--bounds", multiple=True, help="With --epsilon: COLUMN of numbers, or COLUMN=LOW:HIGH.")
@click.option("--categories", multiple=True, help="With --epsilon: COLUMN=WORD,WORD, public words to count.")
@click.option("--tail", type=float, help="With --epsilon: share of numbers beyond each bound; 0.01 by default.")
@click.option("--decimal", type=click.Choice([".", ","]), help="With --epsilon: decimal mark; a point by default.")
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
    epsilon: float | None,
    delta: float | None,
    size: int | None,
    persons: int | None,
    bounds: tuple[str, ...],
    categories: tuple[str, ...],
    tail: float | None,
    decimal: str | None,
) -> None:
    """Write a schema of TABLE to complete: its columns, and what each may hold.

    TABLE is a file, or the URL of a database with --table or --query. Only its
    header is read. What a column holds is guessed from its
    name, and a ? is left to fill in. With public records of the same columns,
    ranges and categories are theirs.

    With --epsilon, bounds of numbers and counts of declared categories are
    released from the records, with noise. The cost is charged, before a record
    is read, on a ledger beside OUTPUT, which the schema names.
    """
    from privet.datasets.words import composed
    from privet.runs.recipes.table_schema import schema_of_public_sample, schema_to_write, written

    table = address(data, table=sql_table, query=sql_query, key=sql_key)
    targets, person = tuple(map(composed, targets)), None if person is None else composed(person)
    mark = delimiter or ("\t" if ".tsv" in Path(table).name.lower() else ",")
    given = {
        "--delta": delta, "--size": size, "--persons": persons, "--bounds": bounds, "--categories": categories,
        "--tail": tail, "--decimal": decimal,
    }  # fmt: skip
    if epsilon is not None:
        if public_sample is not None:
            raise click.UsageError("--public-sample tells ranges for nothing, and --epsilon spends on them. Give one.")
        text = _Release(
            table=table, targets=targets, person=person, delimiter=mark, output=output, epsilon=epsilon, delta=delta,
            size=size, persons=persons, bounds=bounds, categories=categories, tail=0.01 if tail is None else tail,
            decimal=decimal or ".",
        ).text()  # fmt: skip
    elif any(value not in (None, ()) for value in given.values()):
        names = ", ".join(name for name, value in given.items() if value not in (None, ()))
        raise click.UsageError(f"{names} goes with --epsilon, which releases bounds and counts from the records.")
    elif public_sample is None:
        text = schema_to_write(table, targets=targets, delimiter=mark, person=person)
    else:
        text = written(schema_of_public_sample(public_sample, private=table, targets=targets, delimiter=mark))
    if output is None:
        click.echo(text)
        return
    from privet.runs.run_files import write_whole

    write_whole(Path(output), text + "\n")
    told = " ".join(f"--target {target}" for target in targets)
    told += "" if person is None else f" --person {person} --persons {persons or 'NUMBER'}"
    click.echo(
        f"Replace every ? in {output}, then: privet train {shlex.quote(table)} {told} --schema {output} --epsilon 3",
        err=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Release:
    """The options of a schema that is released from private records."""

    table: str
    targets: tuple[str, ...]
    person: str | None
    delimiter: str
    output: str | None
    epsilon: float
    delta: float | None
    size: int | None
    persons: int | None
    bounds: tuple[str, ...]
    categories: tuple[str, ...]
    tail: float
    decimal: str

    def text(self) -> str:
        """Charge and release; return the schema.

        Guarantee: everything that can be refused without the records is refused before the charge.
        """
        from privet.runs.recipes.own_data_defaults import default_delta
        from privet.runs.recipes.table_schema import schema_to_write
        from privet.runs.schema_release import release_counts

        if self.output is None:
            raise click.UsageError("--epsilon spends on a ledger beside the schema. Name the file: -o schema.toml.")
        if Path(self.output).suffix == ".release" or not Path(self.output).parent.is_dir():
            raise click.UsageError(
                f"-o {self.output}: its folder must exist, and it must not end in .release, as the ledger does."
            )
        if not 0 < self.tail < 0.5:
            raise click.UsageError(f"--tail is a share between 0 and 0.5, such as 0.01; got {self.tail:g}.")
        counted, num_units = self._counted(), self._num_units()
        delta = default_delta(num_units) if self.delta is None else self.delta
        plan = counted.plan(epsilon=self.epsilon, delta=delta, num_units=num_units)
        folder = Path(self.output).with_suffix(".release")
        console.remark(f"{plan.guarantee()}, charged in {folder}; training comes on top.")
        counts, head = release_counts(self.table, counted, plan, folder)
        return schema_to_write(
            self.table,
            targets=self.targets,
            delimiter=self.delimiter,
            person=self.person,
            declared=counts.declarations(tail=self.tail),
            head=(
                f"train_size = {self.size}  # about how many records, as a public number",
                f"# Released with noise from private records: epsilon {self.epsilon:g}, delta {delta:g}.",
                f"# What is protected is one {counted.unit.value}.",
                f"# The total with a training: privet account total RUN {folder.name}. Keep the folder and this line:",
                f'release = {{ ledger = {_quoted(folder.name)}, head = "{head}" }}',
            ),
        )

    def _num_units(self) -> int:
        if self.size is None:
            raise click.UsageError("About how many records does the table have? Add --size 2000: a public number.")
        if self.person is None:
            if self.persons is not None:
                raise click.UsageError("--persons goes with --person COLUMN.")
            return self.size
        if self.persons is None:
            raise click.UsageError("About how many persons are the records about? Add --persons 500: a public number.")
        return self.persons

    def _counted(self) -> CountedTable:
        from privet.datasets.counted_columns import BucketColumn
        from privet.datasets.tables import read_header
        from privet.runs.recipes.table_schema import seems_a_number
        from privet.runs.schema_release import CountedTable

        words = [_words(each) for each in self.categories]
        numbers = [_numbers(each, self.decimal) for each in self.bounds]
        named = [column.name for column in words] + [column.name for column in numbers]
        named += [] if self.person is None else [self.person]
        header = read_header(self.table, targets=list(dict.fromkeys([*self.targets, *named])), delimiter=self.delimiter)
        taken = {*self.targets, *named}
        seeming = [name for name in header if name and name not in taken and seems_a_number(name)]
        return CountedTable(
            numbers=tuple(numbers) or tuple(BucketColumn(name=name, decimal=self.decimal) for name in seeming),
            words=tuple(words),
            person=self.person,
            delimiter=self.delimiter,
        )


def _numbers(text: str, decimal: str) -> BucketColumn:
    from privet.datasets.counted_columns import BucketColumn, grid_within
    from privet.datasets.words import composed

    name, mark, ends = text.partition("=")
    if not mark:
        return BucketColumn(name=composed(name), decimal=decimal)
    low, _, high = ends.partition(":")
    try:
        return BucketColumn(name=composed(name), edges=grid_within(float(low), float(high)), decimal=decimal)
    except ValueError:
        raise click.UsageError(
            f"--bounds is a column, or a column and a range that it lies in for sure, as in age=0:120; got {text!r}."
        ) from None


def _words(text: str) -> WordColumn:
    from privet.datasets.counted_columns import WordColumn
    from privet.datasets.words import composed

    column, mark, words = text.partition("=")
    if not mark:
        raise click.UsageError(
            f"--categories {text} names no words. Give the public ones, as in --categories {text}=north,south: privet "
            "does not discover words, because a word that one record holds would give that record away."
        )
    return WordColumn(name=composed(column), words=tuple(word.strip() for word in words.split(",")))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
