"""The training table of a recipe: how a plan is run, as plain values. Loads no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
ShareOrAll = Annotated[float, Field(ge=0, le=1)]
Inside = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """One table of a recipe: immutable, no unknown keys, and no value taken for another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SgdSettings(Table):
    """Stochastic gradient descent; with momentum, the heavy ball."""

    kind: Literal["sgd"]
    learning_rate: Positive
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0


class RmspropSettings(Table):
    """RMSprop."""

    kind: Literal["rmsprop"]
    learning_rate: Positive
    smoothing: Share = 0.99
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0


class AdamSettings(Table):
    """Adam."""

    kind: Literal["adam"]
    learning_rate: Positive
    weight_decay: NotNegative = 0.0


class AdamWSettings(Table):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"]
    learning_rate: Positive
    weight_decay: NotNegative = 0.01


class DPAdamSettings(Table):
    """Adam with the noise variance taken out of its second moment."""

    kind: Literal["dp_adam"]
    learning_rate: Positive
    guard: Positive = 1e-8
    weight_decay: NotNegative = 0.0


class DPAdamWSettings(Table):
    """The same with decoupled weight decay."""

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
    """A moving average of the weights; it is then what is measured and released."""

    decay: Inside = 0.999


class AugmentationSettings(Table):
    """Several shifted and mirrored views of every image, averaged before clipping: still one record."""

    num_views: Count
    max_shift: Annotated[int, Field(ge=0)] = 4
    flip: bool = True


class TrainingSettings(Table):
    """How the plan is run. No value here changes the guarantee, except that a seed voids it.

    Attributes:
        optimizer: Turns noisy gradients into updates.
        rate_factors: What multiplies the learning rate of a part of the network, by the beginning of its parameters'
            names: a new head has further to travel than the pre-trained layers below it.
        schedule: The course of the learning rate; None keeps it.
        averaging: Whether to keep a moving average of the weights.
        augmentation: Whether to show the network several views of every image.
        physical_batch_size: How many examples go through the network at once; ``auto`` finds out before the first step.
        device: ``auto`` takes a GPU if there is one.
        checkpoint_every: Steps between checkpoints.
        evaluate_every: Steps between looks at the test data; only for public data. None looks once, at the end.
        seed: Makes the run repeatable and NOT PRIVATE.
    """

    optimizer: Annotated[OptimizerSettings, Field(discriminator="kind")]
    rate_factors: dict[str, Positive] | None = None
    schedule: Annotated[ScheduleSettings, Field(discriminator="kind")] | None = None
    averaging: AveragingSettings | None = None
    augmentation: AugmentationSettings | None = None
    physical_batch_size: Count | Literal["auto"] = 256
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$")] = "auto"
    checkpoint_every: Count = 100
    evaluate_every: Count | None = None
    seed: Annotated[int, Field(ge=0)] | None = None


# A union reports the branch it took as part of a path; in the file that level does not exist.
KINDS = (
    *("sgd", "rmsprop", "adam", "adamw", "dp_adam", "dp_adamw"),
    *("linear", "cosine", "steps"),
    *("constrained-int", "literal['auto']"),
)
