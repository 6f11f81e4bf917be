"""Public pre-training, private fine-tuning on turned images (Xu and Chen, 2026, 6.2), with the arm that was not run.

A network is trained without privacy on the training images. The test images are turned by an angle, 8,000 of them
fine-tune every layer privately, and the rest measure. The publication's angles and split are lost: 0, 30, 60 and 90
degrees and 8,000 to 2,000 are RECONSTRUCTED. It has no arm from scratch, so its claim that pre-training can be worse
than none was not tested on real data; here it is. Both arms of an angle try the same learning rates.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.effects.feature_to_noise import pretraining_harms
from privet.models.convolutional import dp_cnn, lenet5
from privet.runs.building import on_device
from privet.runs.pretraining import turned
from privet.training.predictions import predict
from privet_research.studies.effects_training import ArmTraining, train_arm, with_best_rate
from privet_research.studies.residual_networks import resnet18

Row = dict[str, Any]
_NUM_TUNED = 8_000


@dataclass(frozen=True, kw_only=True)
class RotationSettings:
    """One data set of the rotation study.

    Attributes:
        dataset: Name of the data set.
        build: Makes the network.
        published: The paper's accuracy in percent by angle, in the order in which it prints them.
        public: Training without privacy.
        private: Fine-tuning, and training from scratch, but for the learning rate.
        learning_rates: Rates that every private arm tries, on a fifth of its training images.
        num_public: Training images, the first ones; None for all.
    """

    dataset: str
    build: Callable[[], nn.Module]
    published: Mapping[int, float | None]
    public: ArmTraining = field(default_factory=lambda: ArmTraining(epsilon=None, epochs=10, learning_rate=0.5))
    private: ArmTraining = field(default_factory=lambda: ArmTraining(epochs=20))
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    num_public: int | None = None

    def shortened(self) -> RotationSettings:
        """Return a small version; its figures say nothing about the full one, so it names no published ones."""
        return replace(
            self,
            published=dict.fromkeys((0, 90)),
            public=replace(self.public, epochs=2),
            private=replace(self.private, epochs=3),
            learning_rates=self.learning_rates[1:2],
            num_public=10_000,
        )


def mnist_rotation() -> RotationSettings:
    """Return the settings on MNIST."""
    return RotationSettings(dataset="mnist", build=lenet5, published=MappingProxyType({0: 99, 30: 97, 60: 94, 90: 94}))


def cifar10_rotation() -> RotationSettings:
    """Return the settings on CIFAR-10 with the paper's plain network."""
    return RotationSettings(
        dataset="cifar10",
        build=dp_cnn,
        published=MappingProxyType({0: 70, 30: 59, 60: 51, 90: 49}),
        public=ArmTraining(epsilon=None, epochs=20, learning_rate=0.5),
    )


def resnet_rotation() -> RotationSettings:
    """Return the settings on CIFAR-10 with ResNet-18; group norms stand for batch norms, which mix examples."""
    return RotationSettings(
        dataset="cifar10",
        build=resnet18,
        published=MappingProxyType({0: 91, 30: 66, 60: 43, 90: 37}),
        public=ArmTraining(epsilon=None, epochs=30, learning_rate=0.5),
        private=ArmTraining(epochs=10),
    )


def run_rotation_study(settings: RotationSettings, *, seeds: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Pre-train once per seed, then yield the accuracy of fine-tuning and of training from scratch at every angle."""
    split = load(settings.dataset)
    public = on_device(_part(split.train, slice(0, settings.num_public)), device)
    for seed in seeds:
        ready, _ = train_arm(
            settings.build, public, settings.public, dataset_size=split.info.train_size, seed=seed, device=device
        )
        for angle, paper in settings.published.items():
            whole = ArrayDataset(features=turned(split.test.features, angle), labels=split.test.labels)
            tuned = min(_NUM_TUNED, len(whole) * 4 // 5)
            train, test = (on_device(_part(whole, own), device) for own in (slice(0, tuned), slice(tuned, None)))
            for start, build in (("pre-trained", _copier(ready)), ("from scratch", settings.build)):
                training = with_best_rate(
                    build, train, settings.private, settings.learning_rates, seed=seed, device=device
                )
                model, found = train_arm(build, train, training, dataset_size=tuned, seed=seed, device=device)
                predictions = predict(model, test.features, test.labels)
                yield {
                    "arm": f"{angle} degrees, {start}",
                    "dataset": settings.dataset,
                    "seed": seed,
                    "angle": angle,
                    "start": start,
                    "accuracy": float(predictions.is_right.mean()),
                    "loss": float(predictions.losses.mean()),
                    "paper_accuracy": paper if start == "pre-trained" else None,
                    "harm_predicted": pretraining_harms(math.radians(angle)),
                    "epsilon": None if found is None else found.epsilon,
                    "delta": settings.private.delta,
                    "epochs": settings.private.epochs,
                    "learning_rate": training.learning_rate,
                    "num_rates_tried": len(settings.learning_rates),
                    "num_test": predictions.num_examples,
                }


def _copier(model: nn.Module) -> Callable[[], nn.Module]:
    return lambda: copy.deepcopy(model)


def _part(dataset: ArrayDataset, own: slice) -> ArrayDataset:
    return ArrayDataset(features=dataset.features[own], labels=dataset.labels[own])
