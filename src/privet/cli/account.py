"""``privet account``: a guarantee from figures, or from the charges in a ledger."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.accounting.guarantee import Guarantee
    from privet.plan import Plan
    from privet.runs.ledger_check import LedgerCheck
    from privet.runs.search_files import SearchCheck


# Sub-commands by module, accepted in place of RUN. A run of that name is written ./NAME.
_MODULES = {
    "account_parts": ("event", "accept", "total"),
    "account_search": ("search",),
    "account_waste": ("waste", "batch"),
}
_PARTS = {name: f"privet.cli.{module}" for module, names in _MODULES.items() for name in names}


class _WithParts(click.Command):
    """A command whose first argument may name a sub-command, which is then loaded and called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in _PARTS:
            part: click.Command = getattr(importlib.import_module(_PARTS[args[0]]), args[0])
            return part.make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


@console.command(
    "privet account runs/demo",
    "privet account --rate 0.01 --steps 1000 --noise-multiplier 1 --delta 1e-5",
    "privet account --rate 0.01 --steps 1000 --epsilon 2 --delta 1e-5",
    "privet account event --help    any event in the format of ledgers",
    "privet account total --help    all runs of a project together",
    "privet account accept --help   resume from a restored run folder",
    "privet account search --help   a tuning search of random length",
    "privet account waste --help    waste of samplers in an epoch",
    "privet account batch --help    the expected batch that costs least",
    cls=_WithParts,
)
@click.argument("run_or_ledger", metavar="[RUN]", required=False, type=click.Path())
@click.option("--rate", type=float, help="Sampling rate: probability that a record is in a batch.")
@click.option("--steps", type=int, help="Number of steps.")
@click.option("--noise-multiplier", type=float, help="Noise, as a multiple of the clipping bound.")
@click.option("--epsilon", type=float, help="Find the noise for this epsilon instead.")
@click.option("--delta", type=float, help="Probability with which the bound may fail.")
@console.adjacency_option
@console.unit_option
@console.json_option
def account(
    run_or_ledger: str | None,
    rate: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float | None,
    adjacency: str,
    unit: str,
    as_json: bool,
) -> int:
    """Compute a guarantee from figures or from the ledger of RUN.

    RUN is a run's folder, a ledger file, or the folder of a search. Every row of
    its hash chain is checked, and the charges are compared with the plan; exit
    code 3 says that they differ.
    """
    figures = {"--rate": rate, "--steps": steps, "--delta": delta}
    if run_or_ledger is not None:
        given = [name for name, value in (*figures.items(), ("--epsilon", epsilon)) if value is not None]
        if given or noise_multiplier is not None:
            raise click.UsageError(f"Give a run or figures, not both (got {', '.join(given) or '--noise-multiplier'}).")
        return _ledger(run_or_ledger, as_json=as_json)
    if noise_multiplier is not None and epsilon is not None:
        raise click.UsageError("Give --noise-multiplier or --epsilon, not both: the other one is computed.")
    missing = [name for name, value in figures.items() if value is None]
    if missing or (noise_multiplier is None) == (epsilon is None):
        what = ", ".join(missing) if missing else "exactly one of --noise-multiplier and --epsilon"
        raise click.UsageError(f"Name a run, or give the figures of one; missing: {what}.")
    assert rate is not None
    assert steps is not None
    assert delta is not None
    plan = _plan(rate, steps, noise_multiplier, epsilon, delta, adjacency, unit)
    _show_figures(plan, as_json=as_json)
    return console.OK


def _plan(
    rate: float,
    steps: int,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
    adjacency: str,
    unit: str,
) -> Plan:
    from privet.mechanism.clipping import Threshold
    from privet.mechanism.noise import Gaussian
    from privet.mechanism.sampling import Poisson
    from privet.plan import Plan
    from privet.vocabulary import Adjacency, Unit

    plan = Plan(
        # Neither the clipping bound nor the divisor changes a guarantee, so any value is right.
        sampling=Poisson(rate=rate, steps=steps, expected_batch_size=1.0),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=noise_multiplier),
        delta=delta,
        adjacency=Adjacency(adjacency),
        unit=Unit(unit),
    )
    return plan if epsilon is None else plan.calibrated(epsilon=epsilon)


def _show_figures(plan: Plan, *, as_json: bool) -> None:
    guarantee, multiplier = plan.guarantee(), plan.noise.noise_multiplier
    if as_json:
        console.show_json({"noise_multiplier": multiplier, "guarantee": guarantee.to_dict()})
        return
    console.show_heading(str(guarantee))
    console.show_facts({"noise multiplier": f"{multiplier:.5g}", "steps": f"{plan.num_steps:,}"})


def _ledger(path: str, *, as_json: bool) -> int:
    from privet.runs.ledger_check import check_ledger
    from privet.runs.search_files import check_search, search_at

    search = search_at(Path(path))
    if search is not None:
        found = check_search(search)
        _show_search(found, as_json=as_json)
        return console.OK if found.mismatch is None else console.BUDGET
    check = check_ledger(Path(path))
    if as_json:
        console.show_json(_ledger_facts(check))
    else:
        _print_ledger(check)
    return console.OK if check.mismatch is None else console.BUDGET


def _show_search(check: SearchCheck, *, as_json: bool) -> None:
    if as_json:
        facts = {
            "agrees_with_trials": check.mismatch is None,
            "mismatch": check.mismatch,
            "searches_charged": check.num_searches,
            "trials_charged_in_full": check.num_trials,
            "rows": check.num_rows,
            "head": check.head,
        }
        console.show_json(facts | {"guarantee": check.spent.to_dict()})
        return
    _show_guarantee(check.spent)
    console.show_facts(
        {
            "chain": f"intact, {check.num_rows:,} rows",
            "charged together": "a random number of trials" if check.num_searches else "nothing",
            "charged in full": f"{check.num_trials:,} trials",
            "trials": "agree with the charges" if check.mismatch is None else f"MISMATCH: {check.mismatch}",
        }
    )


def _show_guarantee(guarantee: Guarantee) -> None:
    console.show_heading(str(guarantee))
    click.echo()
    click.echo(console.paragraphs(guarantee.statement()))
    click.echo()


def _ledger_facts(check: LedgerCheck) -> dict[str, Any]:
    return {
        "agrees_with_plan": check.mismatch is None,
        "mismatch": check.mismatch,
        "rounds_charged": check.rounds_charged,
        "rounds_planned": check.rounds_planned,
        "is_finished": check.is_finished,
        "rows": check.num_rows,
        "voids": check.num_voids,
        "steps_lost": check.steps_lost,
        "mismatches": check.num_mismatches,
        "head": check.head,
        "plan_hash": check.plan_hash,
        "guarantee": check.spent.to_dict(),
    }


def _print_ledger(check: LedgerCheck) -> None:
    from privet.runs.ledger_check import lost_steps_text, plan_end_text

    _show_guarantee(check.spent)
    console.show_facts(
        {
            "chain": f"intact, {check.num_rows:,} rows",
            "rounds charged": f"{check.rounds_charged:,} of {check.rounds_planned:,} planned",
            "end of plan": plan_end_text(check),
            "steps lost": lost_steps_text(check),
            "plan": "agrees with the charges" if check.mismatch is None else f"MISMATCH: {check.mismatch}",
        }
    )
