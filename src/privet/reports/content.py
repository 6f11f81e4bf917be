"""The content of a report, gathered from a run folder. Needs no torch, reads no training data, changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.attacks.membership_verdict import MembershipReport
from privet.attacks.reconstruction.result import RebuiltReport
from privet.effects.groups import FairnessReport
from privet.effects.importance import ImportanceReport
from privet.effects.radii import RobustnessReport, WeightGrowth
from privet.effects.reliability import CalibrationReport
from privet.errors import CheckpointError
from privet.plan import Plan
from privet.reports.audits import AuditRecord, read_audit
from privet.reports.coefficients import Coefficients, coefficients_of
from privet.reports.long_tail_pictures import read_picture
from privet.reports.reconstruction_rows import read_rebuilt
from privet.runs.evaluated import PrivateEvaluation, stored_evaluation
from privet.runs.ledger_check import LedgerCheck, check_ledger
from privet.runs.measures import Metrics
from privet.runs.project import WithSchema, with_schema
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import stored_plan, stored_recipe
from privet.runs.run_files import RunFiles, listed, read_json, read_lines, read_result, read_text

# Deciles of the gradient norms of a batch, with minimum and maximum.
NUM_NORM_QUANTILES = 11
NOT_RECORDED = "not recorded"
# The files of a user's own data, network and encoder in a recipe, as a run keeps it: absolute, on any system.
_OWN_FILE = re.compile(r'^(train|test|file|weights|folder) = "(?:[^"\n]*[/\\])?([^"/\\\n]+)"$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class UnprotectedRow:
    """Values of one step that the guarantee does not cover."""

    step: int
    mean_loss: float | None
    clipped_share: float | None
    norm_quantiles: tuple[float, ...] | None = None
    noise_to_signal: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunContent:
    """The content of a report.

    Attributes:
        folder: The run's folder.
        recipe: The recipe; None for a training loop of the user's own.
        recipe_text: The recipe file, in which files of the user's own are named without their folders.
        plan: The plan.
        promised: The plan's guarantee.
        ledger: The checked ledger.
        metrics: Measures on test data, where they may be shown.
        unprotected: Values that the guarantee does not cover, if they were stored.
        environments: One entry per process of the run.
        calibration: Calibration of the model's confidence, if it was measured.
        membership: Results of membership attacks, if they were run.
        fairness: Measures for classes and groups, if they were requested.
        robustness: Accuracy under attack, if it was measured.
        growth: The norm of the weights beside the norm that noise explains, if it is known.
        audit: Findings of audits of the plan, if they were run.
        long_tail: Public test pictures of lowest and highest loss as a data URL, if they were requested.
        rebuilt: Measures of test pictures rebuilt from gradients, if the attack was run.
        rebuilt_pictures: The rebuilt pictures as a data URL.
        evaluation: The newest private evaluation, if there was one.
        coefficients: What a linear model of a table goes by, by target.
        importance: The importance of columns on public records, if it was measured.
        in_all: What the run and its schema spent together, if the schema was released from the private records.
    """

    folder: Path
    recipe: Recipe | None
    recipe_text: str
    plan: Plan
    promised: Guarantee
    ledger: LedgerCheck
    metrics: Metrics | None
    unprotected: tuple[UnprotectedRow, ...]
    environments: tuple[Mapping[str, Any], ...]
    calibration: CalibrationReport | None = None
    membership: tuple[MembershipReport, ...] = ()
    fairness: FairnessReport | None = None
    robustness: RobustnessReport | None = None
    growth: WeightGrowth | None = None
    long_tail: str | None = None
    audit: AuditRecord | None = None
    rebuilt: RebuiltReport | None = None
    rebuilt_pictures: str | None = None
    evaluation: PrivateEvaluation | None = None
    coefficients: tuple[Coefficients, ...] = ()
    importance: ImportanceReport | None = None
    in_all: WithSchema | None = None

    @property
    def title(self) -> str:
        """The recipe's title, or the folder's name without a recipe."""
        return self.folder.resolve().name if self.recipe is None else self.recipe.title

    @property
    def is_public(self) -> bool:
        """Whether exact values of the data may be shown; never for undeclared data."""
        return self.recipe is not None and self.recipe.is_public

    @property
    def data_name(self) -> str:
        """The data set's name, if the folder records it."""
        return NOT_RECORDED if self.recipe is None else self.recipe.info.name

    @property
    def model_name(self) -> str:
        """The network's name, if the folder records it."""
        return NOT_RECORDED if self.recipe is None else self.recipe.model_title

    @property
    def is_finished(self) -> bool:
        """Whether the plan is used up."""
        return self.ledger.is_finished

    @property
    def noise_multiplier(self) -> float | None:
        """The ratio of noise to sensitivity; None for a plan without one."""
        found = self.plan.noise.noise_multiplier
        return found if isinstance(found, float) else None

    @property
    def agrees(self) -> bool:
        """Whether the ledger, the plan in its first row and the plan file agree."""
        return self.ledger.mismatch is None and self.plan.matches_hash(self.ledger.plan_hash)


