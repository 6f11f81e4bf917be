"""Parts of ``privet account``: ``event`` (any event), ``accept`` (a restored run folder), ``total`` (several runs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from privet.cli import console


@console.command(
    "privet account event event.json --delta 1e-5",
    "privet account event - --delta 1e-5 < event.json",
)
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--delta", type=float, required=True, help="Probability with which the bound may fail.")
@console.adjacency_option
@console.unit_option
@console.json_option
def event(file: Any, delta: float, adjacency: str, unit: str, as_json: bool) -> int:
    """Compute the guarantee of the event in FILE (- reads standard input).

    An event is JSON with a "type", such as
    {"type": "laplace", "noise_multiplier": 2.0}. Compositions hold other
    events: self_composed (event, count), composed (events), poisson_sampled
    (sampling_probability, event), and so on; a ledger's rows show more.
    """
    from privet.accounting.guarantee import guarantee, rounded_up
    from privet.errors import ArgumentError
    from privet.mechanism.events import decode_event
    from privet.vocabulary import Adjacency, Unit

    try:
        read = json.loads(file.read())
    except ValueError as error:
        raise ArgumentError(f"{file.name} is not JSON: {error}.") from None
    found = guarantee(decode_event(read), delta=delta, adjacency=Adjacency(adjacency), unit=Unit(unit))
    if as_json:
        console.show_json({"event": read, "guarantee": found.to_dict()})
        return console.OK
    console.show_heading(str(found))
    if found.cross_check is not None:
        console.show_facts({"cross-check (RDP)": rounded_up(found.cross_check)})
    return console.OK


@console.command("privet account accept runs/restored")
@console.run_argument
def accept(run_folder: str) -> int:
    """Accept RUN although this machine knows of a newer copy of it.

    Use it when the newer copy is lost. Its charges were spent, so they are
    charged in RUN as well and cannot be used again; the run can then resume
    with the rest of its plan.
    """
    from privet.accounting.ledger.rollback import accept_roll_back

    folder = Path(run_folder)
    added = accept_roll_back(folder / "ledger.jsonl" if folder.is_dir() else folder)
    if added:
        click.echo(f"{added:,} rounds of the newer copy were charged. See the total with: privet account {folder}")
    else:
        click.echo("Nothing was charged: this machine knows of no newer copy of the run.")
    return console.OK


@console.command("privet account total runs/first runs/second")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option("--delta", type=float, help="Delta of the total.  [default: that of the runs, if they agree]")
@console.json_option
def total(runs: tuple[str, ...], delta: float | None, as_json: bool) -> int:
    """Compose the ledgers of all RUNs on the same data.

    Every chain is checked and compared with its plan, as in `privet account
    RUN`; exit code 3 says that one of them differs. Include every run on the
    data, discarded runs too.
    """
    from privet.accounting.guarantee import rounded_up
    from privet.runs.project import total_of_runs

    found = total_of_runs([Path(run) for run in runs], delta=delta)
    if as_json:
        console.show_json(found.to_dict())
    else:
        console.show_heading(str(found.guarantee))
        click.echo()
        click.echo(console.paragraphs(found.guarantee.statement()))
        click.echo()
        rows = [
            [name, rounded_up(check.spent.epsilon), f"{check.rounds_charged:,}", check.mismatch or "agrees"]
            for name, check in found.runs.items()
        ]
        console.show_table(["run", "epsilon alone", "rounds", "plan"], rows, right=(1, 2))
    return console.OK if found.mismatch is None else console.BUDGET
