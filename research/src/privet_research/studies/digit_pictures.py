"""Digits that a private network gets right and wrong, and digits that padding makes smaller, as pictures.

Figures 2 and 3 of Xu and Chen (2026). That wrong digits are badly written is said there of a few pictures; here it has
a figure: how far a digit lies from the mean picture of its class, beside that of the digits that are right. MNIST is
public: pictures of other people's data must not be shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.effects.feature_estimate import padding_ratio
from privet.models.convolutional import lenet5
from privet.runs.building import on_device
from privet.training.predictions import predict
from privet_research.studies.effects_training import ArmTraining, train_arm
from privet_research.studies.markdown import markdown
from privet_research.studies.padding import mnist_padding, padded
from privet_research.studies.reconstruction import encoded

Row = dict[str, Any]
RIGHT, WRONG = "right", "wrong"
_NUM_PICTURES = 8
SHAPE = (1, 28, 28)


def run_picture_study(
    *, seeds: Sequence[int], device: torch.device, epochs: int = 20, num_train: int | None = None
) -> Iterator[Row]:
    """Train LeNet privately and yield digits that are right and wrong; then yield padded digits."""
    split = load("mnist")
    size = num_train or split.info.train_size
    train = ArrayDataset(features=split.train.features[:size], labels=split.train.labels[:size])
    means = torch.stack([train.features[train.labels == label].mean(0) for label in range(10)])
    for seed in seeds:
        training = ArmTraining(epochs=epochs, learning_rate=0.5)
        model, spent = train_arm(
            lenet5, on_device(train, device), training, dataset_size=size, seed=seed, device=device
        )
        test = split.test
        found = predict(model, test.features.to(device), test.labels.to(device))
        is_right = torch.from_numpy(found.is_right)
        distances = (test.features - means[test.labels]).flatten(1).norm(dim=1)
        for name, own in ((RIGHT, is_right), (WRONG, ~is_right)):
            yield {
                "arm": name,
                "part": "digits",
                "seed": seed,
                "epsilon": None if spent is None else spent.epsilon,
                "distance": float(distances[own].mean()) if bool(own.any()) else None,
                "num_digits": int(own.sum()),
                "accuracy": float(is_right.double().mean()),
                "pictures": encoded(_first(test.features[own])),
            }
        yield from _padded_rows(test.features, seed)


def _first(images: Tensor) -> Tensor:
    return images[:_NUM_PICTURES]


def _padded_rows(images: Tensor, seed: int) -> Iterator[Row]:
    some = images[:1000]
    for padding in mnist_padding().paddings:
        small = padded(some, padding)
        ratio = padding_ratio(images.shape[2], padding)
        yield {
            "arm": f"{100 * ratio:.0f} % padding",
            "part": "padding",
            "seed": seed,
            "padding": padding,
            "padding_ratio": ratio,
            # The share of ink that is left is the share of the picture that the object still covers.
            "ink_left": float(small.sum() / some.sum()),
            "pictures": encoded(_first(small)),
        }


def picture_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return distances of right and wrong digits, and ink by padding, as Markdown."""
    parts = []
    digits = [row for row in rows if row["part"] == "digits"]
    if digits:
        lines = [["digits", "seed", "number", "distance from the class's mean picture"]]
        for row in digits:
            shown = "" if row["distance"] is None else f"{row['distance']:.2f}"
            lines.append([row["arm"], str(row["seed"]), str(row["num_digits"]), shown])
        parts.append(markdown(lines))
    smaller = [row for row in rows if row["part"] == "padding" and row["seed"] == rows[0]["seed"]]
    if smaller:
        lines = [["padding", "ink left", "(1 - ratio) squared"]]
        for row in smaller:
            lines.append([row["arm"], f"{row['ink_left']:.3f}", f"{(1 - row['padding_ratio']) ** 2:.3f}"])
        parts.append(markdown(lines))
    return "\n\n".join(parts) + "\n"
