"""Side effects of privacy on a run's model: gaps between groups, and accuracy under attack.

The run's guarantee does not cover these figures: they are exact functions of test data. They are stored in the run's
folder, for its report, only if they were measured on its own test split and the data are public.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.datasets.encoding import categories_of, category_columns
from privet.datasets.info import DatasetInfo
from privet.effects.fairness import Attribute, decision_disparity, fairness_report
from privet.effects.feature_estimate import explain_groups
from privet.effects.gradient_norms import gradient_norms
from privet.effects.groups import FairnessReport, SourceRow
from privet.effects.radii import RobustnessReport, WeightGrowth, noise_walk_length
from privet.effects.robustness import LargestChange, ProjectedGradient, robustness_curve, weight_length
from privet.errors import DataError
from privet.mechanism.noise import spherical_gaussian_multiplier
from privet.plan import Plan
from privet.runs.building import choose_device, load_tested
from privet.runs.own_records import tested_records
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.training_settings import SgdSettings
from privet.runs.resuming import classifier_recipe, stored_plan, stored_recipe
from privet.runs.run_files import RunFiles, write_json
from privet.runs.runner import stored_model
from privet.training.predictions import predict

IMAGE_RADII = tuple(number / 255 for number in (1, 2, 4, 8, 16))
TABLE_RADII = (0.005, 0.01, 0.02, 0.05, 0.1)
_MOST_ATTACKED = 1000


@dataclass(frozen=True, kw_only=True)
class RobustnessExamination:
    """Accuracy under attack, and the norm of the weights beside the norm that noise explains.

    Attributes:
        report: Accuracy by radius.
        growth: None where there is no formula for the norm from noise alone: other optimizers than SGD, other noise.
    """

    report: RobustnessReport
    growth: WeightGrowth | None

    def to_dict(self) -> dict[str, Any]:
        return {"report": self.report.to_dict(), "growth": None if self.growth is None else asdict(self.growth)}


def own_test_data(folder: str | Path, path: str | os.PathLike[str]) -> ArrayDataset:
    """Read a table or a folder of images as test data for the model of a run.

    Raises:
        DataError: the file does not fit the run's declaration; the message names the row and the problem.
    """
    return tested_records(stored_recipe(RunFiles(folder=Path(folder))), path)


def group_attribute(info: DatasetInfo, features: Tensor, name: str) -> Attribute:
    """Return the groups of a declared category column, read back from the encoded features.

    Raises:
        DataError: the data have no such column, or it holds numbers.
    """
    places = categories_of(info.feature_names, name)
    if not places:
        known = ", ".join(category_columns(info.feature_names)) or "none: its examples are not rows of a table"
        kind = "is a column of numbers" if name in info.feature_names else "is not a column"
        raise DataError(f"{name!r} {kind} of {info.name!r}, so it names no groups. Columns of groups: {known}.")
    codes = features[:, list(places.values())].argmax(1).cpu().numpy().astype(np.int64)
    return Attribute(name=name, group_names=tuple(places), codes=codes)


def examine_fairness(
    folder: str | Path, groups: Sequence[str] = (), *, device: str = "auto", test: ArrayDataset | None = None
) -> FairnessReport:
    """Measure a run's model for every class and for the groups of declared columns.

    Differences of decisions are given for two classes. Sources of gaps are given where training clips to a
    threshold and every group of the column is large enough to separate its features from noise.

    Args:
        folder: The run's folder.
        groups: Names of category columns.
        device: Name of the device.
        test: Other test data; None is the run's own test split, whose figures are stored if it is public.

    Raises:
        DataError: a column does not exist or has no groups to compare.
        RecipeError: the model predicts numbers.
        DependencyError: fairlearn is not installed, and groups were asked for.
    """
    files = RunFiles(folder=Path(folder))
    recipe = classifier_recipe(files)
    data = load_tested(recipe).test if test is None else test
    info, chosen = recipe.info, dict.fromkeys(groups)
    attributes = [group_attribute(info, data.features, name) for name in chosen]
    model = stored_model(files, recipe, choose_device(device))
    predictions = predict(model, data.features, data.labels)
    report = fairness_report(predictions, class_names=info.class_names, attributes=attributes)
    if info.num_classes == 2:
        decisions = tuple(decision_disparity(predictions, one, class_names=info.class_names) for one in attributes)
        report = replace(report, decisions=decisions)
    report = replace(report, sources=_sources(stored_plan(files), model, data, attributes))
    if test is None and recipe.is_public:
        write_json(files.fairness, report.to_dict())
    return report


def _sources(
    plan: Plan, model: nn.Module, data: ArrayDataset, attributes: Sequence[Attribute]
) -> tuple[SourceRow, ...]:
    clip_norm = plan.clipping.threshold
    if not attributes or clip_norm is None:
        return ()
    norms = gradient_norms(model, data.features, data.labels)
    features, labels = data.features.double().cpu().numpy(), data.labels.cpu().numpy()
    rows: list[SourceRow] = []
    for attribute in attributes:
        # A column whose groups are too small to separate features from noise has no expected sources.
        with suppress(DataError):
            rows += [
                SourceRow(
                    attribute=attribute.name,
                    name=found.name,
                    share=found.share,
                    clip_factor=found.clip_factor,
                    **asdict(found.sources),
                )
                for found in explain_groups(features, labels, attribute, norms, clip_norm=clip_norm)
            ]
    return tuple(rows)


def examine_robustness(
    folder: str | Path,
    *,
    device: str = "auto",
    test: ArrayDataset | None = None,
    radii: Sequence[float] | None = None,
    attack: ProjectedGradient | None = None,
    num_attacked: int = _MOST_ATTACKED,
) -> RobustnessExamination:
    """Attack a run's model by projected gradient and measure accuracy by radius, in units of the stored values.

    Pixels of images are changed on the scale from 0 to 1. Rows of a table are changed in all columns, categories
    included, each as a share of its declared range: a measure of stability, not a realistic attack.

    Args:
        folder: The run's folder.
        device: Name of the device.
        test: Other test data, normalised as the run's; None is the run's own test split.
        radii: Largest changes of a value; 1 to 16 of 255 for images, 0.5 to 10 % of a range for tables.
        attack: The attack; by default 20 steps and two random starts in the maximum norm.
        num_attacked: Number of examples to attack at most, the first ones.

    Raises:
        DataError: the records are texts.
    """
    files = RunFiles(folder=Path(folder))
    recipe = classifier_recipe(files)
    data = load_tested(recipe).test if test is None else test
    if recipe.info.holds_tokens:
        raise DataError(
            f"The records of {recipe.dataset!r} are texts: a word cannot be changed a little, so that there is no "
            "accuracy by the size of a change. Leave --robustness out."
        )
    normalisation = recipe.info.normalisation(recipe.normalisation)
    is_image = len(recipe.info.input_shape) == 3
    axes = (1, -1, *(1 for _ in recipe.info.input_shape[1:]))
    model = stored_model(files, recipe, choose_device(device))
    # The radius of a table is measured after its normalisation, which maps declared ranges to 0 and 1.
    shift, scale = ((0.0,), (1.0,)) if not is_image else (normalisation.shift, normalisation.scale)
    shifts, scales = (data.features.new_tensor(values).reshape(axes) for values in (shift, scale))
    stored = data.features[:num_attacked] * scales + shifts
    report = robustness_curve(
        model,
        stored.clamp(0.0, 1.0),
        data.labels[:num_attacked],
        attack or ProjectedGradient(norm=LargestChange(), num_steps=20, step_share=0.125, num_restarts=2),
        radii=radii or (IMAGE_RADII if is_image else TABLE_RADII),
        as_inputs=lambda values: (values - shifts.to(values)) / scales.to(values),
    )
    found = RobustnessExamination(report=report, growth=_growth(recipe, stored_plan(files), model))
    if test is None and recipe.is_public:
        write_json(files.robustness, found.to_dict())
    return found


def _growth(recipe: Recipe, plan: Plan, model: nn.Module) -> WeightGrowth | None:
    optimizer, settings = recipe.training.optimizer, recipe.training
    is_plain = isinstance(optimizer, SgdSettings) and settings.schedule is None and settings.averaging is None
    clip_norm, multiplier = plan.clipping.threshold, spherical_gaussian_multiplier(plan.noise)
    if not is_plain or multiplier is None or clip_norm is None:
        return None
    assert isinstance(optimizer, SgdSettings)
    return WeightGrowth(
        measured=weight_length(model),
        from_noise=noise_walk_length(
            learning_rate=optimizer.learning_rate,
            noise_std=multiplier * clip_norm / plan.sampling.expected_batch_size,
            num_steps=plan.num_steps,
            num_parameters=sum(value.numel() for value in model.parameters() if value.requires_grad),
            momentum=optimizer.momentum,
        ),
    )
