"""Shared parts of the commands: exit codes, error lines, options, tables and JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from privet.errors import ArgumentError, BudgetExceeded, LedgerCorrupt, LedgerMismatch, PrivetError, RecipeError

OK, FAILED, USAGE, BUDGET, INTERRUPTED = 0, 1, 2, 3, 130
_USUAL_WIDTH, _LEAST_WIDTH = 80, 40

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


def examples(*lines: str) -> str:
    r"""Return the examples at the end of a help page. ``\b`` keeps click from wrapping the lines."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def command(*lines: str, cls: type[click.Command] = click.Command) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command whose help page ends with these examples."""
    return click.command(cls=cls, context_settings=CONTEXT, epilog=examples(*lines))


recipe_argument = click.argument("recipe")
run_argument = click.argument("run_folder", metavar="RUN", type=click.Path())
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
quick_option = click.option("--quick", is_flag=True, help="Use the recipe's small version.")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the recipe, such as privacy.epsilon=2. May be repeated; an empty value removes the key.",
)
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
adjacency_option = click.option(
    "--adjacency",
    type=click.Choice(["add_or_remove", "replace_one", "zero_out"]),
    default="add_or_remove",
    show_default=True,
    help="Neighbouring data sets that the guarantee compares.",
)
LENGTHS = {"geometric": 1.0, "logarithmic": 0.0, "poisson": float("inf")}
"""The laws of a random number of runs, each with its shape of the truncated negative binomial."""
length_option = click.option(
    "--length",
    type=click.Choice(list(LENGTHS)),
    default="geometric",
    show_default=True,
    help="Law of the random number of runs: shape 1, 0 or infinity of the truncated negative binomial.",
)
unit_option = click.option(
    "--unit",
    type=click.Choice(["record", "person"]),
    default="record",
    show_default=True,
    help="The protected unit: one item of the data is one record or one person.",
)


def exit_code(error: PrivetError) -> int:
    """Return the exit code of an error: 3 for budget and ledger, 2 for a recipe or an option out of its range."""
    if isinstance(error, BudgetExceeded | LedgerMismatch | LedgerCorrupt):
        return BUDGET
    return USAGE if isinstance(error, RecipeError | ArgumentError) else FAILED


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
        words = fitted(str(error), sys.stderr, used=len("error: "))
        click.echo(f"{click.style('error:', fg='red', bold=True)} {words}", err=True, color=_colour(sys.stderr))
        return exit_code(error)
    except OSError as error:
        if wants_trace:
            traceback.print_exc()
        remark(f"error: {error}")
        return FAILED


def _colour(stream: Any) -> bool:
    import os

    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def fitted(text: str, stream: Any, *, used: int = 0, hang: int = 0) -> str:
    """Wrap long lines to the width of a terminal.

    The first line has ``used`` columns less; continuation lines begin with ``hang`` spaces. Lines that begin with a
    space are not wrapped, so that they can be copied. Outside of a terminal no line is wrapped, for programs that
    search the output.
    """
    if not stream.isatty():
        return text
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * hang, break_on_hyphens=False, break_long_words=False)
    lines = []
    for number, line in enumerate(text.splitlines()):
        wrapper.initial_indent = " " * used if number == 0 else ""
        lines.append(line if line.startswith(" ") else wrapper.fill(line)[len(wrapper.initial_indent) :])
    return "\n".join(lines)


def remark(text: str) -> None:
    """Print a remark on stderr; results go to stdout."""
    click.echo(fitted(text, sys.stderr), err=True)


def show_json(values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print plain values as JSON."""
    click.echo(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table; the columns ``right`` are right-aligned, and long cells are wrapped to the terminal's width."""
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
    """Return a width for every column: that of its longest cell, less if the table is too wide, never below a word."""
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
        click.echo(f"  {name.ljust(width)}  {fitted(value, sys.stdout, used=width + 4, hang=width + 4)}")


def show_heading(text: str) -> None:
    """Print a heading."""
    click.echo(click.style(fitted(text, sys.stdout, hang=2), bold=True))


def paragraphs(text: str, *, indent: str = "  ", hang: str = "") -> str:
    """Wrap sentences to 78 columns; ``hang`` is put before every line but the first."""
    # Names with hyphens are not broken, so that they can be copied.
    return textwrap.fill(
        text,
        width=78,
        initial_indent=indent,
        subsequent_indent=indent + hang,
        break_on_hyphens=False,
        break_long_words=False,
    )


def remark_if_unfinished(run_folder: str) -> bool:
    """Return whether a run is unfinished; if so, print a remark on the used checkpoint and how to resume the run."""
    from privet.runs.ledger_check import steps_in_checkpoint
    from privet.runs.resuming import resuming_command, stored_plan, stored_recipe
    from privet.runs.run_files import RunFiles

    files = RunFiles(folder=Path(run_folder))
    stored_recipe(files)  # refuses a folder without a recipe
    if files.model.exists():
        return False
    steps = steps_in_checkpoint(files.checkpoint)
    if steps is not None:
        click.echo(
            f"{run_folder} is not finished: its newest checkpoint, with {steps:,} of {stored_plan(files).num_steps:,} "
            f"steps, is used as its model.\nTo resume the run: {resuming_command(files)}",
            err=True,
        )
    return True