def have_same_data(runs: Sequence[RunContent]) -> bool:
    """Whether all runs are known to use the same data."""
    return all(run.recipe is not None for run in runs) and len({run.data_name for run in runs}) == 1


def gather(folder: str | Path) -> RunContent:
    """Read a run folder of a recipe or of a user's own training loop; the latter holds only plan and ledger.

    Raises:
        PrivetError: the folder is not a run's, a file is damaged, or the ledger's chain is broken.
    """
    files = RunFiles(folder=Path(folder))
    if not files.folder.is_dir() or not files.is_run:
        raise CheckpointError(
            f"{folder} is not a run's folder. Name the folder given to: privet train -o, or to privatize(folder=...)."
        )
    if files.is_own_loop:
        return _own_loop(files)
    recipe, plan, ledger = stored_recipe(files), stored_plan(files), check_ledger(files.folder)
    attacked = read_robustness(files)
    return RunContent(
        folder=files.folder,
        recipe=recipe,
        recipe_text=_without_folders(read_text(files.recipe)),
        plan=plan,
        promised=plan.guarantee(),
        ledger=ledger,
        metrics=read_result(files.metrics, Metrics.from_dict),
        unprotected=_unprotected(files),
        environments=_environments(files),
        calibration=read_calibration(files),
        membership=read_membership(files),
        fairness=read_fairness(files),
        robustness=None if attacked is None else attacked[0],
        growth=None if attacked is None else attacked[1],
        long_tail=read_picture(files.long_tail) if recipe.is_public else None,
        audit=read_audit(files),
        rebuilt=read_rebuilt(files) if recipe.is_public else None,
        rebuilt_pictures=read_picture(files.reconstruction_pictures) if recipe.is_public else None,
        evaluation=stored_evaluation(files),
        coefficients=coefficients_of(files, recipe),
        importance=read_result(files.importance, ImportanceReport.from_dict),
        in_all=with_schema(ledger, recipe.released),
    )


def _own_loop(files: RunFiles) -> RunContent:
    ledger = check_ledger(files.folder)
    return RunContent(
        folder=files.folder,
        recipe=None,
        recipe_text="",
        plan=ledger.plan,
        promised=ledger.plan.guarantee(),
        ledger=ledger,
        metrics=None,
        unprotected=(),
        environments=_environments(files),
    )


def read_calibration(files: RunFiles) -> CalibrationReport | None:
    """Read the calibration of the model; None if it was not measured."""
    return read_result(files.calibration, CalibrationReport.from_dict)


def read_membership(files: RunFiles) -> tuple[MembershipReport, ...]:
    """Read the results of membership attacks; empty if none was run."""

    def parse(found: dict[str, Any]) -> tuple[MembershipReport, ...]:
        return tuple(MembershipReport.from_dict(row) for row in listed(found.get("attacks")))

    return read_result(files.membership, parse) or ()


def read_fairness(files: RunFiles) -> FairnessReport | None:
    """Read the measures of classes and groups; None if they were not measured."""
    return read_result(files.fairness, FairnessReport.from_dict)


def read_robustness(files: RunFiles) -> tuple[RobustnessReport, WeightGrowth | None] | None:
    """Read accuracy under attack and the norm of the weights; None if they were not measured."""

    def parse(found: dict[str, Any]) -> tuple[RobustnessReport, WeightGrowth | None]:
        growth = found.get("growth")
        report = RobustnessReport.from_dict(found.get("report"))
        with checks.reading("what privet writes about robustness"):
            return report, None if growth is None else WeightGrowth.from_dict(growth)

    return read_result(files.robustness, parse)


def _unprotected(files: RunFiles) -> tuple[UnprotectedRow, ...]:
    if not files.unprotected.exists():
        return ()
    return tuple(_unprotected_row(files, row) for row in read_lines(files.unprotected))


def _unprotected_row(files: RunFiles, row: Mapping[str, Any]) -> UnprotectedRow:
    step, norms = row.get("step"), row.get("norm_quantiles")
    numbers = {name: row.get(name) for name in ("mean_loss", "clipped_share", "noise_to_signal")}
    lengths = norms if isinstance(norms, list) else []
    if (
        not isinstance(step, int)
        or not all(isinstance(value, float | int | None) for value in numbers.values())
        or (norms is not None and len(lengths) != NUM_NORM_QUANTILES)
        or not all(isinstance(value, float | int) for value in lengths)
    ):
        raise CheckpointError(f"{files.unprotected} holds a line that privet did not write.")
    return UnprotectedRow(step=step, norm_quantiles=tuple(lengths) or None, **numbers)


def _environments(files: RunFiles) -> tuple[Mapping[str, Any], ...]:
    if not files.environment.exists():
        return ()
    found = read_json(files.environment).get("processes", [])
    return tuple(entry for entry in found if isinstance(entry, Mapping)) if isinstance(found, list) else ()


def _without_folders(recipe: str) -> str:
    """Return a recipe whose data files are beside it, as a reader would put them: folders tell about a machine."""
    return _OWN_FILE.sub(r'\1 = "\2"', recipe)
