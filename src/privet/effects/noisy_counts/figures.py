"""The figures of a private evaluation: everything that follows from its released vector. Post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privet.effects.noisy_counts import intervals
from privet.effects.noisy_counts.intervals import Interval
from privet.effects.noisy_counts.number_figures import number_figures
from privet.effects.noisy_counts.temperature import temperature_of
from privet.effects.noisy_counts.terms import IMPORTANCE, MOMENT_SCALE, SCORE_EDGES, Array, EvaluationTerms
from privet.errors import ArgumentError
from privet.records import Record

# Names that other parts look for.
ACCURACY, LOG_LOSS = "accuracy", "log loss"


@dataclass(frozen=True, kw_only=True)
class Figure(Record):
    """One figure with its interval, which holds the noise and the choice of records."""

    WHAT: ClassVar[str] = "a figure of a private evaluation"

    name: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, found: Interval, *, scale: float = 1.0, shift: float = 0.0) -> Figure:
        value, low, high = (shift + scale * float(each) for each in (found.value, found.low, found.high))
        return cls(name=name, value=value, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Released(Record):
    """The noisy vector of a private evaluation. It may be shown to anyone.

    Attributes:
        terms: The public constants.
        noise_multiplier: Ratio of the noise to the contribution of one unit, in the joint norm.
        vector: The noisy counts and sums.
        temperature: That of the model's probabilities when they were counted.
    """

    WHAT: ClassVar[str] = "a released private evaluation"

    terms: EvaluationTerms
    noise_multiplier: float
    vector: tuple[float, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if len(self.vector) != self.terms.size:
            raise ArgumentError(f"The terms ask for {self.terms.size} numbers, and {len(self.vector)} were released.")

    def block(self, name: str) -> Array:
        """Return the numbers of one block."""
        return np.array(self.vector[self.terms.slices()[name]])

    def std(self, name: str) -> float:
        """Return the standard deviation of the noise on each number of a block."""
        return self.terms.stds(self.noise_multiplier)[name]

    @property
    def noisy_count(self) -> tuple[float, float]:
        """The released number of units, and the standard deviation of its noise."""
        if self.terms.class_names:
            return float(self.block("confusion").sum()), self.std("confusion") * self.terms.num_classes
        return float(self.block("moments")[0]), self.std("moments")

    @property
    def count(self) -> Figure:
        """The number of units, such as records."""
        value, noise = self.noisy_count
        half = intervals._QUANTILE * noise
        return Figure(name="units", value=max(0.0, value), low=max(0.0, value - half), high=max(0.0, value + half))


@dataclass(frozen=True, kw_only=True)
class GroupFigure:
    """One group: its share of all units, and its accuracy or mean absolute error."""

    column: str
    group: str
    figure: Figure
    num_units: float


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Units with a probability in one range, and how often it came true."""

    low: float
    high: float
    num_units: float
    came_true: Figure


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Everything that a private evaluation says.

    Attributes:
        headline: Figures of the whole model, the most important first.
        constant: The same of a model that always says the same.
        differences: The model less the constant; above zero the model is better.
        warnings: Facts that a reader must know before the figures.
        confusion: Noisy counts, true classes in rows; empty for numbers.
        classes: Recall and precision of every class.
        groups: Figures of groups.
        reliability: Bins of probabilities.
        temperature: The number by which logits are divided so that probabilities fit; 1 where nothing is gained.
        importance: By column, how much the accuracy falls, or the mean absolute error rises, without it.
    """

    headline: tuple[Figure, ...]
    constant: tuple[Figure, ...]
    differences: tuple[Figure, ...]
    warnings: tuple[str, ...]
    confusion: tuple[tuple[float, ...], ...] = ()
    classes: tuple[tuple[str, Figure, Figure], ...] = ()
    groups: tuple[GroupFigure, ...] = ()
    reliability: tuple[ReliabilityBin, ...] = ()
    temperature: float = 1.0
    importance: tuple[Figure, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "headline": [figure.to_dict() for figure in self.headline],
            "constant": [figure.to_dict() for figure in self.constant],
            "differences": [figure.to_dict() for figure in self.differences],
            "warnings": list(self.warnings),
            "confusion": [list(row) for row in self.confusion],
            "classes": [
                {"class": name, "recall": recall.to_dict(), "precision": precision.to_dict()}
                for name, recall, precision in self.classes
            ],
            "groups": [
                {"column": each.column, "group": each.group, **each.figure.to_dict(), "units": each.num_units}
                for each in self.groups
            ],
            "reliability": [
                {"from": each.low, "to": each.high, "units": each.num_units, **each.came_true.to_dict()}
                for each in self.reliability
            ],
            "temperature": self.temperature,
            "importance": [figure.to_dict() for figure in self.importance],
        }


def figures_of(released: Released) -> Figures:
    """Return the figures of a released vector; every one has an interval."""
    return _class_figures(released) if released.terms.class_names else _number_figures(released)


def _class_figures(released: Released) -> Figures:
    terms, size = released.terms, released.terms.num_classes
    table, std = released.block("confusion").reshape(size, size), released.std("confusion")
    flat, right = table.ravel(), float(np.trace(table))
    accuracy = intervals.share(right, table.sum() - right, std=std, hit_cells=size, miss_cells=size * size - size)
    rows, columns = table.sum(1), table.sum(0)
    largest = int(rows.argmax())
    # always saying the largest class is right for its row and wrong elsewhere
    says_largest = np.zeros((size, size))
    says_largest[largest] = 1.0
    better = intervals.contrast(flat, (np.eye(size) - says_largest).ravel(), std=std)
    share_of_largest = intervals.share(
        rows[largest], rows.sum() - rows[largest], std=std, hit_cells=size, miss_cells=size * size - size
    )
    log_loss, brier = _losses(released, table)
    entropy, no_brier = _constant_losses(rows, terms.loss_clip)
    headline = [Figure.of(ACCURACY, accuracy), *_areas(released)]
    headline += [Figure.of(LOG_LOSS, log_loss, scale=terms.loss_clip), Figure.of("Brier score", brier, scale=2.0)]
    constant = (
        Figure.of(ACCURACY, share_of_largest),
        Figure(name=LOG_LOSS, value=entropy, low=entropy, high=entropy),
        Figure(name="Brier score", value=no_brier, low=no_brier, high=no_brier),
    )
    differences = (
        Figure.of(ACCURACY, better),
        _ordered(Figure.of(LOG_LOSS, log_loss, scale=-terms.loss_clip, shift=entropy)),
    )
    return Figures(
        headline=tuple(headline),
        constant=constant,
        differences=differences,
        warnings=tuple(_warnings(differences, f"always says {terms.class_names[largest]!r}")),
        confusion=tuple(tuple(float(value) for value in row) for row in table),
        classes=tuple(_per_class(terms, table, rows, columns, std)),
        groups=tuple(_groups(released)),
        reliability=tuple(_reliability(released)),
        temperature=temperature_of(*_scores(released), std=released.std("scores" if size == 2 else "confidence")),
        importance=_importance(released, scale=1.0),
    )


def _ordered(figure: Figure) -> Figure:
    low, high = sorted((figure.low, figure.high))
    return Figure(name=figure.name, value=figure.value, low=low, high=high)


def _losses(released: Released, table: Array) -> tuple[Interval, Interval]:
    sums, std, size = released.block("losses"), released.std("losses"), released.terms.num_classes
    count, count_std = float(table.sum()), released.std("confusion") * size
    found = [
        intervals.mean(total, square / MOMENT_SCALE, count, total_std=std, count_std=count_std)
        for total, square in ((sums[0], sums[1]), (sums[2], sums[3]))
    ]
    return found[0], found[1]


def _constant_losses(rows: Array, loss_clip: float) -> tuple[float, float]:
    """Return log loss and Brier score of a model that always says the shares of the classes."""
    shares = np.maximum(rows, 0.0)
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(len(rows), 1 / len(rows))
    logs = np.minimum(-np.log(np.maximum(shares, 1e-300)), loss_clip)
    return float(shares @ logs), float(1 - shares @ shares)


def _areas(released: Released) -> list[Figure]:
    terms, bins = released.terms, len(SCORE_EDGES) - 1
    if not terms.curves:
        return []
    counts, std = released.block("scores").reshape(len(terms.curves), 2, bins), released.std("scores")
    names = ["area under the ROC curve"]
    if terms.num_classes > 2:
        names = [f"area under the ROC curve, {terms.class_names[each]} against the rest" for each in terms.curves]
    return [
        Figure.of(name, intervals.area_under_curve(negatives, positives, std=std))
        for name, (negatives, positives) in zip(names, counts, strict=True)
    ]


def _per_class(
    terms: EvaluationTerms, table: Array, rows: Array, columns: Array, std: float
) -> list[tuple[str, Figure, Figure]]:
    others, found = terms.num_classes - 1, []
    for place, name in enumerate(terms.class_names):
        hits = table[place, place]
        recall = intervals.share(hits, rows[place] - hits, std=std, miss_cells=others)
        precision = intervals.share(hits, columns[place] - hits, std=std, miss_cells=others)
        found.append((name, Figure.of("recall", recall), Figure.of("precision", precision)))
    return found


def _groups(released: Released) -> list[GroupFigure]:
    found = []
    for groups in released.terms.groups:
        counts, std = released.block(f"group {groups.column}").reshape(-1, 2), released.std(f"group {groups.column}")
        shares = intervals.share(counts[:, 1], counts[:, 0], std=std)
        for place, name in enumerate(groups.categories):
            one = Interval(value=shares.value[place], low=shares.low[place], high=shares.high[place])
            units = max(0.0, float(counts[place].sum()))
            found.append(
                GroupFigure(column=groups.column, group=name, figure=Figure.of(ACCURACY, one), num_units=units)
            )
    return found


def _scores(released: Released) -> tuple[Array, Array]:
    """Return the noisy counts of probabilities that did not come true, and of those that did, by bin."""
    bins = len(SCORE_EDGES) - 1
    if released.terms.num_classes == 2:
        found = released.block("scores").reshape(2, bins)
    else:
        found = released.block("confidence").reshape(2, bins)
    return found[0], found[1]


def _reliability(released: Released) -> list[ReliabilityBin]:
    misses, hits = _scores(released)
    std = released.std("scores" if released.terms.num_classes == 2 else "confidence")
    found = intervals.share(hits, misses, std=std)
    return [
        ReliabilityBin(
            low=SCORE_EDGES[place],
            high=SCORE_EDGES[place + 1],
            num_units=max(0.0, float(hits[place] + misses[place])),
            came_true=Figure.of(
                "came true", Interval(value=found.value[place], low=found.low[place], high=found.high[place])
            ),
        )
        for place in range(len(hits))
    ]


def _warnings(differences: tuple[Figure, ...], constant: str) -> list[str]:
    found = []
    for each in differences:
        if each.value <= 0:
            found.append(f"The model is no better in {each.name} than one that {constant}.")
        elif each.low <= 0:
            found.append(
                f"That the model is better in {each.name} than one that {constant} is not shown: the difference may be "
                "noise or chance."
            )
    return found


def _number_figures(released: Released) -> Figures:
    terms = released.terms
    found = number_figures(released.block("moments"), std=released.std("moments"), terms=terms)
    differences = (Figure.of("R2", found.explained),)
    return Figures(
        headline=(
            Figure.of("R2", found.explained),
            Figure.of("mean absolute error", found.absolute, scale=terms.error_clip),
            Figure.of("root mean squared error", found.root, scale=terms.error_clip),
        ),
        constant=(Figure.of("root mean squared error", found.constant, scale=(terms.high - terms.low) / 2),),
        differences=differences,
        warnings=tuple(_warnings(differences, "always says the mean")),
        groups=tuple(_number_groups(released)),
        importance=_importance(released, scale=terms.error_clip),
    )


def _importance(released: Released, *, scale: float) -> tuple[Figure, ...]:
    """Return the mean drop of every column with its interval."""
    names = released.terms.importance or ()
    if not names:
        return ()
    sums, std = released.block(IMPORTANCE).reshape(-1, 2), released.std(IMPORTANCE)
    count, count_std = released.noisy_count
    found = intervals.mean(
        sums[:, 0], sums[:, 1] / MOMENT_SCALE, np.full(len(sums), count),
        total_std=std, count_std=count_std, least=-1.0,
    )  # fmt: skip
    ends = zip(names, found.value, found.low, found.high, strict=True)
    return tuple(
        Figure(name=name, value=scale * float(value), low=scale * float(low), high=scale * float(high))
        for name, value, low, high in ends
    )


def _number_groups(released: Released) -> list[GroupFigure]:
    found = []
    for groups in released.terms.groups:
        name = f"group {groups.column}"
        rows, std = released.block(name).reshape(-1, 3), released.std(name)
        for category, (count, total, squares) in zip(groups.categories, rows, strict=True):
            error = intervals.mean(total, squares / MOMENT_SCALE, count, total_std=std, count_std=std)
            figure = Figure.of("mean absolute error", error, scale=released.terms.error_clip)
            units = max(0.0, float(count))
            found.append(GroupFigure(column=groups.column, group=category, figure=figure, num_units=units))
    return found


def rounded(value: float) -> int:
    """Return a noisy count as a whole number of zero or more."""
    return max(0, math.floor(value + 0.5))
