"""``privet account search``: the guarantee of a tuning search of random length."""

from __future__ import annotations

import click

from privet.cli import console


@console.command(
    "privet account search --mean 10 --rate 0.01 --steps 1000\n    --noise-multiplier 1 --delta 1e-5",
)
@click.option("--mean", type=click.FloatRange(min=1), required=True, help="Expected number of runs.")
@console.length_option
@click.option("--rate", type=float, required=True, help="Sampling rate: probability that a record is in a batch.")
@click.option("--steps", type=int, required=True, help="Number of steps of one run.")
@click.option("--noise-multiplier", type=float, required=True, help="Noise, as a multiple of the clipping bound.")
@click.option("--delta", type=float, required=True, help="Probability with which the bound may fail.")
@console.adjacency_option
@console.unit_option
@console.json_option
def search(
    mean: float,
    length: str,
    rate: float,
    steps: int,
    noise_multiplier: float,
    delta: float,
    adjacency: str,
    unit: str,
    as_json: bool,
) -> int:
    """Account a search with a random number of runs that releases the best one.

    The number is drawn once, in advance, and only one model is released. For
    comparison, the cost of the same expected number of runs is shown for the
    case that all of them are released.
    """
    from privet.accounting.guarantee import guarantee, rounded_up, unverifiable_assumptions
    from privet.accounting.private_selection import RandomSearch
    from privet.mechanism.events import compose
    from privet.mechanism.noise import Gaussian
    from privet.mechanism.sampling import Poisson
    from privet.vocabulary import Adjacency, Unit

    sampling = Poisson(rate=rate, steps=steps, expected_batch_size=1.0)
    one_run = compose([(sampling.amplify(Gaussian(noise_multiplier=noise_multiplier).event()), steps)])
    tried = RandomSearch(mean=mean, shape=console.LENGTHS[length])
    answers = {
        "search": tried.event(one_run),
        "one_run": one_run,
        "every_run_seen": compose([(one_run, max(1, round(mean)))]),
    }
    words = {"search": tried.assumptions}
    found = {
        name: guarantee(
            event,
            delta=delta,
            adjacency=Adjacency(adjacency),
            unit=Unit(unit),
            assumptions=(*words.get(name, ()), *unverifiable_assumptions(Unit(unit))),
        )
        for name, event in answers.items()
    }
    if as_json:
        console.show_json({name: promise.to_dict() for name, promise in found.items()})
        return console.OK
    console.show_heading(str(found["search"]))
    console.show_facts(
        {
            "one run alone": f"epsilon {rounded_up(found['one_run'].epsilon)}",
            f"{max(1, round(mean))} runs, all released": f"epsilon {rounded_up(found['every_run_seen'].epsilon)}",
        }
    )
    return console.OK
