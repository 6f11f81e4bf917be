"""Private evaluation: figures of a run's model on private records, released with a budget of their own.

One vector of counts and sums is released with noise and charged on the ledger of the run, before a record is read; all
figures and their intervals follow from it. What it costs adds up with the training: the total is an upper bound also
for somebody who is among the training records and among these.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from privet import checks
from privet.accounting.charges import HypotheticalCharges
from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger, Purpose
from privet.accounting.ledger.heads import UserHeads
from privet.datasets.arrays import ArrayDataset
from privet.datasets.encoding import categories_of, category_columns
from privet.datasets.info import DatasetInfo
from privet.effects.noisy_counts.contributions import Evaluated, summed
from privet.effects.noisy_counts.figures import Released
from privet.effects.noisy_counts.terms import EvaluationTerms, Groups
from privet.errors import BudgetExceeded, CheckpointError, DataError, RecipeError, UnsupportedModel
from privet.mechanism.events import DpEvent
from privet.mechanism.owners import Owners
from privet.plan import Plan
from privet.runs.building import choose_device, held_out_data
from privet.runs.evaluated import PrivateEvaluation, stored_evaluation
from privet.runs.evaluation.importance import columns_of, drops_on_stand_ins
from privet.runs.ledger_check import check_ledger
from privet.runs.one_by_one import one_by_one, works_one_by_one
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import stored_plan, stored_recipe
from privet.runs.run_files import RunFiles, write_json
from privet.runs.runner import stored_model
from privet.training.further_release import VectorRelease
from privet.vocabulary import Unit

# A record to whose true class the model gives less than 0.7 % adds as much as one with 0.7 %.
DEFAULT_CLIP = 5.0
# Every call of the model has so many records, so that one more changes nothing about the others.
_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a private evaluation is asked for; public.

    Attributes:
        epsilon: What it may cost by itself, at the delta of the plan.
        groups: Columns whose groups are compared.
        loss_clip: The largest log loss of a record that counts.
        importance: Whether the importance of every column of the table is measured.
    """

    epsilon: float
    groups: tuple[str, ...] = ()
    loss_clip: float = DEFAULT_CLIP
    importance: bool = False

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "epsilon")
        checks.fields(self, checks.positive, "loss_clip")

    def terms(self, recipe: Recipe, plan: Plan) -> EvaluationTerms:
        """Return the public constants; a column that does not exist is refused here, before anything is charged."""
        info = recipe.info
        groups = tuple(Groups(column=name, categories=tuple(_categories(info, name))) for name in self.groups)
        importance = tuple(group.name for group in columns_of(recipe)) if self.importance else None
        per_person = None
        if plan.unit is Unit.PERSON:
            bounded = plan.sampling.contribution
            per_person = 1 if bounded is None else bounded.max_records
        if info.task.class_names:
            return EvaluationTerms(
                class_names=info.task.class_names,
                groups=groups,
                loss_clip=self.loss_clip,
                records_per_person=per_person,
                importance=importance,
            )
        if info.task.bounds is None:
            raise RecipeError(
                f"A private evaluation needs classes, or one number with declared bounds, and the model predicts "
                f"{', '.join(info.task.names)}. Declare low and high of the target, or evaluate one target at a time."
            )
        low, high = info.task.bounds
        return EvaluationTerms(
            groups=groups,
            low=low,
            high=high,
            error_clip=(high - low) / 2,
            records_per_person=per_person,
            importance=importance,
        )

    def release(self, plan: Plan) -> VectorRelease:
        """Return the release with the least noise for the asked epsilon."""
        return VectorRelease.calibrated(
            purpose=Purpose.EVALUATION, epsilon=self.epsilon, delta=plan.delta, adjacency=plan.adjacency
        )

    def promised(self, plan: Plan, earlier: Sequence[tuple[DpEvent, int]] = ()) -> Guarantee:
        """Return the guarantee of earlier releases, training and evaluation together, before the last two."""
        besides = (*earlier, (self.release(plan).event, 1))
        return plan.account(HypotheticalCharges(planned=plan.segments, besides=besides, is_complete=True))


