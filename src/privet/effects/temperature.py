"""Temperature scaling (Guo et al. 2017): one number that corrects a classifier's confidence but changes no prediction.

It is the baseline for any claim about calibration. The temperature depends on the labels of the fit, so these must be
public, or the fit must be private: ``fit_temperature_privately`` trains it under its own plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.predictions import Predictions
from privet.training.start import privatize

_LOG_RANGE = (-5.0, 5.0)


def fit_temperature(public: Predictions) -> float:
    """Return the temperature with the smallest negative log-likelihood, between e^-5 and e^5.

    Not private: the result depends on the labels without noise. Use public examples that are not in the test data.

    Edge cases: if all predictions are correct or all are wrong, the result is an end of the range.
    """
    rows = np.arange(public.num_examples)

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(public.log_probabilities * math.exp(-log_temperature), axis=1)
        return -float(scaled[rows, public.labels].mean())

    found = minimize_scalar(loss, bounds=_LOG_RANGE, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))


@dataclass(frozen=True, kw_only=True)
class PrivateTemperature:
    """A temperature, and the guarantee of its fit for the examples of the fit."""

    temperature: float
    guarantee: Guarantee


class _Temperature(nn.Module):
    """Logits divided by the exponential of the only parameter, so that the temperature is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        return logits * (-self.log_temperature).exp()


def fit_temperature_privately(
    held_out: Predictions, plan: Plan, *, learning_rate: float = 2.0, seed: int | None = None
) -> PrivateTemperature:
    """Train a temperature on private examples under their own plan.

    Args:
        held_out: Predictions for examples outside the training data of the classifier. For training examples the two
            guarantees compose, and the fit would be poor, because the classifier is over-confident on them.
        plan: The plan of the fit. A few dozen full-batch steps suffice for one parameter. Use a large clipping norm,
            about 10: confident mistakes, which require a higher temperature, have the longest gradients, and clipping
            them leaves the classifier over-confident.
        learning_rate: Learning rate of gradient descent on the logarithm of the temperature.
        seed: Makes the fit repeatable and NOT PRIVATE.

    Guarantee:
        The returned guarantee covers the temperature, for the held-out examples. It is clamped to
        [e^-5, e^5], which is post-processing. An empty batch releases noise alone.
    """
    scale = _Temperature()
    features = torch.from_numpy(held_out.log_probabilities).to(torch.float32)
    dataset = TensorDataset(features, torch.from_numpy(held_out.labels))
    rate = checks.positive("learning_rate", learning_rate)
    session = privatize(
        scale,
        SGD(scale.parameters(), lr=rate),
        dataset,
        plan,
        performance=Performance(physical_batch_size=len(dataset)),
        seed=seed,
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda logits, labels: functional.cross_entropy(scale(logits), labels, reduction="none"))
            step.update()
    found = min(max(float(scale.log_temperature.detach()), _LOG_RANGE[0]), _LOG_RANGE[1])
    return PrivateTemperature(temperature=math.exp(found), guarantee=session.guarantee())
