"""Recipes for a user's own table, images or texts: the declaration, and defaults for private training.

The defaults are constants and functions of declared numbers. None of them reads a record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet import checks
from privet.errors import RecipeError
from privet.models.model_sizes import STATISTICS_NORM
from privet.runs.recipes.network_settings import OWN_NETWORK
from privet.runs.recipes.table_schema import TableSchema
from privet.runs.recipes.table_settings import ColumnSettings
from privet.runs.recipes.text_settings import OWN_ENCODER

_LARGEST_DELTA = 1e-5
_FEWEST_RECORDS = 100
_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class _Rates:
    """How the weights of a table's model are learned, by the strength: declared units times epsilon.

    The bound on a record's gradient grows with the strength: a low bound hides less of the weights in noise, a high one
    changes fewer gradients, and probabilities learned from changed gradients are too sure. The rate grows with the
    strength and falls with the bound, so that noise moves the weights by an amount that is always the same.

    Attributes:
        rate: Learning rate per unit of strength at the least bound.
        most: Largest learning rate; the loss is unstable beyond it.
        bound: Least bound.
        strength: Up to this strength the bound is the least.
        curves_from: Strength from which curved features are worth their noise.
    """

    rate: float
    most: float
    bound: float
    strength: float
    curves_from: float

    def bound_for(self, strength: float) -> float:
        """Return the bound on a record's gradient."""
        return float(f"{min(_MOST_BOUND, max(self.bound, self.bound * math.sqrt(strength / self.strength))):.3g}")

    def rate_for(self, strength: float) -> float:
        """Return the learning rate of the weights."""
        return float(f"{min(self.most, self.rate * strength * self.bound / self.bound_for(strength)):.3g}")

    def statistics_rate_for(self, strength: float) -> float:
        """Return the rate of the statistics, at which the noise in their sums is always the same."""
        return _STATISTICS_RATE * strength / math.hypot(STATISTICS_NORM, self.bound_for(strength))


_MOST_BOUND, _STATISTICS_RATE = 2.0, 0.00022
_NUMBER_RATES = _Rates(rate=0.00025, most=0.4, bound=0.35, strength=400.0, curves_from=9_000.0)


def _class_rates(num_classes: int) -> _Rates:
    # The noise in the weights grows with the classes, so that a higher bound pays later.
    rate, most = (0.00056, 1.5) if num_classes <= 2 else (0.0007, 1.9)
    return _Rates(rate=rate, most=most, bound=0.5, strength=200.0 * num_classes, curves_from=math.inf)


def _check_many(declared: str, number: int, units: str) -> None:
    if number < _FEWEST_RECORDS:
        raise RecipeError(
            f"The declared {declared} is {number}. Below {_FEWEST_RECORDS} {units} noise that hides one of them hides "
            f"all of them: no useful private model can be trained. Check --{'size' if units == 'records' else units}."
        )


