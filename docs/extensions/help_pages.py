"""The command-line page: the help of every verb, asked from the program itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
from sphinx.application import Sphinx

from privet.cli.account import _PARTS, account
from privet.cli.main import privet

PAGE = "command-line"


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield a command's name and help at 80 columns, then those of the commands below it."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=80, max_content_width=80)
    yield context.command_path, command.get_help(context)
    for word, below in _below(command, context):
        yield from helps(below, word, context)


def _below(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield word, below
    if command is account:
        for word, module in _PARTS.items():
            yield word, getattr(importlib.import_module(module), word)


def command_line_page() -> str:
    """Return the page's body: one heading and one box of text per command."""
    return "\n".join(f"## {path}\n\n```text\n{text}\n```\n" for path, text in helps(privet, "privet"))


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        source[0] += "\n" + command_line_page()


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill the page when it is read."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
