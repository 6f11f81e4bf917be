"""The contenders: plain training and privet's engines. Other libraries are in :mod:`benchmarks.rivals`.

Every contender does one complete logical step: forward and backward of each physical batch, clipping, noise, and the
update of a plain SGD optimizer. No contender may skip a part that another one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor, nn

from benchmarks.models import Batch, losses_of
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.ablations import NoNoise
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian
from privet.mechanism.sums import ClippedSum
from privet.training.launch.replay import Compiled, CudaGraph, Eager, Launch
from privet.training.randomness import Streams
from privet.training.updates import GradientViews, Updates


class Role(Enum):
    """The role of a contender in the comparison."""

    BASELINE = "baseline"
    PRIVET = "privet"
    RIVAL = "rival"


class Option(Enum):
    """The launch of a step; a contender is compared with the baseline of the same option."""

    EAGER = "eager"
    GRAPH = "graph"
    COMPILE = "compile"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The common settings of all contenders of one comparison.

    Attributes:
        logical_batch: Examples of one step; the divisor of the gradient sum.
        clip_norm: Bound on each example's gradient.
        noise_multiplier: Noise over bound; 0 only to compare clipped sums, without noise.
        learning_rate: Small, so that the weights of all contenders hardly change.
        autocast: Precision of matrix products under autocast, or None.
        seed: Seed of the noise; timings do not depend on it.
    """

    logical_batch: int
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    learning_rate: float = 1e-4
    autocast: torch.dtype | None = None
    seed: int = 0

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context manager for a forward pass."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, dtype=self.autocast)


class Running(Protocol):
    """A contender bound to one model."""

    def step(self, parts: Sequence[Batch]) -> None:
        """Do one complete step over the physical batches of one logical batch."""
        ...

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the sum of clipped gradients by the original parameter name; untrained parameters are absent."""
        ...

    def close(self) -> None:
        """Detach from the model."""
        ...


class Contender(Protocol):
    """A way to do a step."""

    @property
    def name(self) -> str:
        """The short name used on the command line and in tables."""
        ...

    @property
    def role(self) -> Role:
        """Its role in the comparison."""
        ...

    @property
    def option(self) -> Option:
        """The launch of its step."""
        ...

    @property
    def noise_dtype(self) -> str:
        """Precision of its noise, or "none"."""
        ...

    def setup(self, model: nn.Module, settings: Settings) -> Running:
        """Bind to a model, which the contender may change; raise if the library is missing or refuses the model."""
        ...


class NoClippedSum(TypeError):
    """The contender has no clipped sum of a batch that is given to it, so there is nothing to compare."""


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters."""
    return next(model.parameters()).device


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [value for value in model.parameters() if value.requires_grad]


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """Plain training, the baseline."""

    name: str = "non_private"
    role: Role = Role.BASELINE
    option: Option = Option.EAGER
    noise_dtype: str = "none"

    def setup(self, model: nn.Module, settings: Settings) -> RunningNonPrivate:
        return RunningNonPrivate(model, settings)


class RunningNonPrivate:
    """:class:`NonPrivate` bound to a model."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self._model, self._settings, self._device = model, settings, device_of(model)
        self._optimizer = torch.optim.SGD(trained_parameters(model), lr=settings.learning_rate)

    def step(self, parts: Sequence[Batch]) -> None:
        """Accumulate the gradient of the mean loss and update."""
        self._optimizer.zero_grad(set_to_none=True)
        for inputs, labels in parts:
            with self._settings.precision(self._device):
                loss = losses_of(self._model(inputs), labels).sum() / self._settings.logical_batch
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        raise NoClippedSum("plain training clips nothing")

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class NonPrivateGraph:
    """Plain training whose whole step, update included, is one CUDA graph."""

    name: str = "non_private_graph"
    role: Role = Role.BASELINE
    option: Option = Option.GRAPH
    noise_dtype: str = "none"

    def setup(self, model: nn.Module, settings: Settings) -> RunningNonPrivateGraph:
        """Create the optimizer; the first batch captures the step."""
        return RunningNonPrivateGraph(model, settings)


class RunningNonPrivateGraph(RunningNonPrivate):
    """:class:`NonPrivateGraph` bound to a model."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, settings)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: list[Batch] = []

    def step(self, parts: Sequence[Batch]) -> None:
        if self._graph is None:
            self._capture(parts)
        assert self._graph is not None
        for mine, given in zip(self._static, parts, strict=False):
            for place, tensor in zip(mine, given, strict=True):
                place.copy_(tensor)
        self._graph.replay()

    def _capture(self, parts: Sequence[Batch]) -> None:
        self._static = [(inputs.clone(), labels.clone()) for inputs, labels in parts]
        warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):
                super().step(self._static)
        torch.cuda.current_stream().wait_stream(warm_up)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            super().step(self._static)


