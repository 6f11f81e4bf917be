"""``privet evaluate``: what a run's model is worth on test data."""

from __future__ import annotations

import click

from privet.cli.console import show_facts, show_json
from privet.cli.options import CONTEXT, examples, json_option, run_argument


@click.command(context_settings=CONTEXT, epilog=examples("privet evaluate runs/demo --json"))
@run_argument
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@json_option
def evaluate(run_folder: str, device: str, as_json: bool) -> None:
    """Measure the model of RUN on the test split of its data.

    These figures are exact functions of the test data: the guarantee, which
    is about training data, does not cover them.
    """
    from privet.experiments.runner import evaluate as evaluate_run

    metrics = evaluate_run(run_folder, device=device)
    if as_json:
        show_json(metrics.to_dict())
        return
    show_facts(
        {
            f"test {measure.name}": (
                f"{measure.value:.4f}  ({measure.low:.4f} to {measure.high:.4f}, {measure.interval}, "
                f"n = {measure.num_examples:,})"
            )
            for measure in metrics.measures
        }
    )
