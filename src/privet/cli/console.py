"""What every verb shares: exit codes, error lines, tables and JSON."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from privet.errors import BudgetExceeded, LedgerMismatch, PrivetError, RecipeError

OK, FAILED, USAGE, BUDGET, INTERRUPTED = 0, 1, 2, 3, 130


def exit_code(error: PrivetError) -> int:
    """Return the exit code of an error: CI can gate on 3."""
    if isinstance(error, BudgetExceeded | LedgerMismatch):
        return BUDGET
    return USAGE if isinstance(error, RecipeError) else FAILED


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors become one line on stderr."""
    wants_trace = "--debug" in (sys.argv[1:] if args is None else args)
    try:
        result = command.main(args=None if args is None else list(args), prog_name="privet", standalone_mode=False)
        return result if isinstance(result, int) else OK
    except click.ClickException as error:
        error.show()
        return USAGE if isinstance(error, click.UsageError) else FAILED
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except PrivetError as error:
        if wants_trace:
            traceback.print_exc()
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True, color=_colour(sys.stderr))
        return exit_code(error)
    except OSError as error:
        if wants_trace:
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        return FAILED


def _colour(stream: Any) -> bool:
    import os

    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def show_json(values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print plain values as JSON, infinite numbers as text."""
    click.echo(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table in columns, numbers to the right."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    for index, line in enumerate([header, *rows]):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text = "  " + "  ".join(cells).rstrip()
        click.echo(click.style(text, bold=True) if index == 0 else text)


def show_facts(facts: Mapping[str, str]) -> None:
    """Print names and values in two columns."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        click.echo(f"  {name.ljust(width)}  {value}")


def show_heading(text: str) -> None:
    """Print a line that begins a part of the output."""
    click.echo(click.style(text, bold=True))


def paragraphs(text: str, *, indent: str = "  ") -> str:
    """Wrap sentences to the terminal's usual width."""
    return click.wrap_text(text, width=78, initial_indent=indent, subsequent_indent=indent)
