"""Estimators: private training in the shape of scikit-learn, with nothing left to wire up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.errors import ArgumentError, DataError
from privet.plan import Plan
from privet.training.batching import MapDataset
from privet.training.estimator import PrivateEstimator
from privet.training.estimator_data import (
    Array,
    ClassList,
    DeclaredClasses,
    Inputs,
    Targets,
    class_numbers,
    is_dataset,
    labels_of,
    probe,
    rows_of,
)


def _class_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def _squared_losses(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs.flatten(1) - wanted.reshape(len(wanted), -1)).square().mean(1)


@dataclass
class PrivateClassifier(PrivateEstimator):
    """A classifier trained with differential privacy; its model maps a batch to one logit per class.

    Args:
        classes: The public list of classes, in the order of the model's outputs; they may be words. By default classes
            are numbers from 0 on. ``pv.estimators.ClassesOfLabels()`` reads the list off the labels and states that it
            is public.

    The other arguments are those of every estimator.

    Example:
        >>> import torch, privet as pv
        >>> inputs = torch.randn(64, 2)
        >>> labels = (inputs[:, 0] > 0).long()
        >>> classifier = pv.PrivateClassifier(
        ...     torch.nn.Linear(2, 2), epsilon=8.0, delta=1e-3, dataset_size=64, epochs=2, batch_size=16,
        ...     adjacency=pv.Adjacency.ADD_REMOVE, unit=pv.Unit.RECORD)
        >>> classifier.fit(inputs, labels).guarantee_.epsilon <= 8.0
        True
    """

    classes: Sequence[Any] | ClassList | None = None

    def fit(self, inputs: Inputs, y: Targets | None = None) -> Self:
        """Train on inputs and their classes ``y``, or on a data set of pairs with class numbers from 0 on."""
        return self._fit(inputs, y, plan=None)

    def _fit(self, inputs: Inputs, labels: Targets | None, *, plan: Plan | None) -> Self:
        self._check_may_fit()
        if is_dataset(inputs) and not (isinstance(inputs, list) and labels is not None):
            self._fit_pairs(_pairs(inputs, labels), plan)
            return self
        rows = rows_of(inputs)
        wanted = labels_of(labels, len(rows))
        source = None if self.classes is None else self._class_list()
        names = None if source is None else source.names(_checked_classes(wanted))
        model = self._made_model(rows.num_features, None if names is None else len(names))
        dtype, num_outputs = probe(model, rows)
        if names is None:
            numbers = _whole_numbers(wanted, num_outputs)
        else:
            numbers = class_numbers(wanted, names)
            if num_outputs is not None and num_outputs != len(names):
                raise DataError(f"The model has {num_outputs} outputs, and classes= lists {len(names)} classes.")
        assumptions = () if source is None else source.assumptions
        self._input_type = None
        self._train(model, rows.with_targets(numbers, dtype), _class_losses, plan=plan, assumptions=assumptions)
        self._input_type = dtype
        self._remember(rows)
        self.classes_ = np.arange(num_outputs or 0) if names is None else names
        return self

    def _class_list(self) -> ClassList:
        given = self.classes
        if isinstance(given, ClassList):
            return given
        if not isinstance(given, Iterable):
            raise ArgumentError(f"classes must list the classes, got {given!r}. Numbers from 0 on: classes=range(10).")
        return DeclaredClasses(given)

    def _fit_pairs(self, dataset: MapDataset, plan: Plan | None) -> None:
        if not isinstance(self.model, nn.Module):
            raise DataError("A function that makes the model needs rows. Pass inputs and labels, or give a network.")
        self._input_type = None
        self._train(self.model, dataset, _class_losses, plan=plan)
        self._remember(None)

    def predict_proba(self, inputs: Inputs) -> Array:
        """Return class probabilities, one row per input."""
        return self._outputs(inputs).softmax(1).numpy()

    def predict(self, inputs: Inputs) -> Array:
        """Return the most probable class of each input."""
        numbers = self._outputs(inputs).argmax(1).numpy()
        return numbers if self.classes is None else self.classes_[numbers]

    def score(self, inputs: Inputs, y: Targets | None = None) -> float:
        """Return the share of right predictions."""
        return float((self.predict(inputs) == _targets_of(inputs, y)).mean())

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags


@dataclass
class PrivateRegressor(PrivateEstimator):
    """A regressor trained with differential privacy under squared loss; its model gives one output per target.

    The arguments are those of every estimator.
    """

    def fit(self, inputs: Inputs, y: Targets | None = None) -> Self:
        """Train on inputs and real targets ``y``, or on a data set of such pairs."""
        return self._fit(inputs, y, plan=None)

    def _fit(self, inputs: Inputs, targets: Targets | None, *, plan: Plan | None) -> Self:
        self._check_may_fit()
        if is_dataset(inputs) and not (isinstance(inputs, list) and targets is not None):
            if not isinstance(self.model, nn.Module):
                raise DataError("A function that makes the model needs rows. Pass inputs and targets.")
            self._input_type = None
            self._train(self.model, _pairs(inputs, targets), _squared_losses, plan=plan)
            self._remember(None)
            return self
        rows = rows_of(inputs)
        wanted = labels_of(targets, len(rows))
        try:
            numbers = torch.as_tensor(wanted.astype(np.float64))
        except (TypeError, ValueError):
            raise DataError("The targets of a regressor are numbers, and got something else.") from None
        model = self._made_model(rows.num_features, 1 if numbers.dim() == 1 else numbers.shape[1])
        dtype, _ = probe(model, rows)
        self._input_type = None
        self._train(
            model, rows.with_targets(numbers.to(next(model.parameters()).dtype), dtype), _squared_losses, plan=plan
        )
        self._input_type = dtype
        self._remember(rows)
        return self

    def predict(self, inputs: Inputs) -> Array:
        """Return the predicted targets; a single target per input comes as a flat array."""
        outputs = self._outputs(inputs)
        return (outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs).numpy()

    def score(self, inputs: Inputs, y: Targets | None = None) -> float:
        """Return the coefficient of determination, R squared."""
        found, expected = self.predict(inputs), _targets_of(inputs, y)
        expected = expected.reshape(found.shape)
        residual, spread = ((found - expected) ** 2).sum(), ((expected - expected.mean(0)) ** 2).sum()
        return float(1.0 - residual / spread) if spread > 0 else 0.0

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.multi_output = True
        return tags


def _pairs(inputs: Inputs, targets: Targets | None) -> MapDataset:
    if targets is not None:
        raise DataError(
            f"fit() got targets beside a {type(inputs).__name__}. Pass inputs and targets as arrays, or one data set "
            "of pairs."
        )
    dataset: MapDataset = inputs
    return dataset


def _checked_classes(labels: Array) -> Array:
    if labels.ndim != 1:
        raise DataError("labels must be one class per record: a flat array, not a table (y should be a 1d array).")
    if labels.dtype.kind == "f" and not (labels == np.floor(labels)).all():
        raise DataError("Unknown label type: the labels are real numbers, and a classifier needs classes.")
    return labels


def _whole_numbers(labels: Array, num_outputs: int | None) -> Tensor:
    """Return labels that are class numbers, without a word about which ones occur."""
    is_right = labels.ndim == 1 and labels.dtype.kind in "biuf"
    if is_right and labels.dtype.kind == "f":
        is_right = bool((labels == np.floor(labels)).all())
    if is_right and num_outputs is not None:
        is_right = bool(((labels >= 0) & (labels < num_outputs)).all())
    if not is_right:
        of_model = "" if num_outputs is None else f" to {num_outputs - 1}, because the model has {num_outputs} outputs"
        raise DataError(
            f"labels must be one class number per record, from 0{of_model}. For other names give a public list of the "
            "classes: classes=['no', 'yes']; which ones occur is private."
        )
    return torch.as_tensor(labels).long()


def _targets_of(inputs: Inputs, targets: Targets | None) -> Array:
    if targets is not None:
        return targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    if not is_dataset(inputs):
        raise DataError("score() got inputs without targets. Pass both arrays, or one data set of pairs.")
    return np.asarray([inputs[index][1] for index in range(len(inputs))])
