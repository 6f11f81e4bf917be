"""Contributions of records to the vector of a private evaluation. Secret until noise was added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privet.effects.noisy_counts.terms import IMPORTANCE, MOMENT_SCALE, SCORE_EDGES, Array, EvaluationTerms
from privet.errors import ArgumentError

_CHUNK = 4096
_ROUNDING = 1e-6
_INNER_EDGES = np.array(SCORE_EDGES[1:-1])
Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """Private records with the predictions of a model for them.

    Attributes:
        outputs: Logarithms of the class probabilities, ``[records, classes]``; or predicted numbers, ``[records]``.
        targets: The true classes, or the true numbers.
        decided: The decided classes; the likeliest if not given.
        groups: By column, the number of each record's category.
        weights: How much each record counts; the records of one person count 1 together at most.
        drops: ``[records, columns]``, for each column of ``terms.importance``: by how much a record's figure falls when
            the column is replaced by public values. It must be a function of the record alone.
    """

    outputs: Array
    targets: NDArray[np.float64] | Codes
    decided: Codes | None = None
    groups: Mapping[str, Codes] = field(default_factory=dict)
    weights: Array
    drops: Array | None = None

    def __len__(self) -> int:
        return len(self.weights)


def summed(data: Evaluated, terms: EvaluationTerms) -> Array:
    """Return the sum of the contributions of all records. Secret.

    Guarantee:
        With weights of at most 1 per unit, adding or removing a unit moves the vector by at most 1 in the norm that
        weights each number as ``terms.weights()`` says: what a record adds is shortened to that norm, whatever the
        model said about it, and a sum of a unit's records is no longer than their weights together.
    Edge cases: no records give zeros; a record with an output that is not a number counts as a wrong decision of the
        largest loss, and one with a target that is none of the declared classes counts as nothing.
    """
    total, scale = np.zeros(terms.size), terms.weights()
    for start in range(0, len(data), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = _class_rows(data, terms, part) if terms.class_names else _number_rows(data, terms, part)
        lengths = np.sqrt((rows * scale) ** 2 @ np.ones(terms.size))
        factors = np.minimum(1.0, 1.0 / np.maximum(lengths, 1e-300))
        usable = np.isfinite(lengths)
        weighted = np.where(usable, factors * np.clip(data.weights[part], 0.0, 1.0), 0.0)
        total += weighted @ np.where(usable[:, None], rows, 0.0)
    return total


def _class_rows(data: Evaluated, terms: EvaluationTerms, part: slice) -> Array:
    logs, labels = data.outputs[part], data.targets[part].astype(np.int64)
    is_class = (labels >= 0) & (labels < terms.num_classes)
    labels = np.where(is_class, labels, 0)
    # neither NaN nor above one; minus infinity is a probability of zero
    known = np.asarray((logs <= _ROUNDING).all(1))
    # an output that is no number: certain of a class that is not the true one
    wrong = np.where(np.arange(terms.num_classes) == ((labels + 1) % terms.num_classes)[:, None], 0.0, -np.inf)
    logs = np.where(known[:, None], logs, wrong)
    chances, at, places = np.exp(logs), np.arange(len(labels)), terms.slices()
    decided = logs.argmax(1) if data.decided is None else np.where(known, data.decided[part], logs.argmax(1))
    rows = np.zeros((len(labels), terms.size))
    rows[at, places["confusion"].start + labels * terms.num_classes + decided] = 1.0
    loss = np.clip(-logs[at, labels] / terms.loss_clip, 0.0, 1.0)
    brier = np.clip(((chances - np.eye(terms.num_classes)[labels]) ** 2).sum(1) / 2, 0.0, 1.0)
    rows[:, places["losses"]] = np.stack([loss, MOMENT_SCALE * loss**2, brier, MOMENT_SCALE * brier**2], 1)
    bins = len(SCORE_EDGES) - 1
    for number, name in enumerate(terms.curves):
        first = places["scores"].start + 2 * bins * number + bins * (labels == name)
        rows[at, first + np.digitize(chances[:, name], _INNER_EDGES)] = 1.0
    if "confidence" in places:
        first = places["confidence"].start + bins * (decided == labels)
        rows[at, first + np.digitize(chances.max(1), _INNER_EDGES)] = 1.0
    for groups in terms.groups:
        codes = np.clip(data.groups[groups.column][part], 0, len(groups.categories) - 1)
        rows[at, places[f"group {groups.column}"].start + 2 * codes + (decided == labels)] = 1.0
    if IMPORTANCE in places:
        rows[:, places[IMPORTANCE]] = _drops(data, terms, part)
    return np.where(is_class[:, None], rows, 0.0)


def _drops(data: Evaluated, terms: EvaluationTerms, part: slice) -> Array:
    """Return the drops of records and their squares, pair after pair."""
    if data.drops is None:
        raise ArgumentError(f"The terms ask for the importance of {len(terms.importance or ())} columns: give drops.")
    drops = np.clip(np.nan_to_num(data.drops[part]), -1.0, 1.0)
    return np.stack([drops, MOMENT_SCALE * drops**2], 2).reshape(len(drops), -1)


def _number_rows(data: Evaluated, terms: EvaluationTerms, part: slice) -> Array:
    targets = np.clip(data.targets[part], terms.low, terms.high)
    said = np.clip(data.outputs[part], terms.low, terms.high)
    error = np.abs(np.where(np.isfinite(said), said, np.inf) - targets) / terms.error_clip
    error = np.clip(np.nan_to_num(error, nan=1.0, posinf=1.0), 0.0, 1.0)
    half = (terms.high - terms.low) / 2
    target = (targets - terms.low - half) / half
    places, at = terms.slices(), np.arange(len(targets))
    rows = np.zeros((len(targets), terms.size))
    figures = [np.ones_like(error), error, error**2, target, target**2]
    moments = [error**4, target**3, target**4, error**2 * target, error**2 * target**2]
    rows[:, places["moments"]] = np.stack([*figures, *(MOMENT_SCALE * moment for moment in moments)], 1)
    for groups in terms.groups:
        codes = np.clip(data.groups[groups.column][part], 0, len(groups.categories) - 1)
        first = places[f"group {groups.column}"].start + 3 * codes
        for place, values in enumerate((np.ones_like(error), error, MOMENT_SCALE * error**2)):
            rows[at, first + place] = values
    if IMPORTANCE in places:
        rows[:, places[IMPORTANCE]] = _drops(data, terms, part)
    return rows