def asked_in(recipe: Recipe) -> Asked | None:
    """Return the private evaluation that a recipe asks for after its training."""
    found = recipe.evaluation
    if found is None:
        return None
    return Asked(
        epsilon=found.epsilon,
        groups=tuple(found.groups or ()),
        loss_clip=found.loss_clip or DEFAULT_CLIP,
        importance=bool(found.importance),
    )


def evaluate_privately(
    folder: str | Path,
    asked: Asked,
    *,
    data: str | Path | None = None,
    device: str = "cpu",
    max_epsilon: float | None = None,
    num_processes: int = 1,
) -> PrivateEvaluation:
    """Measure a finished run's model on private records, and charge it on the ledger of the run.

    Args:
        folder: The run's folder.
        asked: The budget, the groups and the clip.
        data: A file or folder of records like those of training; the run's test part by default.
        device: Where the model runs. The noise is always drawn on the processor.
        max_epsilon: Refuse, with exit code 3 on the command line, if training and evaluations together spend more.
        num_processes: How many ranks trained and wait while this one, alone of them, evaluates.

    Guarantee:
        The release is charged, durably, before a record is read. It composes with everything charged before it, so
        that the guarantee of the ledger covers the model and all its evaluations. A cell of a record that does not fit
        the declaration is replaced as in training, silently: nothing but the noisy vector depends on a record.
        With persons as the unit the mean of a person's records counts, of at most ``records_per_person`` chosen by a
        secret key; a record that names nobody counts as nothing.

    Raises:
        CheckpointError: the run is not finished.
        BudgetExceeded: the total would exceed ``max_epsilon``. Nothing is charged.
        DataError: a column of groups does not exist, or a file cannot be read.
        UnsupportedModel: the model mixes records in evaluation mode.
    """
    files = RunFiles(folder=Path(folder))
    recipe, plan = stored_recipe(files), stored_plan(files)
    terms, release = asked.terms(recipe, plan), asked.release(plan)
    if not files.model.exists():
        raise CheckpointError(
            f"{folder} is not finished, and a private evaluation measures the model of a finished run. Resume it first."
        )
    _check_total(folder, release, plan, max_epsilon, recipe)
    model = stored_model(files, recipe, choose_device(device)).eval()
    _check_keeps_apart(model, recipe)
    earlier = stored_evaluation(files)
    temperature = 1.0 if earlier is None else earlier.temperature

    def read() -> NDArray[np.float64]:
        records = held_out_data(recipe, data)
        said = _said(model, records.features)
        decided = recipe.info.task.decisions(said.nan_to_num())
        codes = {name: place for place, name in enumerate(terms.class_names)}
        evaluated = Evaluated(
            outputs=_heated(said.numpy(), temperature) if codes else _numbers(said, decided[recipe.info.task.names[0]]),
            decided=np.array([codes[name] for name in decided["class"]], dtype=np.int64) if codes else None,
            targets=records.labels.cpu().numpy().reshape(len(records)),
            groups={each.column: _codes(recipe.info, records, each.column) for each in terms.groups},
            weights=_weights(records, terms),
            drops=_drops(recipe, model, records, terms),
        )
        return summed(evaluated, terms)

    with Ledger.open(
        files.ledger,
        plan_hash=plan.hash,
        former_hashes=plan.former_hashes,
        heads=UserHeads(),
        num_processes=num_processes,
    ) as ledger:
        vector = release.release(read, weights=terms.weights(), ledger=ledger)
    found = PrivateEvaluation(
        released=Released(
            terms=terms,
            noise_multiplier=release.noise_multiplier,
            vector=tuple(float(value) for value in vector),
            temperature=temperature,
        ),
        epsilon=asked.epsilon,
        head=ledger.head.sha256,
        unit=plan.unit.value,
    )
    write_json(files.evaluation, found.to_dict())
    return found


def _check_total(
    folder: str | Path, release: VectorRelease, plan: Plan, max_epsilon: float | None, recipe: Recipe
) -> None:
    """Refuse a ledger that is damaged or disagrees with its plan, and a total above what is allowed."""
    check = check_ledger(Path(folder))
    if check.mismatch is not None:
        raise CheckpointError(f"The ledger of {folder} does not agree with its plan: {check.mismatch}")
    if max_epsilon is None:
        return
    earlier = [(each.coded.event, 1) for each in check.further]
    earlier += [] if recipe.released is None else [(recipe.released.event, 1)]
    charges = HypotheticalCharges(
        planned=plan.segments, besides=(*earlier, (release.event, 1)), is_complete=check.is_finished
    )
    total = plan.account(charges).epsilon
    if total > checks.positive("max_epsilon", max_epsilon):
        raise BudgetExceeded(
            f"With this evaluation the run would spend epsilon {total:.4g} in all, and {max_epsilon:g} is allowed. "
            "Nothing was charged. Lower --evaluate-epsilon, or allow more."
        )