@dataclass(frozen=True, kw_only=True)
class Persons:
    """The persons whom records are about, each with many of them.

    Attributes:
        column: The column that names the person of a record.
        num_persons: Declared number of persons; a public number, which may be rounded.
        max_records: The most records of a person: in a step, or in the whole run if records are drawn.
        draws_records: Whether records are drawn, of which each person keeps a few, instead of persons.
    """

    column: str
    num_persons: int
    max_records: int
    draws_records: bool = False

    def __post_init__(self) -> None:
        checks.count("max_records", self.max_records)
        _check_many("number of persons", checks.count("num_persons", self.num_persons), "persons")

    @property
    def at_once(self) -> int:
        """The most records of a person that one gradient is of, which a physical batch must hold."""
        return 1 if self.draws_records else self.max_records

    def sampling(self, num_records: int, batch_size: int, poisson: dict[str, Any]) -> dict[str, Any]:
        """Return the sampler that uses about this many records in a step."""
        if self.draws_records:
            pool = max(1, min(num_records, self.num_persons * self.max_records))
            sizes = {"dataset_size": pool, "batch_size": min(batch_size, pool)}
            return {"kind": "bounded_persons", "max_records": self.max_records, "sampling": {**poisson, **sizes}}
        each = min(self.max_records, max(1.0, num_records / self.num_persons))
        drawn = min(self.num_persons, max(1, math.ceil(batch_size / each)))
        sizes = {"dataset_size": self.num_persons, "batch_size": drawn}
        return {"kind": "sampled_persons", "max_records": self.max_records, "sampling": {**poisson, **sizes}}

    def all_of_them(self, num_records: int, steps: int) -> dict[str, Any]:
        """Return the sampler that uses everybody in each of some steps."""
        each = {"kind": "full_batch", "steps": steps}
        if self.draws_records:
            kept = float(max(1, min(num_records, self.num_persons * self.max_records)))
            inner = {**each, "expected_batch_size": kept}
            return {"kind": "bounded_persons", "max_records": self.max_records, "sampling": inner}
        inner = {**each, "expected_batch_size": float(self.num_persons)}
        return {"kind": "sampled_persons", "max_records": self.max_records, "sampling": inner}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The guarantee that the user asks for.

    Attributes:
        epsilon: Target epsilon.
        train_size: Declared number of records; a public number, which may be rounded.
        delta: Target delta; None for the default of the declared size.
        persons: The persons to protect; None to protect records, or persons with one record each.
        one_record_per_person: Declares that nobody has two records; persons are then protected.
    """

    epsilon: float
    train_size: int
    delta: float | None = None
    persons: Persons | None = None
    one_record_per_person: bool = False

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        if self.persons is not None and self.one_record_per_person:
            raise RecipeError("A person has one record or several: declare persons or one_record_per_person, not both.")
        _check_many("size", checks.count("train_size", self.train_size), "records")

    @property
    def num_units(self) -> int:
        """Declared number of the units that are protected: records or persons."""
        return self.train_size if self.persons is None else self.persons.num_persons

    @property
    def ownership(self) -> dict[str, Any]:
        """The keys of the recipe's table of data that say whose the records are."""
        if self.persons is not None:
            return {"person": self.persons.column, "num_persons": self.persons.num_persons}
        return {"one_record_per_person": True} if self.one_record_per_person else {}

    def full_batches(self, *, steps: int, norms: list[float]) -> dict[str, Any]:
        """Return the recipe's [privacy] table of steps that use every record, with one bound for each layer."""
        sampling: dict[str, Any] = {"kind": "full_batch", "steps": steps, "expected_batch_size": float(self.train_size)}
        if self.persons is not None:
            sampling = self.persons.all_of_them(self.train_size, steps)
        grouping = {"kind": "per_layer"}
        return {**self._terms(sampling, {"kind": "threshold", "norm": norms}), "grouping": grouping}

    def settings(self, *, batch_size: int, epochs: int, norm: float) -> dict[str, Any]:
        """Return the recipe's [privacy] table; the batch size is a number of records."""
        sampling: dict[str, Any] = {"kind": "poisson", "epochs": epochs}
        if self.persons is None:
            sampling |= {"dataset_size": self.train_size, "batch_size": batch_size}
        else:
            sampling = self.persons.sampling(self.train_size, batch_size, sampling)
        return self._terms(sampling, {"kind": "threshold", "norm": norm})

    def _terms(self, sampling: dict[str, Any], clipping: dict[str, Any]) -> dict[str, Any]:
        return {
            "epsilon": float(self.epsilon),
            "delta": default_delta(self.num_units) if self.delta is None else self.delta,
            "adjacency": "add_or_remove",
            "unit": "person" if self.ownership else "record",
            "sampling": sampling,
            "clipping": clipping,
            "noise": {"kind": "gaussian"},
        }


def default_delta(train_size: int) -> float:
    """Return the largest power of ten that is at most a tenth of one over the declared size, and at most 1e-5.

    Examples:
        >>> default_delta(2_000), default_delta(1_000_000)
        (1e-05, 1e-07)
    """
    # From the decimal digits: a logarithm may be rounded to the wrong side of a power of ten.
    digits = len(str(checks.count("train_size", train_size) - 1)) if train_size > 1 else 0
    return min(_LARGEST_DELTA, float(f"1e-{digits + 1}"))


def table_recipe(
    promise: Promise,
    schema: TableSchema,
    *,
    name: str,
    train: str | Path,
    test: str | Path | None,
    delimiter: str,
    decimal: str = ".",
) -> dict[str, Any]:
    """Return a recipe for a user's own table as plain values.

    Regression on columns that are standardised by privately learned means and spreads: a hundred steps, each on every
    record; one bound for the statistics, which clips nobody, and one for the weights. The learning rate follows the
    declared number of units, the classes and epsilon alone. ``results/tables`` says on which tables the constants were
    chosen, and shows those on which they are judged.
    """
    table: dict[str, Any] = {
        "train": str(train),
        "train_size": promise.train_size,
        "delimiter": delimiter,
        "decimal": decimal,
        **_targets(schema),
        "columns": [_plain(column) for column in schema.columns],
        **promise.ownership,
    }
    if schema.released is not None:
        table["released"] = schema.released.model_dump()
    classes = [len(target.categories or ()) for target in schema.targets]
    rates = _class_rates(max(classes)) if all(classes) else _NUMBER_RATES
    strength = promise.num_units * promise.epsilon
    rate = rates.rate_for(strength)
    training = {
        "optimizer": {"kind": "sgd", "learning_rate": rate, "momentum": 0.9},
        # Statistics are sums: their rate sets the scale on which the model knows the noise in them.
        "rate_factors": {"statistics": float(f"{rates.statistics_rate_for(strength) / rate:.3g}")},
        "averaging": {"decay": 0.97},
        "physical_batch_size": 4_096,
    }
    return {
        **_named(name, _table_model(classes, strength, rates), "table", table, test),
        "privacy": promise.full_batches(steps=_STEPS, norms=[STATISTICS_NORM, rates.bound_for(strength)]),
        "training": training,
    }