@dataclass(frozen=True, kw_only=True)
class NonPrivateCompiled:
    """Plain training with the model and the loss compiled together."""

    name: str = "non_private_compiled"
    role: Role = Role.BASELINE
    option: Option = Option.COMPILE
    noise_dtype: str = "none"

    def setup(self, model: nn.Module, settings: Settings) -> RunningNonPrivateCompiled:
        """Compile lazily, at the first step."""
        return RunningNonPrivateCompiled(model, settings)


class RunningNonPrivateCompiled(RunningNonPrivate):
    """:class:`NonPrivateCompiled` bound to a model."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, settings)
        self._losses = torch.compile(lambda inputs, labels: losses_of(model(inputs), labels).sum(), dynamic=False)

    def step(self, parts: Sequence[Batch]) -> None:
        """Accumulate the gradient of the mean loss and update."""
        self._optimizer.zero_grad(set_to_none=True)
        for inputs, labels in parts:
            with self._settings.precision(self._device):
                loss = self._losses(inputs, labels) / self._settings.logical_batch
            loss.backward()
        self._optimizer.step()


@dataclass(frozen=True, kw_only=True)
class Privet:
    """A private step as in a session, with one of privet's engines."""

    name: str
    engine: Engine
    launch: Launch = field(default_factory=Eager)
    role: Role = Role.PRIVET
    option: Option = Option.EAGER
    noise_dtype: str = "float64"

    def setup(self, model: nn.Module, settings: Settings) -> RunningPrivet:
        return RunningPrivet(self, model, settings)


class RunningPrivet:
    """:class:`Privet` bound to a model."""

    def __init__(self, choice: Privet, model: nn.Module, settings: Settings) -> None:
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._model, self._settings, self._device = model, settings, device_of(model)
        self._parameters = [value for _, value in named]
        self._layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
        self._rule = Threshold(norm=settings.clip_norm).for_groups(self._layout.num_groups)
        self._running = choice.engine.start(model, self._parameters, self._layout)
        self._launcher = choice.launch.start(self._running, self._device)
        self._must_record = choice.option is not Option.EAGER
        self._num_unrecorded = 0
        self._losses = self._compute_losses  # one object for all steps: a recording belongs to one function object
        dtype = torch.promote_types(self._parameters[0].dtype, torch.float32)
        self._flat = torch.zeros(self._layout.num_coordinates, device=self._device, dtype=dtype)
        noise = Gaussian(noise_multiplier=settings.noise_multiplier) if settings.noise_multiplier else NoNoise()
        self._noise = noise.start(self._layout, has_mask=False)
        self._updates = Updates(
            source=Streams.new(self._device, seed=settings.seed).noise,
            parameters=self._parameters,
            memory=torch.zeros_like(self._flat),
            views=GradientViews(layout=self._layout),
            optimizer=torch.optim.SGD(self._parameters, lr=settings.learning_rate),
            opened=nullcontext,
            divisor=settings.logical_batch,
            records=self._launcher.uses_graphs,
        )

    def step(self, parts: Sequence[Batch]) -> None:
        """Clip and sum every part, add noise once, write the gradients, update."""
        self._updates.add_noise(self._noise, self._sum(parts)).apply(keep=None)

    def _compute_losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        with self._settings.precision(self._device):
            return losses_of(self._model(inputs), labels)

    def _sum(self, parts: Sequence[Batch]) -> ClippedSum:
        self._flat.zero_()
        total = ClippedSum(flat=self._flat, layout=self._layout, sensitivity=self._rule.sensitivity)
        for batch in parts:
            size = len(batch[0])
            if self._launcher.add(batch, size, size, self._losses, self._rule, total) is not None:
                continue
            self._num_unrecorded += 1
            if self._must_record and self._num_unrecorded > 4 * len(parts):
                raise RuntimeError("The batch was not recorded.")
            mark_batch(batch)
            self._running.begin(size)
            try:
                self._running.add_clipped(self._losses(*batch), self._rule, total)
            finally:
                self._running.abandon()
        return total

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the sum before noise."""
        flat = self._sum([batch]).flat.clone()
        named = zip(self._layout.names, self._layout.slices, self._layout.shapes, strict=True)
        return {name: flat[where].view(shape) for name, where, shape in named}

    def close(self) -> None:
        self._running.close()


OURS: tuple[Contender, ...] = (
    NonPrivate(),
    Privet(name="privet_bookkeeping", engine=BookKeeping()),
    NonPrivateGraph(),
    Privet(name="privet_graph", engine=BookKeeping(), launch=CudaGraph(warm_up=1), option=Option.GRAPH),
    NonPrivateCompiled(),
    Privet(
        name="privet_compiled",
        engine=BookKeeping(),
        launch=Compiled(warm_up=1, graph=True),
        option=Option.COMPILE,
    ),
    Privet(name="privet_functional", engine=Functional()),
)
