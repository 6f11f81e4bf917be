"""``privet evaluate``: what a run's model is worth on test data."""

from __future__ import annotations

import click

from privet.cli.console import show_facts, show_heading, show_json, show_table
from privet.cli.options import CONTEXT, examples, json_option, run_argument


@click.command(
    context_settings=CONTEXT,
    epilog=examples("privet evaluate runs/demo --json", "privet evaluate runs/demo --calibration --membership"),
)
@run_argument
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--calibration", is_flag=True, help="Also measure how far the model's confidence can be believed.")
@click.option("--bins", type=click.IntRange(min=1), default=15, show_default=True, help="Bins of the calibration.")
@click.option("--equal-mass", is_flag=True, help="Cut bins so that each holds equally many predictions.")
@click.option("--membership", is_flag=True, help="Also run membership attacks, beside what the guarantee allows.")
@json_option
def evaluate(
    run_folder: str, device: str, calibration: bool, bins: int, equal_mass: bool, membership: bool, as_json: bool
) -> None:
    """Measure the model of RUN on the test split of its data.

    These figures are exact functions of the test data, and of training data
    where attacks are run: the guarantee does not cover them. With public data
    the results of --calibration and --membership are kept in RUN, and its
    report shows them.
    """
    from privet.experiments.runner import evaluate as evaluate_run

    metrics = evaluate_run(run_folder, device=device)
    found = metrics.to_dict()
    if not as_json:
        show_facts(
            {
                f"test {measure.name}": (
                    f"{measure.value:.4f}  ({measure.low:.4f} to {measure.high:.4f}, {measure.interval}, "
                    f"n = {measure.num_examples:,})"
                )
                for measure in metrics.measures
            }
        )
    if calibration:
        found |= {"calibration": _calibration(run_folder, device, bins, equal_mass, as_json)}
    if membership:
        found |= {"membership": _membership(run_folder, device, as_json)}
    if as_json:
        show_json(found)


def _calibration(run_folder: str, device: str, bins: int, equal_mass: bool, as_json: bool) -> object:
    from privet.effects.reliability import Binning
    from privet.experiments.examining import examine_calibration
    from privet.reports.examination import confidence_rows

    binning = Binning.EQUAL_MASS if equal_mass else Binning.EQUAL_WIDTH
    report = examine_calibration(run_folder, device=device, num_bins=bins, binning=binning)
    if not as_json:
        show_heading("Confidence")
        show_table(["on test data", "value", "95 % interval (bootstrap)"], confidence_rows(report), right=(1,))
    return report.to_dict()


def _membership(run_folder: str, device: str, as_json: bool) -> object:
    from privet.experiments.examining import examine_membership
    from privet.reports.examination import membership_rows

    reports = examine_membership(run_folder, device=device)
    if not as_json:
        show_heading("Membership attacks, beside what the guarantee allows")
        rows = [row for report in reports for row in membership_rows(report)]
        show_table(
            ["attack", "measure", "achieved", "95 % interval", "allowed at most", ""],
            [
                [row.attack, row.measure, row.value, row.interval, row.limit, "EXCEEDED" if row.exceeds else "ok"]
                for row in rows
            ],
            right=(2, 4),
        )
    return [report.to_dict() for report in reports]