def _table_model(classes: list[int], strength: float, rates: _Rates) -> str:
    if all(classes) and max(classes) > 2:
        return "table_classes"
    return "table_curved" if strength >= rates.curves_from else "table_linear"


def image_recipe(
    promise: Promise,
    *,
    name: str,
    train: Path,
    test: Path | None,
    classes: tuple[str, ...],
    height: int,
    width: int,
    channels: int,
) -> dict[str, Any]:
    """Return a recipe for a folder of images as plain values.

    Fixed edge features under one trained layer, because noise grows with the trained parameters; a fifth of the images
    per step; sixty epochs; per-image gradients clipped to norm 0.1: the settings of the packaged demo, whose learning
    rate of 4 is for its 10,000 images and falls with their number. On 600 and 2,000 images of Fashion-MNIST and on
    2,000 of two classes of CIFAR-10, epsilon 3, one run each reached a test accuracy of 0.736, 0.790 and 0.874; at a
    rate of 4 it was 0.633, 0.761 and 0.819, and cross entropy two to ten times as large. The rates were compared on
    this test data, so these figures are slightly optimistic.
    """
    images: dict[str, Any] = {
        "train": str(train),
        "train_size": promise.train_size,
        "classes": list(classes),
        "height": height,
        "width": width,
        "channels": channels,
        **promise.ownership,
    }
    batch_size = min(2_048, max(1, math.ceil(promise.train_size / 5)))
    # The noise in the mean of a step falls with the batch, and the batch grows with the number of images.
    learning_rate = round(min(4.0, max(0.1, promise.train_size / 2_500)), 3)
    return {
        **_named(name, "oriented_edges", "images", images, test),
        "privacy": promise.settings(batch_size=batch_size, epochs=60, norm=0.1),
        "training": _training(learning_rate, physical_batch_size=512),
    }


def text_recipe(
    promise: Promise,
    *,
    name: str,
    train: str | Path,
    test: str | Path | None,
    columns: tuple[str, str],
    classes: tuple[str, ...],
    length: int,
    delimiter: str,
    encoder: str | Path,
    sha256: str,
) -> dict[str, Any]:
    """Return a recipe for a user's own texts as plain values: the column of texts, and that of classes.

    Adapters of rank 8 and a new head on the user's encoder, a tenth of the texts per step, ten epochs, gradients
    clipped to norm 1, AdamW with a rate that falls to zero. These are starting values, which no study has compared.
    With persons, as many are drawn as have about a tenth of the texts.
    """
    texts = {
        "train": str(train),
        "train_size": promise.train_size,
        "text": columns[0],
        "target": columns[1],
        "classes": list(classes),
        "length": length,
        "delimiter": delimiter,
        **promise.ownership,
    }
    return {
        **_named(name, OWN_ENCODER, "texts", texts, test),
        "encoder": {"folder": str(encoder), "sha256": sha256},
        "privacy": promise.settings(batch_size=max(1, promise.train_size // 10), epochs=10, norm=1.0),
        "training": {
            "optimizer": {"kind": "adamw", "learning_rate": 0.001, "weight_decay": 0.0},
            "schedule": {"kind": "linear"},
            "physical_batch_size": max(32, 1 if promise.persons is None else promise.persons.at_once),
        },
    }


def with_network(recipe: dict[str, Any], promise: Promise, network: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe for a user's own data with a network of the user's own in place of the default one.

    A fifth of the records per step, thirty epochs, gradients clipped to norm 1. The learning rate times the bound, how
    far one record can move the weights, is that of images. These are starting values, which no study has compared.
    """
    batch_size = min(2_048, max(1, math.ceil(promise.train_size / 5)))
    learning_rate = round(min(0.4, max(0.01, promise.train_size / 25_000)), 4)
    return {
        **recipe,
        "model": OWN_NETWORK,
        "network": network,
        "privacy": promise.settings(batch_size=batch_size, epochs=30, norm=1.0),
        "training": _training(learning_rate, physical_batch_size=512),
    }


def _named(name: str, model: str, kind: str, data: dict[str, Any], test: str | Path | None) -> dict[str, Any]:
    tested = {} if test is None else {"test": str(test)}
    return {"dataset": name, "model": model, kind: {**data, **tested}}


def _training(learning_rate: float, *, physical_batch_size: int) -> dict[str, Any]:
    optimizer = {"kind": "sgd", "learning_rate": learning_rate, "momentum": 0.9}
    return {"optimizer": optimizer, "physical_batch_size": physical_batch_size}


def _targets(schema: TableSchema) -> dict[str, Any]:
    found = [_plain(target) for target in schema.targets]
    if len(found) > 1:
        return {"targets": found}
    return {"target" if schema.targets[0].categories is None else "label": found[0]}


def _plain(column: ColumnSettings) -> dict[str, Any]:
    return column.model_dump(exclude_none=True)
