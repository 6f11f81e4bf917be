"""A convex ReLU network with the interface of scikit-learn; only the last model is released."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from privet.convex.descent import NoisyCGD
from privet.errors import DataError, LoopError
from privet.models.convex_losses import ConvexLoss, SoftmaxCrossEntropy
from privet.models.convex_relu import ConvexRelu, FeatureBound, UnitFeatures
from privet.plan import Plan
from privet.training.fitted import Fitted
from privet.training.units import declared_rows
from privet.vocabulary import Adjacency, Unit

Array = NDArray[Any]
_ROWS_AT_ONCE = 4096


@dataclass
class ConvexReluClassifier(Fitted):
    """A two-layer ReLU network with fixed random gates, trained by noisy cyclic descent; releases the last model only.

    Args:
        epsilon: Target; the guarantee never exceeds it.
        delta: Delta of the guarantee.
        dataset_size: The public number of records; batches are fixed by position, so the data must have this size.
        num_classes: Number of classes.
        adjacency: ``Adjacency.REPLACE_ONE`` or ``Adjacency.ZERO_OUT``; adding a record would change the other batches.
        unit: The unit of privacy that one record is.
        epochs: Number of passes over the records.
        batch_size: Number of records per step.
        learning_rate: Step size; at most 4 for softmax cross entropy on features of norm one.
        ridge: Quadratic regularisation, which reduces the influence of early steps.
        num_gates: Number of random gates.
        loss: A convex loss with proven constants.
        features: The bound on features.
        folder: Folder of the ledger and the checkpoints, which must stay secret; None for a run without files.
        seed: Makes the run repeatable and NOT PRIVATE.

    Example:
        >>> import torch, privet as pv
        >>> inputs = torch.randn(64, 2)
        >>> labels = (inputs[:, 0] > 0).long()
        >>> classifier = pv.ConvexReluClassifier(
        ...     epsilon=8.0, delta=1e-3, dataset_size=64, num_classes=2, epochs=5, batch_size=16,
        ...     adjacency=pv.Adjacency.REPLACE_ONE, unit=pv.Unit.RECORD)
        >>> classifier.fit(inputs, labels).guarantee_.epsilon <= 8.0
        True
    """

    _: KW_ONLY
    epsilon: float
    delta: float
    dataset_size: int
    num_classes: int
    adjacency: Adjacency
    unit: Unit
    epochs: int
    batch_size: int
    learning_rate: float = 0.5
    ridge: float = 1e-4
    num_gates: int = 100
    loss: ConvexLoss = field(default_factory=SoftmaxCrossEntropy)
    features: FeatureBound = field(default_factory=UnitFeatures)
    folder: str | Path | None = None
    seed: int | None = None
    _model: ConvexRelu | None = field(default=None, init=False, repr=False)

    def plan(self) -> Plan:
        """Return the calibrated plan, whose guarantee is known before ``fit`` reads data."""
        # the plan depends on the loss and the feature bound only, not on the shape of the inputs
        return self._plan_for(self._build((1,)))

    def _build(self, input_shape: tuple[int, ...]) -> ConvexRelu:
        return ConvexRelu(
            input_shape, self.num_classes, num_gates=self.num_gates, loss=self.loss, features=self.features
        )

    @property
    def _descent(self) -> NoisyCGD:
        return NoisyCGD(
            learning_rate=self.learning_rate, ridge=self.ridge, batch_size=self.batch_size, epochs=self.epochs
        )

    def _plan_for(self, model: ConvexRelu) -> Plan:
        return self._descent.plan(
            model, dataset_size=self.dataset_size, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency, unit=self.unit,
        )  # fmt: skip

    @property
    def model_(self) -> ConvexRelu:
        """The trained network."""
        if self._model is None or self._guarantee is None:
            raise self._not_fitted()
        return self._model

    def fit(self, inputs: Tensor | Array, labels: Tensor | Array, *, one_record_per_person: bool = False) -> Self:
        """Train on arrays of inputs and class numbers, of exactly ``dataset_size`` rows.

        ``one_record_per_person`` declares that each row contains all data of one person, for ``Unit.PERSON``.
        """
        if self._guarantee is not None:
            raise LoopError(
                "This classifier has been trained already, and a second training would cost more privacy than "
                "guarantee_ states. Create a new classifier, and compose both guarantees."
            )
        features, wanted = _real(inputs), self._class_numbers(labels)
        if len(features) != self.dataset_size or len(wanted) != self.dataset_size:
            raise DataError(
                f"dataset_size is {self.dataset_size}, but there are {len(features)} inputs and {len(wanted)} labels. "
                "With fixed batches the number of records is public: declare the true one."
            )
        model = self._build(tuple(features.shape[1:]))
        dataset = declared_rows(TensorDataset(features, wanted), one_per_person=one_record_per_person)
        self._guarantee = self._descent.fit(model, dataset, self._plan_for(model), folder=self.folder, seed=self.seed)
        self._model = model
        return self

    def _class_numbers(self, labels: Tensor | Array) -> Tensor:
        try:
            wanted = torch.as_tensor(labels).to(torch.long)
        except (TypeError, ValueError, RuntimeError):
            wanted = torch.empty(0, 0)
        if wanted.dim() != 1 or not bool(((wanted >= 0) & (wanted < self.num_classes)).all()):
            raise DataError(
                f"labels must be one class number from 0 to {self.num_classes - 1} per record. Number the classes by a "
                "public list of names; the classes that occur in the data are private."
            )
        return wanted

    @torch.no_grad()
    def predict_proba(self, inputs: Tensor | Array) -> Array:
        """Return the softmax of the outputs for each input."""
        model, rows = self.model_, torch.split(_real(inputs), _ROWS_AT_ONCE)
        return torch.cat([model(part).softmax(1) for part in rows]).numpy()

    @torch.no_grad()
    def predict(self, inputs: Tensor | Array) -> Array:
        """Return the most probable class of each input."""
        model, rows = self.model_, torch.split(_real(inputs), _ROWS_AT_ONCE)
        return torch.cat([model(part).argmax(1) for part in rows]).numpy()

    def score(self, inputs: Tensor | Array, labels: Tensor | Array) -> float:
        """Return the accuracy."""
        return float((self.predict(inputs) == np.asarray(labels)).mean())


def _real(inputs: Tensor | Array) -> Tensor:
    return torch.as_tensor(inputs).to(torch.get_default_dtype())
