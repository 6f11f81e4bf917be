"""The predictions of a classifier for labelled examples, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch import Tensor, nn

from privet import checks
from privet.errors import DataError

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """The predictions of a classifier for labelled examples.

    Attributes:
        log_probabilities: Natural logarithms of the class probabilities, ``[examples, classes]``.
        labels: The true classes.
    """

    log_probabilities: Array
    labels: NDArray[np.int64]

    @classmethod
    def from_logits(cls, logits: Any, labels: Any) -> Predictions:
        """Read logits ``[examples, classes]`` and labels from arrays or CPU tensors.

        Edge cases: infinite or NaN logits, labels that are no class, and an empty set are refused.
        """
        values, classes = np.asarray(logits, dtype=np.float64), np.asarray(labels)
        if values.ndim != 2 or values.shape[1] < 2 or classes.shape != values.shape[:1] or not len(classes):
            raise DataError(
                "logits must be [examples, classes] with two classes or more, and labels one class number per example; "
                f"got the shapes {values.shape} and {classes.shape}."
            )
        if not np.issubdtype(classes.dtype, np.integer) or classes.min() < 0 or classes.max() >= values.shape[1]:
            raise DataError(f"labels must be class numbers from 0 to {values.shape[1] - 1}.")
        if not np.isfinite(values).all():
            raise DataError("logits must be finite. A model that gives NaN or infinity has no confidence to measure.")
        return cls(log_probabilities=np.asarray(log_softmax(values, axis=1)), labels=classes.astype(np.int64))

    @property
    def num_examples(self) -> int:
        """How many predictions there are."""
        return len(self.labels)

    @property
    def confidences(self) -> Array:
        """The largest probability of each prediction."""
        return np.asarray(np.exp(self.log_probabilities.max(1)))

    @property
    def is_right(self) -> NDArray[np.bool_]:
        """Whether the most probable class is the true one; the first of equals counts."""
        return np.asarray(self.log_probabilities.argmax(1) == self.labels)

    @property
    def losses(self) -> Array:
        """Negative log-likelihood of each example."""
        return -self.log_probabilities[np.arange(self.num_examples), self.labels]

    @property
    def squared_errors(self) -> Array:
        """Brier score of each example: squared distance of the probabilities from the truth, from 0 to 2."""
        truth = np.eye(self.log_probabilities.shape[1])[self.labels]
        return np.asarray(((np.exp(self.log_probabilities) - truth) ** 2).sum(1))

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> Predictions:
        """Return some of the predictions, by position or by a mask."""
        return Predictions(log_probabilities=self.log_probabilities[chosen], labels=self.labels[chosen])

    def at_temperature(self, temperature: float) -> Predictions:
        """Return the predictions with logits divided by a temperature; accuracy stays, confidence moves."""
        heated = self.log_probabilities / checks.positive("temperature", temperature)
        return Predictions(log_probabilities=np.asarray(log_softmax(heated, axis=1)), labels=self.labels)

    @property
    def margins(self) -> Array:
        """Log-odds of the true class against all others: large where the model is sure and right."""
        rows = np.arange(self.num_examples)
        own = self.log_probabilities[rows, self.labels]
        others = self.log_probabilities.copy()
        others[rows, self.labels] = -np.inf
        return np.asarray(own - logsumexp(others, axis=1))


def predict(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch_size: int = 1000) -> Predictions:
    """Run a classifier over examples in evaluation mode, on the device of its parameters.

    Not private: the result is an exact function of the examples.
    """
    outputs = outputs_of(model, inputs, batch_size=batch_size)
    return Predictions.from_logits(outputs.numpy(), labels.cpu().numpy())


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Tensor, *, batch_size: int = 1000) -> Tensor:
    """Return the outputs of a model for examples in evaluation mode, as a tensor of the processor.

    Not private: the result is an exact function of the examples. Outputs that are not finite are refused.
    """
    size = checks.count("batch_size", batch_size)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        found = torch.cat([model(part.to(device)).cpu().double() for part in torch.split(inputs, size)])
    finally:
        model.train(was_training)
    if not bool(found.isfinite().all()):
        raise DataError("The model gives NaN or infinity for some of these records. Nothing can be said about them.")
    return found
