"""What every verb shares: exit codes, error lines, tables and JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from privet.errors import BudgetExceeded, LedgerMismatch, PrivetError, RecipeError

OK, FAILED, USAGE, BUDGET, INTERRUPTED = 0, 1, 2, 3, 130
_USUAL_WIDTH = 80


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
    """Print a table in columns, numbers to the right; words are wrapped where it would be wider than the terminal."""
    widths = _column_widths([header, *rows], right)
    for index, line in enumerate([header, *rows]):
        wrapped = [
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]
            for cell, width in zip(line, widths, strict=True)
        ]
        for place in range(max(len(parts) for parts in wrapped)):
            cells = [
                text.rjust(width) if column in right else text.ljust(width)
                for column, (parts, width) in enumerate(zip(wrapped, widths, strict=True))
                for text in [parts[place] if place < len(parts) else ""]
            ]
            text = "  " + "  ".join(cells).rstrip()
            click.echo(click.style(text, bold=True) if index == 0 else text)


def _column_widths(lines: Sequence[Sequence[str]], right: Sequence[int]) -> list[int]:
    """Return a width for every column: what its cells need, less where that is too wide, never less than a word."""
    columns = list(zip(*lines, strict=True))
    widths = [max(1, *(len(cell) for cell in cells)) for cells in columns]
    least = [
        width if column in right else max(1, *(len(word) for cell in cells for word in (cell.split() or [""])))
        for column, (cells, width) in enumerate(zip(columns, widths, strict=True))
    ]
    room = max(_USUAL_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _USUAL_WIDTH
    while sum(widths) + 2 * len(widths) > room:
        column = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        if widths[column] == least[column]:
            break
        widths[column] -= 1
    return widths


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
    # Names with hyphens stay in one piece: they are there to be copied.
    return textwrap.fill(
        text, width=78, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
