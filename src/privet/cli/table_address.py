"""Tables in databases on the command line: the options that complete a URL, and arguments that take a file or a URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

TABLE_HELP = "With the URL of a database: the table or view to read."
QUERY_HELP = "With the URL of a database: the query to read; it is stored with the recipe."
KEY_HELP = "With the URL of a database: the column that names each record; the primary key by default."


class DataPath(click.Path):
    """A file or folder that exists, or the address of a table in a database."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from privet.datasets.sql_tables import SqlTable, is_address

        if isinstance(value, str) and is_address(value):
            return SqlTable.at(value).address
        return super().convert(value, param, ctx)


DATA = DataPath(exists=True)


def sql_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--table``, ``--query`` and ``--key``."""
    for flag, name, text in (
        ("--key", "sql_key", KEY_HELP),
        ("--query", "sql_query", QUERY_HELP),
        ("--table", "sql_table", TABLE_HELP),
    ):
        command = click.option(flag, name, help=text)(command)
    return command


def address(data: str, *, table: str | None, query: str | None, key: str | None) -> str:
    """Return a path as it is, or the address of a table in a database with what the options name.

    Raises:
        UsageError: an option is given for a file, or both a table and a query are named.
        DataError: the URL holds a password.
    """
    from dataclasses import replace

    from privet.datasets.sql_tables import SqlTable, is_address

    given = {"table": table, "query": query, "key": key}
    named = {name: value for name, value in given.items() if value is not None}
    if not is_address(data):
        if named:
            raise click.UsageError(
                f"--{next(iter(named))} goes with the URL of a database, such as sqlite:///stays.db or env:NAME, and "
                f"{data} is a path."
            )
        return data
    found = SqlTable.at(data)
    if (table or found.table) is not None and (query or found.query) is not None:
        raise click.UsageError("--table and --query both say which records. Give one of them.")
    return replace(found, **named).address
