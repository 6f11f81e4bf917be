"""``privet account event``: a guarantee for any event, written as ledgers write it."""

from __future__ import annotations

import json
from typing import Any

import click

from privet.cli.console import OK, show_facts, show_heading, show_json
from privet.cli.options import CONTEXT, adjacency_option, examples, json_option, unit_option


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "privet account event event.json --delta 1e-5",
        "privet account event - --delta 1e-5 < event.json",
    ),
)
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--delta", type=float, required=True, help="Probability with which the bound may fail.")
@adjacency_option
@unit_option
@json_option
def event(file: Any, delta: float, adjacency: str, unit: str, as_json: bool) -> int:
    """Account the event in FILE (- reads standard input).

    An event is JSON with a "type", such as
    {"type": "laplace", "noise_multiplier": 2.0}. Compositions hold others:
    self_composed (event, count), composed (events), poisson_sampled
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
        show_json({"event": read, "guarantee": found.to_dict()})
        return OK
    show_heading(str(found))
    if found.cross_check is not None:
        show_facts({"cross-check (RDP)": rounded_up(found.cross_check)})
    return OK
