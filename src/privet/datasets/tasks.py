"""What a model predicts: classes, numbers or counts, alone or together.

A task is public: names, classes, bounds and weights are declared, never computed from records. It says how many outputs
a network needs, what the loss of one example is, how outputs are read in the units of the data, and which figures
measure them. ``DatasetInfo.task`` holds it, so training, prediction, evaluation and the folder of a run ask the task,
never the kind of data. Evaluation learns the task of a run from ``stored_recipe(files).info.task``; ``scores`` gives
one value per example, true or false for a share and a number for a mean, so that a private evaluation can bound and sum
them.

This module loads torch only inside the methods that compute, because plans are made without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Generator, Tensor

Words = NDArray[Any]


class Task(Protocol):
    """What a model predicts for one example."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the targets."""
        ...

    @property
    def num_outputs(self) -> int:
        """Outputs of the network for one example."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, if the task is to tell classes apart and nothing else; otherwise empty."""
        ...

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The declared ends of the only target, if it is a number that has them."""
        ...

    def served(self) -> list[dict[str, Any]]:
        """Return the targets as plain values, for a program that reads outputs without this library."""
        ...

    def encoded(self, values: Sequence[NDArray[Any]]) -> Tensor:
        """Return the targets of a data set from the columns that were read, one array per name."""
        ...

    def made_up(self, num_records: int, generator: Generator) -> Tensor:
        """Return random targets of the right type and shape. Reads no data."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per example."""
        ...

    def decisions(self, outputs: Tensor) -> Mapping[str, Words]:
        """Return the columns of a file of predictions: decisions, and the probabilities of classes."""
        ...

    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the measures of every example by name: booleans for a share, numbers for a mean."""
        ...


@dataclass(frozen=True, kw_only=True)
class Classes:
    """One of several classes; the loss is cross entropy.

    Attributes:
        name: Name of the target.
        class_names: One name per class.
        weights: Factor on the loss of each class, at most 1; empty for none. A public choice: it does not change the
            bound on a record, because gradients are clipped after it.
        threshold: Of two classes, the probability from which the second is decided.
    """

    name: str = "class"
    class_names: tuple[str, ...]
    weights: tuple[float, ...] = ()
    threshold: float = 0.5
    bounds: ClassVar[None] = None

    def __post_init__(self) -> None:
        if len(self.class_names) < 2:
            raise ArgumentError(f"The target {self.name!r} needs at least two classes.")
        if self.weights and len(self.weights) != len(self.class_names):
            raise ArgumentError(
                f"The target {self.name!r} has {len(self.class_names)} classes and {len(self.weights)} weights. Give "
                "one weight per class, or none."
            )
        for weight in self.weights:
            checks.probability("weight of a class", weight, allow_one=True)
        checks.probability("threshold", self.threshold)
        if self.threshold != 0.5 and len(self.class_names) != 2:
            raise ArgumentError(
                f"A threshold decides between two classes, and {self.name!r} has {len(self.class_names)}. Remove it."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def num_outputs(self) -> int:
        return len(self.class_names)

    def served(self) -> list[dict[str, Any]]:
        names = list(self.class_names)
        told = {"kind": "classes", "name": self.name, "outputs": self.num_outputs, "class_names": names}
        return [{**told, "threshold": self.threshold}]

    def encoded(self, values: Sequence[NDArray[Any]]) -> Tensor:
        import torch

        return torch.from_numpy(values[0].astype(np.int64))

    def made_up(self, num_records: int, generator: Generator) -> Tensor:
        import torch

        return torch.randint(0, self.num_outputs, (num_records,), generator=generator)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        losses = functional.cross_entropy(outputs, targets.long(), reduction="none")
        return losses * outputs.new_tensor(self.weights)[targets.long()] if self.weights else losses

    def decisions(self, outputs: Tensor) -> Mapping[str, Words]:
        shares = outputs.double().softmax(1).cpu()
        chosen = np.array(self.class_names, dtype=object)[self._chosen(outputs).cpu().numpy()]
        of = {f"probability of {name}": shares[:, place].numpy() for place, name in enumerate(self.class_names)}
        return {"class": chosen, **of}

    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        from torch.nn import functional

        loss = functional.cross_entropy(outputs, targets.long(), reduction="none")
        return {"accuracy": self._chosen(outputs) == targets, "cross entropy": loss}

    def _chosen(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1) if self.threshold == 0.5 else (outputs.softmax(1)[:, 1] >= self.threshold).long()


class _OneOutput:
    """A target that is one number, from one output."""

    name: str
    class_names: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def num_outputs(self) -> int:
        return 1

    def encoded(self, values: Sequence[NDArray[Any]]) -> Tensor:
        import torch

        # One column per output: a vector would broadcast against a column of outputs to a matrix.
        return torch.from_numpy(values[0].astype(np.float32)).unsqueeze(1)

    def natural(self, outputs: Tensor) -> Tensor:
        raise NotImplementedError

    def decisions(self, outputs: Tensor) -> Mapping[str, Words]:
        return {self.name: self.natural(outputs.double()).flatten().cpu().numpy()}

    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        errors = (self.natural(outputs) - targets.reshape(outputs.shape)).flatten()
        return {"squared error": errors.square(), "absolute error": errors.abs()}


@dataclass(frozen=True, kw_only=True)
class PlainNumber(_OneOutput):
    """A number without declared bounds, learned as it is; the loss is the squared error."""

    name: str = "number"

    def served(self) -> list[dict[str, Any]]:
        return [{"kind": "plain", "name": self.name, "outputs": 1}]

    def made_up(self, num_records: int, generator: Generator) -> Tensor:
        import torch

        return torch.randn((num_records, 1), generator=generator)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.reshape(outputs.shape)).square().mean(1)

    def natural(self, outputs: Tensor) -> Tensor:
        return outputs


@dataclass(frozen=True, kw_only=True)
class Number(_OneOutput):
    """A number within declared bounds, learned on the scale from -1 to 1; the loss is the squared error there.

    Predictions are clamped to the bounds. Errors are in the units of the data.

    Attributes:
        name: Name of the target.
        low: Lower bound; readers clamp the target to it.
        high: Upper bound.
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_bounds(self.name, self.low, self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def served(self) -> list[dict[str, Any]]:
        return [{"kind": "number", "name": self.name, "outputs": 1, "low": self.low, "high": self.high}]

    def made_up(self, num_records: int, generator: Generator) -> Tensor:
        return _uniform(self.low, self.high, num_records, generator)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = (targets.reshape(outputs.shape) - self._middle) / self._half
        return (outputs - wanted).square().mean(1)

    def natural(self, outputs: Tensor) -> Tensor:
        return (outputs * self._half + self._middle).clamp(self.low, self.high)

    @property
    def _middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def _half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, kw_only=True)
