"""The options of ``privet train`` and ``privet sweep`` about a user's own table, texts or images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from privet.cli.gathered import gathered
from privet.cli.table_address import DATA, KEY_HELP, QUERY_HELP, TABLE_HELP
from privet.cli.train_own_data import OwnData


def _in_composed_form(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    """Return the names of columns in the form in which headers are compared; None for an option that was not given."""
    from privet.datasets.words import composed

    if isinstance(value, tuple):
        return tuple(map(composed, value)) or None
    return composed(value) if isinstance(value, str) else value


def _name_option(flag: str, text: str, *, multiple: bool = False) -> Callable[..., Any]:
    return click.option(flag, help=text, callback=_in_composed_form, multiple=multiple)


_FILE = click.Path(exists=True)
_OPTIONS = (
    click.option("--epsilon", type=float, help="Target epsilon; a smaller value is a stronger guarantee."),
    click.option("--delta", type=float, help="Target delta; for own data, the default follows from --size."),
    click.option("--size", type=int, help="Own data: approximate number of records; public."),
    click.option("--test", type=DATA, help="Own data: file or folder to measure on, not protected."),
    _name_option("--target", "Own table: a column to predict; may be repeated.", multiple=True),
    click.option("--schema", type=_FILE, help="Own table: the TOML file that declares its columns."),
    click.option("--public-sample", type=DATA, help="Own table: public records to derive ranges from."),
    click.option("--table", help=TABLE_HELP),
    click.option("--query", help=QUERY_HELP),
    click.option("--key", help=KEY_HELP),
    click.option("--delimiter", help="Own table: the character between cells."),
    click.option("--decimal", type=click.Choice([".", ","]), help="Own table: decimal mark; a point by default."),
    _name_option("--person", "Own table or texts: the column that names a record's person, who is then protected."),
    click.option("--persons", type=int, help="With --person: approximate number of persons; public."),
    click.option("--records-per-person", type=int, help="With --person: the most records of one; 8 by default."),
    click.option(
        "--sample",
        type=click.Choice(["persons", "records"]),
        help="With --person: draw persons (default) or records.",
    ),
    click.option(
        "--one-record-per-person",
        is_flag=True,
        default=None,
        help="Own table or texts: declare that nobody has two records; persons are then protected.",
    ),
    click.option(
        "--classes",
        help="Own images: sub-folders to use, as in cat,dog; all by default. Own texts: the target's words.",
    ),
    click.option("--image-size", help="Own images: size of the resized images; 32x32 by default."),
    _name_option("--text", "Own texts: the column with the text; needs --model and --classes."),
    click.option("--model", help="Own images or table: file.py:build, which is run. Own texts: folder of an encoder."),
    click.option("--weights", type=_FILE, help="With file.py:build: its public weights, a safetensors file."),
    click.option("--train", help="With file.py:build: head, all, adapters, or names as in 'classifier.*'."),
    click.option("--length", type=int, help="Own texts: declared tokens of a record; 128 by default."),
    click.option("--channels", type=click.Choice(["grey", "colour"]), help="Own images: colour by default."),
)


def own_data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for own data; the command takes them as ``own``, an :class:`OwnData`."""
    taking = gathered(OwnData, "own")(command)
    for option in reversed(_OPTIONS):
        taking = option(taking)
    return taking