def _outputs(model: nn.Module) -> Callable[[Tensor], Tensor]:
    device = next(model.parameters()).device
    return lambda records: model(records.to(device)).cpu().double()


def _said(model: nn.Module, features: Tensor) -> Tensor:
    """Return the outputs for private records, each a function of its own record, whether or not they are finite."""
    return one_by_one(model, _outputs(model), features, size=_CHUNK)


def _check_keeps_apart(model: nn.Module, recipe: Recipe) -> None:
    """Refuse a model that mixes records in evaluation mode, before anything is charged. Reads no record."""
    if not works_one_by_one(model, _outputs(model), recipe.info.made_up(1), size=_CHUNK):
        raise UnsupportedModel(
            "A private evaluation needs a network that maps each record by itself in evaluation mode, and rules do not "
            "prove it of this one, or it is random, or it changes when it is run. Training mode may differ. Nothing "
            "was charged. Try it with made-up records: model.eval(), then privet.isolation.prove_isolation."
        )


def _drops(
    recipe: Recipe, model: nn.Module, records: ArrayDataset, terms: EvaluationTerms
) -> NDArray[np.float64] | None:
    """Return by how much each record's figure falls without each column; None where it was not asked for."""
    if not terms.importance:
        return None
    task, codes = recipe.info.task, {name: place for place, name in enumerate(terms.class_names)}
    targets = records.labels.cpu().numpy().reshape(len(records))

    def merits(features: Tensor) -> NDArray[np.float64]:
        said = _said(model, features)
        decided = task.decisions(said.nan_to_num())["class" if codes else task.names[0]]
        is_known = said.isfinite().all(1).numpy()
        if codes:
            right = np.array([codes[name] for name in decided], dtype=np.int64) == targets
            return np.asarray(np.where(is_known, right, 0.0))
        inside = np.clip(targets, terms.low, terms.high)
        error = np.abs(np.clip(decided.astype(np.float64), terms.low, terms.high) - inside) / terms.error_clip
        return np.asarray(np.where(is_known, 1 - np.clip(error, 0.0, 1.0), 0.0))

    return drops_on_stand_ins(merits, records.features, columns_of(recipe))


def _heated(said: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Return logarithms of probabilities; rows that are not numbers stay so."""
    logits = said / temperature
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - logits.max(1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def _numbers(said: Tensor, decided: NDArray[Any]) -> NDArray[np.float64]:
    """Return predicted numbers in the units of the data, and NaN where the model gave none."""
    return np.where(said.isfinite().all(1).numpy(), decided.astype(np.float64), np.nan)


def _categories(info: DatasetInfo, column: str) -> Sequence[str]:
    found = categories_of(info.feature_names, column)
    if not found:
        known = ", ".join(category_columns(info.feature_names)) or "none"
        raise DataError(f"There is no column of categories {column!r} to compare groups of. Declared: {known}.")
    return list(found)


def _codes(info: DatasetInfo, records: ArrayDataset, column: str) -> NDArray[np.int64]:
    places = list(categories_of(info.feature_names, column).values())
    return np.asarray(records.features[:, places].argmax(1).cpu().numpy(), dtype=np.int64)


def _weights(records: ArrayDataset, terms: EvaluationTerms) -> NDArray[np.float64]:
    """Return how much each record counts: the records of one person count 1 together."""
    weights = np.ones(len(records))
    if terms.records_per_person is None or records.persons is None:
        return weights
    names = np.array([name.strip() for name in records.persons], dtype=object)
    named = np.flatnonzero(names != "")
    owners = Owners.of(names[named])
    secret = np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))
    kept, sizes = owners.chosen(np.arange(owners.num_persons), terms.records_per_person, secret)
    weights[:] = 0.0
    weights[named[kept]] = np.repeat(1.0 / np.maximum(sizes, 1), sizes)
    return weights
