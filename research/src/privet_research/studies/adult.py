"""Adult income by epsilon: what privacy costs whom, by sex and by race.

Every arm, the one without privacy too, takes the learning rate that is best on held-out training records: one rate for
all would favour the arm that it suits. The choice is made once per arm and is not charged, as the data are public.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from privet.datasets import load
from privet.effects.fairness import decision_disparity, fairness_report
from privet.models.dense import mlp_64_64
from privet.runs.building import on_device
from privet.runs.evaluation.groups_and_robustness import group_attribute
from privet.training.predictions import predict
from privet_research.studies.effects_training import ArmTraining, train_arm, with_best_rate

Row = dict[str, Any]
EPSILONS = (None, 8.0, 3.0, 1.0)
COLUMNS = ("sex", "race")
LEARNING_RATES = (0.02, 0.06, 0.2)


def run_adult_study(*, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    """Train one network per epsilon and seed, and yield accuracies, gaps and intervals of every group."""
    split = load("adult")
    train, test = on_device(split.train, device), split.test
    attributes = [group_attribute(split.info, test.features, name) for name in COLUMNS]
    rates = LEARNING_RATES[-1:] if quick else LEARNING_RATES

    def build() -> nn.Module:
        return mlp_64_64(split.info.input_shape, 2)

    chosen: dict[float | None, ArmTraining] = {}
    for seed in seeds:
        for epsilon in EPSILONS:
            if epsilon not in chosen:
                constants = ArmTraining(epsilon=epsilon, clip_norm=1.0, batch_size=512, epochs=3 if quick else 20)
                chosen[epsilon] = with_best_rate(build, train, constants, rates, seed=seed, device=device)
            training = chosen[epsilon]
            model, found = train_arm(
                build,
                train,
                training,
                dataset_size=split.info.train_size,
                seed=seed,
                device=device,
            )
            predictions = predict(model, test.features, test.labels)
            names = split.info.class_names
            report = fairness_report(predictions, class_names=names, attributes=attributes)
            decisions = tuple(decision_disparity(predictions, one, class_names=names) for one in attributes)
            yield {
                "arm": "no privacy" if epsilon is None else f"epsilon {epsilon:g}",
                "dataset": "adult",
                "seed": seed,
                "accuracy": float(predictions.is_right.mean()),
                "loss": float(predictions.losses.mean()),
                "epsilon": None if found is None else found.epsilon,
                "delta": training.delta,
                "epochs": training.epochs,
                "learning_rate": training.learning_rate,
                "num_rates_tried": len(rates),
                "num_test": predictions.num_examples,
                "fairness": replace(report, decisions=decisions).to_dict(),
                **{f"accuracy_gap_{one.attribute}": one.accuracy_gap.value for one in report.attributes},
                **{f"loss_gap_{one.attribute}": one.loss_gap.value for one in report.attributes},
            }
