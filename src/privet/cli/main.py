"""The command ``privet``: its verbs, each loaded when it is called.

Exit codes: 0 done, 1 failed, 2 wrong usage or recipe, 3 budget exceeded, ledger damaged or not as planned, or claim
broken by an audit, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping

import click

from privet import __version__

# Verb to (module, command, help line). The help lines live here so that `privet --help` loads no verb.
_VERBS: Mapping[str, tuple[str, str, str]] = {
    "init": ("privet.cli.recipes", "init", "Print a template for your own recipe."),
    "plan": ("privet.cli.planning", "plan", "Show the guarantee of a recipe, before any data is read."),
    "train": ("privet.cli.train", "train", "Run a recipe, or resume a run."),
    "finetune": ("privet.cli.finetune", "finetune", "Tune adapters of a language model on private texts."),
    "tune": ("privet.cli.tune", "tune", "Search settings with trials; one ledger, one total."),
    "sweep": ("privet.cli.sweep", "sweep", "Compare epsilons on stand-ins, before one is chosen."),
    "evaluate": ("privet.cli.evaluate", "evaluate", "Measure a run's model on test data."),
    "schema": ("privet.cli.schema", "schema", "Write a schema of a table, to be completed."),
    "predict": ("privet.cli.predict", "predict", "Predict new records with a run's model."),
    "export": ("privet.cli.export", "export", "Write a run's model in a folder that serves it."),
    "report": ("privet.cli.report_command", "report", "Write a run's report: one HTML file."),
    "certify": ("privet.cli.certify", "certify", "Write a run's certificate, for third parties."),
    "card": ("privet.cli.card", "card", "Write a run's model card, for Hugging Face and others."),
    "account": ("privet.cli.account", "account", "Compute a guarantee from figures or a ledger."),
    "doctor": ("privet.cli.doctor", "doctor", "Check whether a model can be trained privately."),
    "allow": ("privet.cli.allow", "allow", "Agree that recipes may run a Python file."),
    "audit": ("privet.cli.audit_command", "audit", "Attack a plan with canaries; compare with its claim."),
    "federated": ("privet.cli.federated", "federated", "Run a federation of parties with separate ledgers."),
    "recipes": ("privet.cli.recipes", "recipes", "List, show or copy the packaged recipes."),
}

# Verbs of other distributions, found through this group of entry points if installed. Verb to (distribution, how to
# install it, help line).
ENTRY_POINTS = "privet.commands"
_INSTALL_RESEARCH = "pip install --editable research, in a clone of privet's repository"
_ELSEWHERE: Mapping[str, tuple[str, str, str]] = {
    "reproduce": ("privet-research", _INSTALL_RESEARCH, "Repeat a published table or figure; check it."),
    "study": ("privet-research", _INSTALL_RESEARCH, "Run one of the comparisons behind them."),
}

# Words that users try, and the verbs they look for.
_OFTEN_MEANT: Mapping[str, str] = {
    "verify": "'privet account RUN' checks a ledger row by row; 'privet certify RUN' writes a certificate.",
    "check": "'privet account RUN' checks a ledger, 'privet doctor RECIPE' a network.",
    "test": "'privet evaluate RUN' measures a run's model.",
    "resume": "'privet train' resumes a run: give the same recipe and the same folder.",
    "run": "'privet train RECIPE' runs a recipe.",
}

_EPILOG = """\b
Begin with:
  privet plan demo
  privet train demo -o runs/demo
  privet report runs/demo

\b
Exit codes: 0 done, 1 failed, 2 wrong usage or recipe,
3 budget exceeded, ledger damaged or not as planned, or claim
broken by an audit, 130 interrupted.
"""


class LazyGroup(click.Group):
    """A group that knows its commands' names and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_VERBS, *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            return _installed(cmd_name) or _missing(cmd_name)
        if cmd_name not in _VERBS:
            return None
        module, name, _ = _VERBS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their help lines, importing none of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, line) for verb, (_, _, line) in _VERBS.items()])
        with formatter.section("Verbs of privet-research"):
            formatter.write_dl([(verb, line) for verb, (_, _, line) in _ELSEWHERE.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest verb for one that does not exist."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib

            if args[0] in _OFTEN_MEANT:
                raise click.UsageError(f"There is no verb '{args[0]}'. {_OFTEN_MEANT[args[0]]}", ctx) from None
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" Verbs: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"There is no verb '{args[0]}'.{hint}", ctx) from None


def _installed(verb: str) -> click.Command | None:
    """Return the command that an installed distribution offers under this verb, or None."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=verb):
        command = entry.load()
        assert isinstance(command, click.Command)
        return command
    return None


def _missing(verb: str) -> click.Command:
    """Return a command that says which distribution to install, whatever its arguments are."""
    distribution, install, line = _ELSEWHERE[verb]

    def refuse() -> None:
        from privet.errors import DependencyError

        raise DependencyError(f"'privet {verb}' is part of {distribution}, which is not installed. Run: {install}.")

    return click.Command(
        verb,
        callback=refuse,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
        help=f"{line}\n\nIt is part of {distribution}, which is not installed. Run: {install}.",
        epilog=f"\b\nExample:\n  privet {verb}",
    )


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="privet")
@click.option("--debug", is_flag=True, help="Show the full trace of an error.")
@click.pass_context
def privet(ctx: click.Context, debug: bool) -> None:
    """Train neural networks with differential privacy, and account for the privacy budget."""
    ctx.obj = {"debug": debug}
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """Run the command line and exit."""
    from privet.cli.console import run

    sys.exit(run(privet))
