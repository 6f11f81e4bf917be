"""Calibration of a run's model, and membership attacks on it.

The run's guarantee does not cover these figures: they are exact functions of test data, and membership attacks read
training data too. They are stored in the run's folder, for its report, only if the data are public.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from privet.attacks.membership import MembershipScores, logistic_regression, loss_threshold
from privet.attacks.membership_verdict import NEVER_TRAINED, AttackLimit, MembershipReport, membership_report
from privet.datasets.arrays import ArrayDataset, Split
from privet.effects.confidence import calibration_report
from privet.effects.reliability import Binning, CalibrationReport
from privet.runs.building import build_model, choose_device, load_tested
from privet.runs.ledger_check import check_ledger
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import classifier_recipe
from privet.runs.run_files import RunFiles, write_json
from privet.runs.runner import stored_model
from privet.training.predictions import predict


def examine_calibration(
    folder: str | Path,
    *,
    device: str = "auto",
    num_bins: int = 15,
    binning: Binning = Binning.EQUAL_WIDTH,
    test: ArrayDataset | None = None,
) -> CalibrationReport:
    """Measure the calibration of a run's model on its test split; stored with the run if the data are public.

    ``test`` replaces the test split; its figures are not stored.

    Raises:
        RecipeError: the model predicts numbers, which have no confidence.
        CheckpointError: the folder holds no model.
    """
    files = RunFiles(folder=Path(folder))
    recipe = classifier_recipe(files)
    model = stored_model(files, recipe, choose_device(device))
    data = load_tested(recipe).test if test is None else test
    report = calibration_report(predict(model, data.features, data.labels), num_bins=num_bins, binning=binning)
    if test is None and recipe.is_public:
        write_json(files.calibration, report.to_dict())
    return report


def examine_membership(folder: str | Path, *, device: str = "auto") -> tuple[MembershipReport, ...]:
    """Run membership attacks on a run's model and compare each with the limit from its ledger.

    The attacks use as many members as there are test examples. They train no other networks: one is a threshold on the
    loss, the other a cross-validated regression. The same attacks on an untrained network are the control: success
    there separates training data from test data, not members. Stored with the run if the data are public.

    Raises:
        RecipeError: the model predicts numbers, which these attacks do not support.
        CheckpointError: the folder holds no model.
        LedgerError: the folder holds no ledger, or a broken one.
    """
    files = RunFiles(folder=Path(folder))
    recipe = classifier_recipe(files)
    where = choose_device(device)
    model = stored_model(files, recipe, where)
    split = load_tested(recipe)
    charged = check_ledger(files.folder)
    limit = AttackLimit(event=charged.event, adjacency=charged.spent.adjacency)
    reports = tuple(
        membership_report(replace(scores, attack=scores.attack + note), limit)
        for attacked, note in ((model, ""), (_untrained(recipe, where), NEVER_TRAINED))
        for scores in _attacks(attacked, split)
    )
    if recipe.is_public:
        write_json(files.membership, {"attacks": [report.to_dict() for report in reports]})
    return reports


def _attacks(model: nn.Module, split: Split) -> tuple[MembershipScores, ...]:
    size = min(len(split.train), len(split.test))
    members = predict(model, split.train.features[:size], split.train.labels[:size])
    others = predict(model, split.test.features[:size], split.test.labels[:size])
    return loss_threshold(members, others), logistic_regression(members, others)


def _untrained(recipe: Recipe, device: torch.device) -> nn.Module:
    # A fixed seed, so that the control is the same every time; the caller's generator is unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_model(recipe, device)
