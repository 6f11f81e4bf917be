"""``privet evaluate``: what a run's model is worth on test data."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from privet.cli.console import remark, show_heading, show_json, show_table
from privet.cli.options import CONTEXT, device_option, examples, json_option, run_argument
from privet.cli.unfinished import say_if_unfinished

if TYPE_CHECKING:
    from privet.datasets.arrays import ArrayDataset
    from privet.effects.groups import FairnessReport
    from privet.runs.results import Measure


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "privet evaluate runs/demo --json",
        "privet evaluate runs/demo --calibration --membership",
        "privet evaluate runs/adult --groups sex,race --robustness",
        "privet evaluate runs/demo --reconstruction",
        "privet evaluate runs/adult --groups sex --data own.csv",
        "privet evaluate runs/mnist --pretraining --public-data fashion_mnist",
    ),
)
@run_argument
@device_option
@click.option("--calibration", is_flag=True, help="Also measure how far the model's confidence can be believed.")
@click.option("--bins", type=click.IntRange(min=1), default=15, show_default=True, help="Bins of the calibration.")
@click.option("--equal-mass", is_flag=True, help="Cut bins so that each holds equally many predictions.")
@click.option("--membership", is_flag=True, help="Also run membership attacks, beside what the guarantee allows.")
@click.option(
    "--groups", metavar="COLUMNS", help="Also compare classes and groups of columns: sex,race; or just class."
)
@click.option("--long-tail", is_flag=True, help="Also draw test pictures of lowest and highest loss; public data only.")
@click.option("--pretraining", is_flag=True, help="Also estimate how far public data are from the run's, and warn.")
@click.option("--public-data", metavar="NAME", help="Public data for --pretraining; those of the recipe by default.")
@click.option("--reconstruction", is_flag=True, help="Also rebuild a few public test pictures from their gradients.")
@click.option("--robustness", is_flag=True, help="Also measure accuracy when inputs are changed to mislead.")
@click.option(
    "--data",
    type=click.Path(exists=True),
    help="A CSV file or image folder of your own to measure on, instead of the run's test split. Nothing of it is "
    "kept in RUN.",
)
@json_option
def evaluate(
    run_folder: str,
    device: str,
    calibration: bool,
    bins: int,
    equal_mass: bool,
    membership: bool,
    groups: str | None,
    long_tail: bool,
    pretraining: bool,
    public_data: str | None,
    reconstruction: bool,
    robustness: bool,
    data: str | None,
    as_json: bool,
) -> None:
    """Measure the model of RUN on the test split of its data.

    A run that is not finished is measured at its newest checkpoint, and it is
    said so.

    These figures are exact functions of the test data, and of training data
    where attacks are run: the guarantee does not cover them. With public data
    the results of --calibration, --membership, --groups, --reconstruction and
    --robustness on RUN's own test split are kept in RUN for its report.
    """
    from privet.runs.runner import evaluate as evaluate_run
    from privet.runs.side_effects import examine_fairness, own_test_data

    if long_tail and data is not None:
        raise click.UsageError("--long-tail shows records of the run's own test split, and cannot use --data.")
    if reconstruction and data is not None:
        raise click.UsageError("--reconstruction shows records of the run's own test split, and cannot use --data.")
    if membership and data is not None:
        raise click.UsageError("--membership compares the run's training and test data, and cannot use --data.")
    if public_data is not None and not pretraining:
        raise click.UsageError("--public-data names the data that --pretraining compares. Add --pretraining.")
    is_unfinished = say_if_unfinished(run_folder)
    test = None if data is None else own_test_data(run_folder, data)
    # first: a wrong column or a missing package is told before anything is shown
    fairness = None if groups is None else examine_fairness(run_folder, _columns(groups), device=device, test=test)
    metrics = evaluate_run(run_folder, device=device, test=test)
    found = {"is_finished": not is_unfinished, **metrics.to_dict()}
    if not as_json:
        rows = [_measure_row(measure) for measure in metrics.measures]
        show_table(["on test data", "value", "95 % interval", "n"], rows, right=(1, 3))
    if fairness is not None:
        if not as_json:
            _show_fairness(fairness)
        found |= {"fairness": fairness.to_dict()}
    if calibration:
        shown = [measure.name for measure in metrics.measures]
        found |= {"calibration": _calibration(run_folder, device, bins, equal_mass, test, as_json, shown)}
    if robustness:
        found |= {"robustness": _robustness(run_folder, device, test, as_json)}
    if long_tail:
        found |= {"long_tail": _long_tail(run_folder, device)}
    if reconstruction:
        found |= {"reconstruction": _reconstruction(run_folder, device, as_json)}
    if pretraining:
        found |= {"pretraining": _pretraining(run_folder, public_data, test, as_json)}
    if membership:
        found |= {"membership": _membership(run_folder, device, as_json)}
    if as_json:
        show_json(found)
    if data is None and (calibration or membership or groups is not None or robustness):
        _say_what_is_kept(run_folder)


def _measure_row(measure: Measure) -> list[str]:
    from privet.reports.differences import shown_numbers

    value, low, high = shown_numbers([measure.value, measure.low, measure.high])
    interval = f"{low} to {high} ({measure.interval.removeprefix('95 % ')})"
    return [measure.name, value, interval, f"{measure.num_examples:,}"]


def _columns(groups: str) -> list[str]:
    """Return the columns to compare. Classes are compared in any case, and have no column to read groups from."""
    return [word.strip() for word in groups.split(",") if word.strip() not in {"", "class"}]


def _say_what_is_kept(run_folder: str) -> None:
    from pathlib import Path

    from privet.runs.resuming import stored_recipe
    from privet.runs.run_files import RunFiles

    if not stored_recipe(RunFiles(folder=Path(run_folder))).is_public:
        remark(
            f"None of this is kept in {run_folder} or shown in its report: the data are private. If they are public, "
            "say so in the recipe: data_is_public = true."
        )


def _calibration(
    run_folder: str,
    device: str,
    bins: int,
    equal_mass: bool,
    test: ArrayDataset | None,
    as_json: bool,
    measured: Collection[str],
) -> object:
    from privet.effects.reliability import Binning
    from privet.reports.examination import CONFIDENCE_HEADER, confidence_rows
    from privet.runs.examining import examine_calibration

    binning = Binning.EQUAL_MASS if equal_mass else Binning.EQUAL_WIDTH
    report = examine_calibration(run_folder, device=device, num_bins=bins, binning=binning, test=test)
    if not as_json:
        show_heading("Confidence")
        show_table(CONFIDENCE_HEADER, confidence_rows(report, measured=measured), right=(1, 3))
    return report.to_dict()


def _show_fairness(report: FairnessReport) -> None:
    from privet.reports.side_effects import GAP_HEADER, GROUP_HEADER, SOURCE_HEADER, gap_rows, group_rows, source_rows

    for attribute in report.attributes:
        show_heading(f"By {attribute.attribute}")
        show_table(GROUP_HEADER, group_rows(attribute), right=(1, 2, 4, 6))
    show_heading("Gaps between groups")
    show_table(GAP_HEADER, gap_rows(report), right=(1, 3))
    if report.sources:
        show_heading("Where theory expects gaps from: factors on the loss against the best group")
        show_table(SOURCE_HEADER, source_rows(report), right=(2, 3, 4, 5))


def _robustness(run_folder: str, device: str, test: ArrayDataset | None, as_json: bool) -> object:
    from privet.reports.side_effects import RADIUS_HEADER, growth_sentence, radius_rows
    from privet.runs.side_effects import examine_robustness

    found = examine_robustness(run_folder, device=device, test=test)
    if not as_json:
        show_heading(f"Accuracy under attack: {found.report.norm}")
        show_table(RADIUS_HEADER, radius_rows(found.report), right=(0, 1, 3))
        if found.growth is not None:
            show_heading(growth_sentence(found.growth))
    return found.to_dict()


def _long_tail(run_folder: str, device: str) -> object:
    from privet.reports.long_tail import write_long_tail
    from privet.runs.long_tail import examine_long_tail

    found = examine_long_tail(run_folder, device=device)
    path = write_long_tail(run_folder, found)
    click.echo(f"Pictures of lowest and highest loss: {path}", err=True)
    return {
        "easiest_losses": found.easiest_losses,
        "hardest_losses": found.hardest_losses,
        "num_right_among_hardest": found.num_right_among_hardest,
    }


def _reconstruction(run_folder: str, device: str, as_json: bool) -> object:
    from privet.reports.rebuilt import REBUILT_HEADER, rebuilt_rows, write_rebuilt
    from privet.runs.rebuilding import examine_reconstruction

    found = examine_reconstruction(run_folder, device=device)
    path = write_rebuilt(run_folder, found)
    if not as_json:
        show_heading("Pictures rebuilt from gradients")
        show_table(REBUILT_HEADER, rebuilt_rows(found.report), right=(2, 4))
    click.echo(f"Pictures and what was rebuilt of them: {path}", err=True)
    return found.report.to_dict()


def _pretraining(run_folder: str, public: str | None, test: ArrayDataset | None, as_json: bool) -> object:
    from privet.reports.side_effects import SHIFT_HEADER, shift_rows, shift_warning
    from privet.runs.pretraining_examination import examine_pretraining

    shift = examine_pretraining(run_folder, public=public, test=test)
    if not as_json:
        show_heading("Features of the public data beside those of the run's")
        show_table(SHIFT_HEADER, shift_rows(shift), right=(1, 2))
    warning = shift_warning(shift)
    if warning is not None:
        remark(f"warning: {warning}")
    return shift.to_dict()


def _membership(run_folder: str, device: str, as_json: bool) -> object:
    from privet.reports.examination import membership_rows
    from privet.runs.examining import examine_membership

    reports = examine_membership(run_folder, device=device)
    if not as_json:
        show_heading("Membership attacks (members + others), beside what the guarantee allows at most")
        for report in reports:
            show_heading(f"{report.attack} ({report.num_members:,} + {report.num_non_members:,})")
            rows = [
                [
                    row.measure,
                    row.value,
                    row.interval.partition(" (")[0],
                    row.limit,
                    "EXCEEDED" if row.exceeds else "ok" if row.has_limit else "no limit",
                ]
                for row in membership_rows(report)
            ]
            show_table(["measure", "achieved", "95 % interval", "at most", ""], rows, right=(1, 3))
    return [report.to_dict() for report in reports]
