"""``privet account waste`` and ``batch``: the waste of samplers, and the batch that costs least."""

from __future__ import annotations

import click

from privet.cli import console

_size_option = click.option("--dataset-size", type=int, required=True, help="Public number of records.")
_physical_option = click.option("--physical", type=int, required=True, help="Slots of a physical batch.")


@console.command("privet account waste --dataset-size 60000 --batch-size 230 --physical 256")
@_size_option
@click.option("--batch-size", type=int, required=True, help="Logical batch: expected examples per step.")
@_physical_option
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw the table as bars, too.")
@console.json_option
def waste(dataset_size: int, batch_size: int, physical: int, plot: str | None, as_json: bool) -> int:
    """Compare the waste of samplers in one epoch.

    Never seen: records that no step uses. Stragglers: steps whose batch needs a
    second pass. Dropped: sampled records that are not used. Padding: empty
    slots.
    """
    from privet.accounting.batch_sizes import waste_table

    if plot is not None and not plot.lower().endswith(".svg"):
        raise click.BadParameter(f"'{plot}' does not end in .svg, the format of the plot.", param_hint="--plot")
    table = waste_table(dataset_size=dataset_size, batch_size=batch_size, physical_batch_size=physical)
    if plot is not None:
        from privet.reports.waste_plot import write_waste_plot

        write_waste_plot(table, plot)
    if as_json:
        console.show_json([row.to_dict() for row in table])
        return console.OK
    header = ["sampler", "steps", "passes", "never seen", "stragglers", "dropped", "padding"]
    rows = [
        [
            row.sampler,
            f"{row.steps:,}",
            f"{row.physical_batches:,.1f}",
            *(f"{share:.2%}" for share in (row.never_seen, row.stragglers, row.dropped, row.padding)),
        ]
        for row in table
    ]
    console.show_table(header, rows, right=range(1, len(header)))
    if plot is not None:
        click.echo(plot)
    return console.OK


@console.command(
    "privet account batch --dataset-size 60000 --physical 256 --steps 14063\n    --epsilon 2 --delta 1e-5",
)
@_size_option
@_physical_option
@click.option("--steps", type=int, required=True, help="Number of steps.")
@click.option("--epsilon", type=float, required=True, help="Target epsilon.")
@click.option("--delta", type=float, required=True, help="Probability with which the bound may fail.")
@console.adjacency_option
@console.json_option
def batch(
    dataset_size: int, physical: int, steps: int, epsilon: float, delta: float, adjacency: str, as_json: bool
) -> int:
    """Find the expected batch that costs least with truncated Poisson sampling.

    Every step runs one physical batch. A larger expected batch reduces the
    noise on the mean, until truncation requires more noise than that saves.
    """
    from privet.accounting.batch_sizes import suggest_batch
    from privet.vocabulary import Adjacency

    found = suggest_batch(
        physical=physical,
        dataset_size=dataset_size,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=Adjacency(adjacency),
    )
    if as_json:
        console.show_json(
            {
                "expected_batch_size": found.sampling.expected_batch_size,
                "max_batch_size": found.sampling.max_batch_size,
                "rate": found.sampling.rate,
                "noise_multiplier": found.noise_multiplier,
                "noise_over_signal": found.noise_over_signal,
                "overflow_probability": found.overflow_probability,
            }
        )
        return console.OK
    console.show_heading(f"expected batch {found.sampling.expected_batch_size:g} of {physical} slots")
    console.show_facts(
        {
            "noise multiplier": f"{found.noise_multiplier:.5g}",
            "noise on the mean": f"{found.noise_over_signal:.4g} x clipping bound",
            "steps that overflow": f"{found.overflow_probability:.2g}",
        }
    )
    return console.OK
