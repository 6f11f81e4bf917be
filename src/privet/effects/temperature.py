"""Temperature scaling (Guo et al. 2017): one number that corrects a classifier's confidence and no prediction.

It is the control that any claim about calibration must beat. The temperature is a function of the labels it is fitted
on, so these must be public, or the fit must be paid for: ``fit_temperature_privately`` trains it under its own plan.
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
    """Return the temperature with the least negative log-likelihood, between e^-5 and e^5.

    Not private: the result depends on the labels without noise. Only public examples may be used, and none that the
    corrected classifier is measured on.

    Edge cases: predictions that are all right, or all wrong, have their optimum at an end of the range.
    """
    rows = np.arange(public.num_examples)

    def loss(log_temperature: float) -> float:
        heated = log_softmax(public.log_probabilities * math.exp(-log_temperature), axis=1)
        return -float(heated[rows, public.labels].mean())

    found = minimize_scalar(loss, bounds=_LOG_RANGE, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))


@dataclass(frozen=True, kw_only=True)
class PrivateTemperature:
    """A temperature, and what its fit revealed about the examples it was fitted on."""

    temperature: float
    guarantee: Guarantee


class _Temperature(nn.Module):
    """Logits divided by the exponential of the one parameter, which keeps the temperature positive."""

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
        held_out: Predictions for examples that did not train the classifier. On examples that did, the two guarantees
            add up instead of holding side by side, and a temperature would hardly be found: the classifier knows them.
        plan: What the fit costs. One parameter needs little: a few dozen full-batch steps will do. The clipping norm
            should be large, about 10: the confident mistakes that call for a higher temperature have the longest
            gradients, and cutting these short leaves the classifier over-confident.
        learning_rate: Of plain gradient descent on the logarithm of the temperature.
        seed: Makes the fit repeatable and NOT PRIVATE.

    Guarantee:
        The temperature is covered by the returned guarantee, which is about the held-out examples. It is clamped to
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
