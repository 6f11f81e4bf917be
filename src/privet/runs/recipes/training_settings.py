"""The training table of a recipe, as plain values. Loads no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
ShareOrAll = Annotated[float, Field(ge=0, le=1)]
Inside = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """One table of a recipe: immutable, without unknown keys, and without conversion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PlainSums:
    """An optimizer whose weights are, for the comparison of noise, the plain sums of its updates."""

    momentum_of_updates: ClassVar[float] = 0.0
    kept_weight: ClassVar[float] = 1.0


class SgdSettings(Table):
    """Stochastic gradient descent; with momentum, the heavy ball."""

    kind: Literal["sgd"]
    learning_rate: Positive
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0

    @property
    def numbers_per_weight(self) -> int:
        """State of the optimizer for every weight."""
        return int(self.momentum > 0)

    @property
    def momentum_of_updates(self) -> float:
        """Share of an update in the next one."""
        return self.momentum

    @property
    def kept_weight(self) -> float:
        """Factor that weights keep in a step."""
        return max(0.0, 1 - self.learning_rate * self.weight_decay)


class RmspropSettings(PlainSums, Table):
    """RMSprop."""

    kind: Literal["rmsprop"]
    learning_rate: Positive
    smoothing: Share = 0.99
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0

    @property
    def numbers_per_weight(self) -> int:
        """State of the optimizer for every weight: the squares, and the momentum."""
        return 1 + int(self.momentum > 0)


class TwoMoments(PlainSums, Table):
    """Settings of an optimizer of the Adam family."""

    @property
    def numbers_per_weight(self) -> int:
        """State of the optimizer for every weight: the first and the second moment."""
        return 2


class AdamSettings(TwoMoments):
    """Adam."""

    kind: Literal["adam"]
    learning_rate: Positive
    weight_decay: NotNegative = 0.0


class AdamWSettings(TwoMoments):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"]
    learning_rate: Positive
    weight_decay: NotNegative = 0.01


class DPAdamSettings(TwoMoments):
    """Adam with the noise variance subtracted from its second moment."""

    kind: Literal["dp_adam"]
    learning_rate: Positive
    guard: Positive = 1e-8
    weight_decay: NotNegative = 0.0


class DPAdamWSettings(TwoMoments):
    """DP-Adam with decoupled weight decay."""

    kind: Literal["dp_adamw"]
    learning_rate: Positive
    guard: Positive = 1e-8
    weight_decay: NotNegative = 0.01


OptimizerSettings = SgdSettings | RmspropSettings | AdamSettings | AdamWSettings | DPAdamSettings | DPAdamWSettings


class LinearSettings(Table):
    """A learning rate that rises during a warm-up and then falls in a straight line."""

    kind: Literal["linear"]
    warm_up: Share = 0.0
    final: ShareOrAll = 0.0


class CosineSettings(Table):
    """A learning rate that rises during a warm-up and then falls along a cosine."""

    kind: Literal["cosine"]
    warm_up: Share = 0.0
    final: ShareOrAll = 0.0


class StepsSettings(Table):
    """A learning rate that drops at given shares of the run."""

    kind: Literal["steps"]
    drops: list[Inside]
    factor_per_drop: Positive = 0.1


ScheduleSettings = LinearSettings | CosineSettings | StepsSettings


class AveragingSettings(Table):
    """A moving average of the weights, which is measured and released in their place."""

    decay: Inside = 0.999


class AugmentationSettings(Table):
    """Several shifted and mirrored views of every image, averaged before clipping: still one record."""

    num_views: Count
    max_shift: Annotated[int, Field(ge=0)] = 4
    flip: bool = True


class TrainingSettings(Table):
    """Settings of the training loop. None of them changes the guarantee, except that a seed voids it.

    Attributes:
        optimizer: The optimizer.
        rate_factors: Factors on the learning rate of parts of the network, by the beginning of their parameters'
            names: a new head needs a larger rate than the pre-trained layers below it.
        schedule: The learning-rate schedule; None is a constant rate.
        averaging: The moving average of the weights, if any.
        augmentation: The views of every image, if any.
        physical_batch_size: Examples in the network at once; ``auto`` determines it before the first step.
        workers: Processes that make the views of images ahead of the step, where the device is the processor; data that
            lie in memory as they are need none.
        device: ``auto`` is a GPU where one exists.
        checkpoint_every: Steps between checkpoints.
        evaluate_every: Steps between measures on test data, for public data only. None measures once, at the end.
        seed: Makes the run repeatable and NOT PRIVATE.
    """

    optimizer: Annotated[OptimizerSettings, Field(discriminator="kind")]
    rate_factors: dict[str, Positive] | None = None
    schedule: Annotated[ScheduleSettings, Field(discriminator="kind")] | None = None
    averaging: AveragingSettings | None = None
    augmentation: AugmentationSettings | None = None
    physical_batch_size: Count | Literal["auto"] = 256
    workers: Annotated[int, Field(ge=0)] = 0
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$")] = "auto"
    checkpoint_every: Count = 100
    evaluate_every: Count | None = None
    seed: Annotated[int, Field(ge=0)] | None = None


# In the path of an error, pydantic names the chosen member of a union; the file has no such level.
KINDS = (
    *("sgd", "rmsprop", "adam", "adamw", "dp_adam", "dp_adamw"),
    *("linear", "cosine", "steps"),
    *("constrained-int", "literal['auto']"),
)
