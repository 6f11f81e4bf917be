"""Membership inference attacks: scores for whether a record was in the training data of a model.

Three attacks: a threshold on the loss (Yeom et al. 2018), a cross-validated logistic regression on the model's
predictions, and the likelihood ratio of Carlini et al. (2022), LiRA, which fits the distribution of each record's
log-odds on shadow models with and without the record.

A result is always shown beside the limit of the guarantee: no attack can exceed the trade-off function of the
mechanism. A weak attack proves nothing; an attack that exceeds the limit proves a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from privet import checks
from privet.errors import ArgumentError, DataError
from privet.training.predictions import Predictions

Array = NDArray[np.float64]
_LEAST_STD = 1e-3
_LOG_TWO_PI = math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipScores:
    """One score per record; a larger score means more likely a member of the training data.

    Attributes:
        attack: Name of the attack.
        members: Scores of training records.
        non_members: Scores of records of the same distribution that are not training records.
    """

    attack: str
    members: Array
    non_members: Array

    def __post_init__(self) -> None:
        for name in ("members", "non_members"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or not len(values):
                raise DataError(
                    f"{name} must be a vector with one score per record, at least one; got shape {values.shape}."
                )
            if np.isnan(values).any():
                raise DataError(
                    f"{name} contains NaN: scores that are not numbers. Remove such records from both sides."
                )
            object.__setattr__(self, name, values)


def loss_threshold(members: Predictions, non_members: Predictions) -> MembershipScores:
    """Score each record by its negative loss."""
    return MembershipScores(attack="loss threshold", members=-members.losses, non_members=-non_members.losses)


def logistic_regression(
    members: Predictions, non_members: Predictions, *, num_folds: int = 5, weight_decay: float = 1e-3, seed: int = 0
) -> MembershipScores:
    """Score by a cross-validated logistic regression on log-probabilities, label and loss.

    The loss is a feature of its own because it is no linear function of the logits and the one-hot label.

    Args:
        members: Predictions for training records.
        non_members: Predictions for other records.
        num_folds: Number of folds of the cross-validation, stratified by membership.
        weight_decay: Factor of half the squared norm of the weights in the objective.
        seed: Seed of the division into folds.
    """
    folds = checks.count("num_folds", num_folds, minimum=2)
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    features = np.concatenate([_attack_features(members), _attack_features(non_members)])
    is_member = np.arange(len(features)) < members.num_examples
    place = np.empty(len(features), dtype=np.int64)
    for side in (is_member, ~is_member):
        if side.sum() < folds:
            raise ArgumentError(f"num_folds is {folds}, and one side has fewer records than that. Use fewer folds.")
        place[side] = generator.permutation(int(side.sum())) % folds
    scores = np.empty(len(features))
    for fold in range(folds):
        held = place == fold
        scores[held] = _fit_logistic(features[~held], is_member[~held], weight_decay)(features[held])
    return MembershipScores(
        attack=f"logistic regression, {folds} folds", members=scores[is_member], non_members=scores[~is_member]
    )


def _attack_features(predictions: Predictions) -> Array:
    # Cut off the logarithms of tiny probabilities: otherwise one such record dominates the fit.
    logits = np.maximum(predictions.log_probabilities, -30.0)
    truth = np.eye(logits.shape[1])[predictions.labels]
    return np.concatenate([logits, truth, np.minimum(predictions.losses, 30.0)[:, None]], axis=1)


def _fit_logistic(features: Array, is_member: NDArray[np.bool_], weight_decay: float) -> Callable[[Array], Array]:
    centre, spread = features.mean(0), np.maximum(features.std(0), 1e-6)
    inputs = (features - centre) / spread
    # Both sides have the same total weight, whatever their sizes.
    weights = np.where(is_member, 0.5 / is_member.sum(), 0.5 / (~is_member).sum())
    signs = np.where(is_member, 1.0, -1.0)

    def objective(parameters: Array) -> tuple[float, Array]:
        margins = signs * (inputs @ parameters[1:] + parameters[0])
        pulls = -weights * signs * expit(-margins)
        slope = np.concatenate([[pulls.sum()], inputs.T @ pulls + weight_decay * parameters[1:]])
        loss = float(weights @ np.logaddexp(0, -margins)) + weight_decay / 2 * float(parameters[1:] @ parameters[1:])
        return loss, slope

    found: Array = minimize(objective, np.zeros(inputs.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return lambda rows: np.asarray((rows - centre) / spread @ found[1:] + found[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Shadows:
    """Predictions of shadow models for each record.

    Attributes:
        margins: Log-odds of the true class, ``[models, records]``.
        was_member: Whether the record was in the training data of the model, same shape.
    """

    margins: Array
    was_member: NDArray[np.bool_]


def train_shadows(
    fit: Callable[[NDArray[np.int64]], Predictions], *, num_records: int, num_models: int, seed: int = 0
) -> Shadows:
    """Train shadow models on random halves of the records; every record is a member of half of the models.

    Args:
        fit: Trains a model on the records at these positions, in the same way as the target, and returns its
            predictions for all records, in order.
        num_records: Number of records.
        num_models: Number of shadow models; an even number of at least four.
        seed: Seed of the random halves.
    """
    models, records = checks.count("num_models", num_models, minimum=4), checks.count("num_records", num_records)
    if models % 2:
        raise ArgumentError(
            f"num_models must be even, so that each record is a member of half of the models; got {models}."
        )
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    inside = generator.permuted(np.tile(np.arange(models)[:, None] < models // 2, (1, records)), axis=0)
    margins = np.stack([fit(np.flatnonzero(row)).margins for row in inside])
    if margins.shape != inside.shape:
        raise DataError(f"fit must return predictions for all {records} records, got {margins.shape[1]}.")
    return Shadows(margins=margins, was_member=inside)


def likelihood_ratio(
    target: Predictions, is_member: NDArray[np.bool_], shadows: Shadows, *, shares_variance: bool | None = None
) -> MembershipScores:
    """Score by LiRA: the log-likelihood ratio of a record's log-odds under shadow models with and without the record.

    Args:
        target: Predictions of the attacked model for all records.
        is_member: Whether each record was in its training data.
        shadows: Shadow models of :func:`train_shadows`.
        shares_variance: Estimate one variance for all records instead of one per record; by default below 64 models,
            where variances of single records are too noisy (Carlini et al. 2022, section VI).
    """
    inside, margins = shadows.was_member, shadows.margins
    members = np.asarray(is_member, dtype=bool)
    if members.shape != (target.num_examples,) or margins.shape[1:] != members.shape:
        raise DataError("target, is_member and shadows must be about the same records, with one entry per record each.")
    if (inside.sum(0) < 2).any() or ((~inside).sum(0) < 2).any():
        raise DataError("Every record must be a member and a non-member of at least two shadow models. Train more.")
    shared = len(margins) < 64 if shares_variance is None else shares_variance
    ratio = _log_density(target.margins, margins, inside, shared) - _log_density(
        target.margins, margins, ~inside, shared
    )
    return MembershipScores(
        attack=f"likelihood ratio, {len(margins)} shadow models", members=ratio[members], non_members=ratio[~members]
    )


def _log_density(at: Array, margins: Array, chosen: NDArray[np.bool_], shared: bool) -> Array:
    counts = chosen.sum(0)
    means = np.where(chosen, margins, 0.0).sum(0) / counts
    squares = np.where(chosen, (margins - means) ** 2, 0.0).sum(0)
    variances = np.full_like(means, squares.sum() / (counts - 1).sum()) if shared else squares / (counts - 1)
    variances = np.maximum(variances, _LEAST_STD**2)
    return np.asarray(-((at - means) ** 2) / (2 * variances) - np.log(variances) / 2 - _LOG_TWO_PI / 2)
