"""Public facts about data sets, known without reading them and without torch.

Plans need the declared size, networks the shape and the classes, reports the licence. None of them is computed from the
data: sizes, classes and normalisation constants computed from private records would be unaccounted releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privet import checks
from privet.datasets.tasks import Classes, PlainNumber, Task
from privet.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """A fixed, public map of stored values to features: ``(value - shift) / scale``, per channel or column.

    Attributes:
        name: name in recipes.
        shift: one number per channel, or one for all.
        scale: one positive number per channel, or one for all.
        bounds: features are clamped to this range; None for no bounds.
    """

    name: str
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.shift) != len(self.scale) or not self.shift:
            raise ArgumentError(
                f"Normalisation {self.name!r} needs one scale per shift, got {len(self.scale)} and {len(self.shift)}."
            )
        for value in self.shift:
            checks.number(f"shift of {self.name!r}", value)
        for value in self.scale:
            checks.positive(f"scale of {self.name!r}", value)

    def apply_(self, features: Tensor) -> Tensor:
        """Normalise in place, which saves a copy of the data set, and return the same tensor.

        Args:
            features: floating-point tensor ``[example, channel or column, ...]``.
        """
        if len(self.shift) not in (1, features.shape[1]):
            raise ArgumentError(
                f"Normalisation {self.name!r} has constants for {len(self.shift)} channels, "
                f"the features have {features.shape[1]}."
            )
        axes = (1, -1, *(1 for _ in features.shape[2:]))
        features.sub_(features.new_tensor(self.shift).reshape(axes)).div_(features.new_tensor(self.scale).reshape(axes))
        return features if self.bounds is None else features.clamp_(*self.bounds)


AS_STORED = Normalisation(name="as_stored", shift=(0.0,), scale=(1.0,))


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Public facts about a data set.

    Attributes:
        name: name for ``load``.
        num_classes: number of classes; None for a regression.
        input_shape: shape of one example.
        class_names: one name per class; empty for a regression.
        train_size: declared number of training examples. Plans use this constant, never the real number of records.
        test_size: declared number of test examples.
        licence: terms under which the data may be used.
        source: citation and source of the official files.
        public: whether the records are public, so that losses and counts computed from them may be shown.
        feature_names: one name per column of a table; empty for images.
        normalisations: the available normalisations; the first is the default.
        holds_tokens: whether examples are whole numbers that name words, and no measurements.
        declared_task: the task, where it is more than the classes or one plain number.
    """

    name: str
    num_classes: int | None = None
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    train_size: int
    test_size: int
    licence: str
    source: str
    public: bool
    feature_names: tuple[str, ...] = ()
    normalisations: tuple[Normalisation, ...] = (AS_STORED,)
    holds_tokens: bool = False
    declared_task: Task | None = None

    def __post_init__(self) -> None:
        checks.require(self, checks.natural, "train_size", "test_size")
        if len(self.class_names) != (self.num_classes or 0):
            raise ArgumentError(
                f"Data set {self.name!r} needs one name per class: {self.num_classes or 0} classes, "
                f"{len(self.class_names)} names."
            )
        if self.feature_names and len(self.feature_names) != math.prod(self.input_shape):
            raise ArgumentError(f"Data set {self.name!r} needs one feature name per column.")
        if not self.normalisations:
            raise ArgumentError(f"Data set {self.name!r} needs at least one normalisation.")

    @property
    def task(self) -> Task:
        """The task of a model of these data."""
        if self.declared_task is not None:
            return self.declared_task
        return Classes(class_names=self.class_names) if self.class_names else PlainNumber()

    def made_up(self, count: int) -> Tensor:
        """Return examples of zeros, which is a valid word too, of the right shape and type. Reads no data."""
        import torch

        return torch.zeros((count, *self.input_shape), dtype=torch.int64 if self.holds_tokens else torch.float32)

    def normalisation(self, name: str | None = None) -> Normalisation:
        """Return the normalisation of this name; the default for None."""
        if name is None:
            return self.normalisations[0]
        for normalisation in self.normalisations:
            if normalisation.name == name:
                return normalisation
        known = ", ".join(normalisation.name for normalisation in self.normalisations)
        raise ArgumentError(f"Data set {self.name!r} has no normalisation {name!r}. Known: {known}.")
