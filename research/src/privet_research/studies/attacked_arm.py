"""One private arm, measured clean and under attack, as the studies of padding and of class sizes share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from privet.datasets.arrays import ArrayDataset
from privet.effects.robustness import LargestChange, ProjectedGradient, robustness_curve
from privet.training.predictions import predict
from privet_research.studies.effects_training import ArmTraining, train_arm

Row = dict[str, Any]
# In units of 1/255; the radius of the publication is lost in print.
RADII = (1, 2, 3, 4, 6, 8)


def attacked_row(
    build: Callable[[], nn.Module],
    train: ArrayDataset,
    test: ArrayDataset,
    training: ArmTraining,
    *,
    num_rates_tried: int,
    num_attacked: int,
    seed: int,
    device: torch.device,
) -> Row:
    """Train one network and return its figures on all test examples, and on the first few under attack.

    Radius and step of the attack are reconstructed: several radii, in ten steps of a quarter of it each; the largest
    is the row's accuracy under attack.
    """
    began = time.monotonic()
    model, found = train_arm(build, train, training, dataset_size=len(train), seed=seed, device=device)
    seconds = time.monotonic() - began
    predictions = predict(model, test.features, test.labels)
    attack = ProjectedGradient(norm=LargestChange(), num_steps=10, step_share=0.25)
    first = slice(0, num_attacked)
    attacked = robustness_curve(
        model, test.features[first], test.labels[first], attack, radii=[radius / 255 for radius in RADII], seed=seed
    )
    by_radius = {
        f"attacked_accuracy_{radius}": attacked.points[1 + place].accuracy.value for place, radius in enumerate(RADII)
    }
    return {
        "seed": seed,
        "accuracy": float(predictions.is_right.mean()),
        "loss": float(predictions.losses.mean()),
        "attacked_accuracy": attacked.points[-1].accuracy.value,
        **by_radius,
        "num_test": predictions.num_examples,
        "epsilon": None if found is None else found.epsilon,
        "delta": training.delta,
        "epochs": training.epochs,
        "learning_rate": training.learning_rate,
        "num_rates_tried": num_rates_tried,
        "seconds": seconds,
    }
