"""The pre-training table of a recipe: training on public data before the private run. Loads no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privet.datasets.info import DatasetInfo
from privet.datasets.known import KNOWN_DATASETS
from privet.errors import RecipeError
from privet.mechanism.codec import suggestion
from privet.runs.recipes.training_settings import Count, Positive, Share, Table

# Data sets that share records: neither is public data for a private run on the other.
_SHARED_RECORDS = (frozenset({"fashion_mnist", "fashion_mnist_small"}),)


class PretrainingSettings(Table):
    """Training without privacy on public data; the private run starts from its weights.

    Attributes:
        dataset: A known public data set that shares no records with the run's data.
        epochs: Passes over its training records.
        batch_size: Records per step.
        learning_rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        rotation: Degrees by which its images are first rotated, counter-clockwise, to study a feature shift.
    """

    dataset: str
    epochs: Count = 5
    batch_size: Count = 256
    learning_rate: Positive = 0.05
    momentum: Share = 0.9
    rotation: Annotated[float, Field(ge=-180, le=180)] = 0.0

    def check(self, private: DatasetInfo) -> None:
        """Refuse data that are not public, share records with the private data, or do not fit the network.

        Guarantee: the initial weights of a private run are not a function of its own records.

        Raises:
            RecipeError: naming the key of the recipe.
        """
        public = public_info(self.dataset, private)
        if self.rotation and len(public.input_shape) != 3:
            raise RecipeError(f"pretraining.rotation rotates images; the records of {self.dataset!r} are not images.")


def public_info(name: str, private: DatasetInfo) -> DatasetInfo:
    """Return the facts about public data on which a network for the private data may be pre-trained.

    Raises:
        RecipeError: no such data set, it is not public, shares records with the private one, or has other shapes.
    """
    if name not in KNOWN_DATASETS:
        raise RecipeError(f"pretraining.dataset is {name!r}. {suggestion(name, list(KNOWN_DATASETS))}")
    info = KNOWN_DATASETS[name]
    if not info.public:
        raise RecipeError(f"pretraining.dataset {name!r} is not public. Pre-training is not charged: use public data.")
    if name == private.name or any({name, private.name} <= shared for shared in _SHARED_RECORDS):
        raise RecipeError(
            f"pretraining.dataset {name!r} holds records of the private data set {private.name!r}: training on them "
            "without noise would void the guarantee. Use other public data."
        )
    if (info.input_shape, info.num_classes) != (private.input_shape, private.num_classes):
        raise RecipeError(
            f"pretraining.dataset {name!r} has records of shape {info.input_shape} in {info.num_classes} classes, the "
            f"network is for {private.input_shape} in {private.num_classes}. Use data of the same shape and classes."
        )
    return info