class Count(_OneOutput):
    """A count from zero to a declared bound, by Poisson regression; the output is the logarithm of the expected count.

    The count is learned in units of the geometric middle of 1 and the bound, so that an output of zero is a plausible
    count. Beyond the bound the exponential goes on as a straight line: the loss stays convex and finite.

    Attributes:
        name: Name of the target.
        high: Upper bound; readers clamp the target to it.
    """

    name: str
    high: float

    def __post_init__(self) -> None:
        _check_bounds(self.name, 0.0, self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, self.high

    def served(self) -> list[dict[str, Any]]:
        told = {"kind": "count", "name": self.name, "outputs": 1, "low": 0.0, "high": self.high}
        return [{**told, "unit": self._unit}]

    def made_up(self, num_records: int, generator: Generator) -> Tensor:
        return _uniform(0.0, self.high, num_records, generator).round()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (self._rates(outputs) - targets.reshape(outputs.shape) / self._unit * outputs).mean(1)

    def natural(self, outputs: Tensor) -> Tensor:
        return (self._rates(outputs) * self._unit).clamp(0.0, self.high)

    def _rates(self, outputs: Tensor) -> Tensor:
        inside = outputs.clamp(max=math.log(self.high / self._unit))
        return inside.exp() * (1 + outputs - inside)

    @property
    def _unit(self) -> float:
        return math.sqrt(max(1.0, self.high))


@dataclass(frozen=True, kw_only=True)
class Several:
    """Several targets from one network: its outputs lie side by side, and the loss is the mean over the targets."""

    parts: tuple[Classes | Number | Count, ...]
    class_names: tuple[str, ...] = ()
    bounds: ClassVar[None] = None

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ArgumentError("Several targets are at least two.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def num_outputs(self) -> int:
        return sum(part.num_outputs for part in self.parts)

    def served(self) -> list[dict[str, Any]]:
        return [told for part in self.parts for told in part.served()]

    def encoded(self, values: Sequence[NDArray[Any]]) -> Tensor:
        import torch

        return torch.from_numpy(np.stack([np.asarray(each, dtype=np.float32) for each in values], axis=1))

    def made_up(self, num_records: int, generator: Generator) -> Tensor:
        import torch

        found = [part.made_up(num_records, generator).reshape(-1, 1).float() for part in self.parts]
        return torch.cat(found, dim=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        import torch

        each = [part.losses(own, wanted) for part, own, wanted in self._split(outputs, targets)]
        return torch.stack(each).mean(0)

    def decisions(self, outputs: Tensor) -> Mapping[str, Words]:
        found: dict[str, Words] = {}
        for part, own in zip(self.parts, self._own(outputs), strict=True):
            for name, values in part.decisions(own).items():
                found[name if name == part.name else f"{part.name}: {name}"] = values
        return found

    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {
            f"{part.name}: {name}": values
            for part, own, wanted in self._split(outputs, targets)
            for name, values in part.scores(own, wanted).items()
        }

    def _own(self, outputs: Tensor) -> tuple[Tensor, ...]:
        import torch

        return torch.split(outputs, [part.num_outputs for part in self.parts], dim=1)

    def _split(self, outputs: Tensor, targets: Tensor) -> list[tuple[Classes | Number | Count, Tensor, Tensor]]:
        return list(zip(self.parts, self._own(outputs), targets.unbind(1), strict=True))


def task_of(parts: Sequence[Classes | Number | Count]) -> Task:
    """Return the task of one target or of several."""
    return parts[0] if len(parts) == 1 else Several(parts=tuple(parts))


def _check_bounds(name: str, low: float, high: float) -> None:
    for bound in (low, high):
        checks.number(f"bound of {name!r}", bound)
    if not low < high or math.isinf(low) or math.isinf(high):
        raise ArgumentError(f"The target {name!r} needs finite bounds with low < high, got {low} and {high}.")


def _uniform(low: float, high: float, num_records: int, generator: Generator) -> Tensor:
    import torch

    return low + (high - low) * torch.rand((num_records, 1), generator=generator)
