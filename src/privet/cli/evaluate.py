"""``privet evaluate``: measures of a run's model on test data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from privet.cli import console
from privet.cli.table_address import DATA, address, sql_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from privet.datasets.arrays import ArrayDataset
    from privet.effects.groups import FairnessReport
    from privet.runs.measures import Measure


@console.command(
    "privet evaluate runs/demo --json",
    "privet evaluate runs/demo --calibration --membership",
    "privet evaluate runs/adult --groups sex,race --robustness",
    "privet evaluate runs/demo --reconstruction",
    "privet evaluate runs/adult --groups sex --data own.csv",
    "privet evaluate runs/mine --data held_out.csv --evaluate-epsilon 0.5",
    "privet evaluate runs/mine --data held.csv --evaluate-epsilon 1 --importance",
    "privet evaluate runs/mine --data open.csv --public --importance",
    "privet evaluate runs/mnist --pretraining --public-data fashion_mnist",
)
@console.run_argument
@console.device_option
@click.option("--calibration", is_flag=True, help="Also measure the calibration of the model's confidence.")
@click.option("--bins", type=click.IntRange(min=1), default=15, show_default=True, help="Bins of the calibration.")
@click.option("--equal-mass", is_flag=True, help="Cut bins so that each holds equally many predictions.")
@click.option("--membership", is_flag=True, help="Also run membership attacks; compare with the guarantee's limits.")
@click.option(
    "--groups", metavar="COLUMNS", help="Also compare classes and groups of columns: sex,race; or just class."
)
@click.option("--long-tail", is_flag=True, help="Also draw test pictures of lowest and highest loss; public data only.")
@click.option("--pretraining", is_flag=True, help="Also estimate the feature shift between public data and the run's.")
@click.option("--public-data", metavar="NAME", help="Public data for --pretraining; those of the recipe by default.")
@click.option("--reconstruction", is_flag=True, help="Also rebuild a few public test pictures from their gradients.")
@click.option("--robustness", is_flag=True, help="Also measure accuracy under adversarial changes of the inputs.")
@click.option(
    "--data",
    type=DATA,
    help="A table or image folder of your own to measure on, instead of the run's test split. Its results are not "
    "stored in RUN.",
)
@sql_options
@click.option(
    "--importance",
    is_flag=True,
    help="Also measure how much worse the model is without each column: by permutations of public records, or with "
    "--evaluate-epsilon on private ones.",
)
@click.option("--public", "is_public", is_flag=True, help="With --importance: the records of --data are public.")
@click.option(
    "--evaluate-epsilon",
    type=float,
    help="Measure privately instead: release figures with noise that costs this epsilon, charged on RUN's ledger.",
)
@click.option(
    "--loss-clip", type=float, help="With --evaluate-epsilon: the largest log loss that counts; 5 by default."
)
@click.option("--max-epsilon", type=float, help="With --evaluate-epsilon: refuse a larger total (exit code 3).")
@console.json_option
def evaluate(
    data: str | None, sql_table: str | None, sql_query: str | None, sql_key: str | None, **options: Any
) -> None:
    """Measure the model of RUN on the test split of its data.

    A run that is not finished is measured at its newest checkpoint, with a
    remark.

    These figures are exact functions of the test data, and membership attacks
    read training data too: the guarantee does not cover them. With public data
    the results of --calibration, --membership, --groups, --reconstruction and
    --robustness on RUN's own test split are stored in RUN for its report.

    With --evaluate-epsilon nothing but noisy counts leaves the records: figures,
    groups and calibration with intervals, covered by the guarantee of RUN, which
    grows by the evaluation. They are stored in RUN for its report.

    --importance on public records permutes each column among them, and is stored
    in RUN for its report. On private records it needs --evaluate-epsilon.
    """
    if data is not None:
        data = address(data, table=sql_table, query=sql_query, key=sql_key)
    elif (sql_table, sql_query, sql_key) != (None, None, None):
        raise click.UsageError("--table, --query and --key complete the URL of a database. Give it: --data URL.")
    _Evaluation(data=data, **options).run()


@dataclass(frozen=True, kw_only=True)
class _Evaluation:
    """One call of the command: a field for every option, and a method for every kind of measure."""

    run_folder: str
    device: str
    calibration: bool
    bins: int
    equal_mass: bool
    membership: bool
    groups: str | None
    long_tail: bool
    pretraining: bool
    public_data: str | None
    reconstruction: bool
    robustness: bool
    data: str | None
    importance: bool
    is_public: bool
    evaluate_epsilon: float | None
    loss_clip: float | None
    max_epsilon: float | None
    as_json: bool

    def run(self) -> None:
        from privet.runs.evaluation.groups_and_robustness import examine_fairness, own_test_data
        from privet.runs.evaluation.importance import refuse_private_importance
        from privet.runs.runner import evaluate as evaluate_run

        self._check_options()
        if self.evaluate_epsilon is not None:
            self._privately(self.evaluate_epsilon)
            return
        is_unfinished = console.remark_if_unfinished(self.run_folder)
        if self.importance:
            refuse_private_importance(self.run_folder, is_own_test=self.data is None, is_public=self.is_public)
        test = None if self.data is None else own_test_data(self.run_folder, self.data)
        fairness = None
        if self.groups is not None:
            # First: a wrong column or a missing package is an error before anything is shown.
            fairness = examine_fairness(self.run_folder, _columns(self.groups), device=self.device, test=test)
        metrics = evaluate_run(self.run_folder, device=self.device, test=test)
        found = {"is_finished": not is_unfinished, **metrics.to_dict()}
        if not self.as_json:
            rows = [_measure_row(measure) for measure in metrics.measures]
            console.show_table(["on test data", "value", "95 % interval", "n"], rows, right=(1, 3))
        if fairness is not None:
            if not self.as_json:
                _show_fairness(fairness)
            found |= {"fairness": fairness.to_dict()}
        shown = [measure.name for measure in metrics.measures]
        parts: dict[str, tuple[bool, Callable[[], object]]] = {
            "calibration": (self.calibration, lambda: self._calibration(test, shown)),
            "robustness": (self.robustness, lambda: self._robustness(test)),
            "long_tail": (self.long_tail, self._long_tail),
            "reconstruction": (self.reconstruction, self._reconstruction),
            "pretraining": (self.pretraining, lambda: self._pretraining(test)),
            "membership": (self.membership, self._membership),
            "importance": (self.importance, lambda: self._importance(test)),
        }
        found |= {name: measure() for name, (is_asked, measure) in parts.items() if is_asked}
        if self.as_json:
            console.show_json(found)
        if self.data is None and (self.calibration or self.membership or self.groups is not None or self.robustness):
            self._remark_if_not_stored()

    def _privately(self, epsilon: float) -> None:
        from privet.cli.private_figures import measure_privately
        from privet.runs.evaluation.private_evaluation import DEFAULT_CLIP, Asked

        asked = Asked(
            epsilon=epsilon,
            groups=tuple(_columns(self.groups or "")),
            loss_clip=self.loss_clip or DEFAULT_CLIP,
            importance=self.importance,
        )
        measure_privately(
            self.run_folder,
            asked,
            data=self.data,
            device=self.device,
            max_epsilon=self.max_epsilon,
            as_json=self.as_json,
        )

    def _check_options(self) -> None:
        if self.evaluate_epsilon is not None:
            exact = ("calibration", "membership", "long_tail", "pretraining", "reconstruction", "robustness")
            for name in exact:
                if getattr(self, name):
                    raise click.UsageError(
                        f"--{name.replace('_', '-')} shows exact functions of the records, and --evaluate-epsilon "
                        "releases noisy ones. Measure them in two calls, the first on public data."
                    )
        elif self.loss_clip is not None or self.max_epsilon is not None:
            raise click.UsageError("--loss-clip and --max-epsilon go with --evaluate-epsilon.")
        if self.data is not None:
            for is_asked, problem in (
                (self.long_tail, "--long-tail shows records of the run's own test split"),
                (self.reconstruction, "--reconstruction shows records of the run's own test split"),
                (self.membership, "--membership compares the run's training and test data"),
            ):
                if is_asked:
                    raise click.UsageError(f"{problem}, and cannot use --data.")
        if self.is_public and (self.data is None or not self.importance or self.evaluate_epsilon is not None):
            raise click.UsageError(
                "--public says that the records of --data are public, for --importance without --evaluate-epsilon."
            )
        if self.public_data is not None and not self.pretraining:
            raise click.UsageError("--public-data names the data that --pretraining compares. Add --pretraining.")

    def _remark_if_not_stored(self) -> None:
        from pathlib import Path

        from privet.runs.resuming import stored_recipe
        from privet.runs.run_files import RunFiles

        if not stored_recipe(RunFiles(folder=Path(self.run_folder))).is_public:
            console.remark(
                f"These results are not stored in {self.run_folder} or shown in its report: the data are private. If "
                "they are public, set data_is_public = true in the recipe."
            )

    def _calibration(self, test: ArrayDataset | None, measured: Collection[str]) -> object:
        from privet.effects.reliability import Binning
        from privet.reports.confidence_rows import CONFIDENCE_HEADER, confidence_rows
        from privet.runs.evaluation.confidence_and_membership import examine_calibration

        binning = Binning.EQUAL_MASS if self.equal_mass else Binning.EQUAL_WIDTH
        report = examine_calibration(
            self.run_folder, device=self.device, num_bins=self.bins, binning=binning, test=test
        )
        if not self.as_json:
            console.show_heading("Confidence")
            console.show_table(CONFIDENCE_HEADER, confidence_rows(report, measured=measured), right=(1, 3))
        return report.to_dict()

    def _robustness(self, test: ArrayDataset | None) -> object:
        from privet.reports.side_effect_rows import RADIUS_HEADER, growth_sentence, radius_rows
        from privet.runs.evaluation.groups_and_robustness import examine_robustness

        found = examine_robustness(self.run_folder, device=self.device, test=test)
        if not self.as_json:
            console.show_heading(f"Accuracy under attack: {found.report.norm}")
            console.show_table(RADIUS_HEADER, radius_rows(found.report), right=(0, 1, 3))
            if found.growth is not None:
                console.show_heading(growth_sentence(found.growth))
        return found.to_dict()

    def _long_tail(self) -> object:
        from privet.reports.long_tail_pictures import write_long_tail
        from privet.runs.evaluation.long_tail import examine_long_tail

        found = examine_long_tail(self.run_folder, device=self.device)
        path = write_long_tail(self.run_folder, found)
        click.echo(f"Pictures of lowest and highest loss: {path}", err=True)
        return {
            "easiest_losses": found.easiest_losses,
            "hardest_losses": found.hardest_losses,
            "num_right_among_hardest": found.num_right_among_hardest,
        }

    def _reconstruction(self) -> object:
        from privet.reports.reconstruction_rows import REBUILT_HEADER, rebuilt_rows, write_rebuilt
        from privet.runs.evaluation.run_reconstruction import examine_reconstruction

        found = examine_reconstruction(self.run_folder, device=self.device)
        path = write_rebuilt(self.run_folder, found)
        if not self.as_json:
            console.show_heading("Pictures rebuilt from gradients")
            console.show_table(REBUILT_HEADER, rebuilt_rows(found.report), right=(2, 4))
        click.echo(f"Originals and rebuilt pictures: {path}", err=True)
        return found.report.to_dict()

    def _importance(self, test: ArrayDataset | None) -> object:
        from privet.reports.importance_rows import IMPORTANCE_HEADER, public_note, public_parts
        from privet.runs.evaluation.importance import examine_importance

        found = examine_importance(self.run_folder, device=self.device, test=test, is_public=self.is_public)
        if not self.as_json:
            for part in public_parts(found):
                console.show_heading(part.title)
                console.show_table(IMPORTANCE_HEADER, [row.cells for row in part.rows], right=(1,))
            click.echo(console.paragraphs(public_note(found)))
        return found.to_dict()

    def _pretraining(self, test: ArrayDataset | None) -> object:
        from privet.reports.side_effect_rows import SHIFT_HEADER, shift_rows, shift_warning
        from privet.runs.evaluation.pretraining_shift import examine_pretraining

        shift = examine_pretraining(self.run_folder, public=self.public_data, test=test)
        if not self.as_json:
            console.show_heading("Feature shift between the public data and the run's data")
            console.show_table(SHIFT_HEADER, shift_rows(shift), right=(1, 2))
        warning = shift_warning(shift)
        if warning is not None:
            console.remark(f"warning: {warning}")
        return shift.to_dict()

    def _membership(self) -> object:
        from privet.reports.confidence_rows import membership_rows
        from privet.runs.evaluation.confidence_and_membership import examine_membership

        reports = examine_membership(self.run_folder, device=self.device)
        if not self.as_json:
            console.show_heading("Membership attacks (members + non-members), with the limits of the guarantee")
            for report in reports:
                console.show_heading(f"{report.attack} ({report.num_members:,} + {report.num_non_members:,})")
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
                console.show_table(["measure", "achieved", "95 % interval", "at most", ""], rows, right=(1, 3))
        return [report.to_dict() for report in reports]


def _measure_row(measure: Measure) -> list[str]:
    from privet.reports.differences import shown_numbers

    value, low, high = shown_numbers([measure.value, measure.low, measure.high])
    interval = f"{low} to {high} ({measure.interval.removeprefix('95 % ')})"
    return [measure.name, value, interval, f"{measure.num_examples:,}"]


def _columns(groups: str) -> list[str]:
    """Return the columns to compare. Classes are always compared, and are not groups of a column."""
    from privet.datasets.words import composed

    return [name for word in groups.split(",") if (name := composed(word)) not in {"", "class"}]


def _show_fairness(report: FairnessReport) -> None:
    from privet.reports.side_effect_rows import (
        GAP_HEADER,
        GROUP_HEADER,
        SOURCE_HEADER,
        gap_rows,
        group_rows,
        source_rows,
    )

    for attribute in report.attributes:
        console.show_heading(f"By {attribute.attribute}")
        console.show_table(GROUP_HEADER, group_rows(attribute), right=(1, 2, 4, 6))
    console.show_heading("Gaps between groups")
    console.show_table(GAP_HEADER, gap_rows(report), right=(1, 3))
    if report.sources:
        console.show_heading("Expected sources of gaps: factors on the loss against the best group")
        console.show_table(SOURCE_HEADER, source_rows(report), right=(2, 3, 4, 5))
