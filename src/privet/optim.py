"""Noise-aware optimizers, learning-rate schedules and weight averaging."""

from __future__ import annotations

from privet.training.averaging import ExponentialAverage
from privet.training.fitting import sgd
from privet.training.optimizers import DPAdam, DPAdamW
from privet.training.schedules import CosineDecay, LearningRate, LinearDecay, StepDecay

__all__ = [
    "CosineDecay",
    "DPAdam",
    "DPAdamW",
    "ExponentialAverage",
    "LearningRate",
    "LinearDecay",
    "StepDecay",
    "sgd",
]
