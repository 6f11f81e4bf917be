"""The cost of a private step of a network beside a plain one, measured on made-up examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from privet.errors import NoExampleRule, RecipeError, UnsupportedModel
from privet.gradients.capture.capture import Capture
from privet.gradients.capture.reaching import reach_of
from privet.gradients.capture.recorded import Reach, mark_batch, send_back, sources_of, tensors_in
from privet.gradients.engines.bookkeeping import BookKeeping, RunningBookKeeping
from privet.gradients.norms.planner import Choice
from privet.isolation.parts import tensors_of
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients

_MIN_REPEATS, _MAX_REPEATS = 3, 15
_ENOUGH_SECONDS = 2.0


class Inputs(Protocol):
    """A source of made-up inputs of a network."""

    def draw(self, num_examples: int) -> Any:
        """Return made-up examples, the same at every call: a tensor, or a tuple, list or dictionary of them."""
        ...


@dataclass(frozen=True, kw_only=True)
class RandomNumbers:
    """Normal numbers of one shape per example, of one type."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def draw(self, num_examples: int) -> Tensor:
        numbers = torch.randn(num_examples, *self.shape, generator=torch.Generator().manual_seed(0))
        return numbers.to(self.dtype)


@dataclass(frozen=True, kw_only=True)
class RandomTokens:
    """Token ids of one shape per example."""

    shape: tuple[int, ...]
    vocabulary: int

    def draw(self, num_examples: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.vocabulary, (num_examples, *self.shape), generator=generator)


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenBatch:
    """The examples of a batch, over and over; every tensor has one row per example.

    Attributes:
        batch: A tensor, or a tuple, list or dictionary of tensors.
    """

    batch: Any

    def __post_init__(self) -> None:
        leaves = pytree.tree_leaves(self.batch)
        lengths = {len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else 0 for leaf in leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise RecipeError(
                "An example batch is a tensor, or a tuple, list or dictionary of tensors, each with one row per "
                "example. The one given is not."
            )

    def draw(self, num_examples: int) -> Any:
        def rows(leaf: Tensor) -> Tensor:
            return leaf[torch.arange(num_examples, device=leaf.device) % len(leaf)].detach()

        return pytree.tree_map(rows, self.batch)


def outputs_of(model: nn.Module, batch: Any) -> object:
    """Call a network: with the items of a dictionary by name, with those of a tuple or list one after another."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Measured times and memory.

    Attributes:
        num_examples: Size of the physical batch.
        device: Name of the device.
        plain_seconds: Forward and backward pass of plain training.
        private_seconds: Forward and backward pass, norms and clipped sum.
        flow_seconds: Forward and backward pass without any parameter's gradient.
        peak_ratio: Predicted peak memory of the private pass over that of plain training.
        choices: Tried and chosen strategies by parameter name; parameters with small gradients are pooled and absent.
        first_seconds: The first private pass, with the trial pass and the choice of strategies.
        is_by_rules: Whether rules form all gradients, and not a backward pass for each example.
    """

    num_examples: int
    device: str
    plain_seconds: float
    private_seconds: float
    flow_seconds: float
    first_seconds: float
    peak_ratio: float
    choices: Mapping[str, Choice]
    is_by_rules: bool = True

    @property
    def predicted_seconds(self) -> float:
        """Sum of the parts: the passes without parameter gradients, and each layer's norms and sums."""
        return self.flow_seconds + sum(choice.used.seconds for choice in self.choices.values())


def losses_for(output: object, num_examples: int) -> Tensor:
    """Return one made-up loss per example of a network's output: the mean square of its first tensor with such rows.

    Raises:
        UnsupportedModel: the output has no tensor of numbers with one row per example.
    """
    given = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
    found = [tensor for tensor in given if tensor.dim() and len(tensor) == num_examples]
    if not found:
        shape = list(given[0].shape) if given else type(output).__name__
        raise UnsupportedModel(
            f"The network's output ({shape}) does not have one row per example ({num_examples}), so there is no "
            "per-example loss. Let forward() return the examples along the first axis."
        )
    return found[0].reshape(num_examples, -1).square().mean(1)


def measure_cost(model: nn.Module, inputs: Inputs, *, num_examples: int, device: torch.device) -> ModelCost:
    """Time a plain and a private pass of the network over one made-up physical batch.

    Raises:
        UnsupportedModel: a private session would refuse the network.
    """
    subject = _Subject(model, inputs, num_examples=num_examples, device=device)
    subject.running.planner.times_all = True
    first_seconds = subject.seconds(subject.private)
    plain, private, flow = _least(subject)
    planner = subject.running.planner
    return ModelCost(
        num_examples=num_examples,
        device=str(device),
        plain_seconds=plain,
        private_seconds=private,
        flow_seconds=flow,
        first_seconds=first_seconds,
        peak_ratio=planner.predicted_peak or 1.0,
        choices={subject.layout.names[position]: choice for position, choice in planner.by_parameter.items()},
        is_by_rules=subject.running.forms_by_rules,
    )


def _least(subject: _Subject) -> Sequence[float]:
    """Return the least seconds of each pass; timed in turns, so that other load on the machine affects all alike."""
    rounds: list[list[float]] = []
    while len(rounds) < _MIN_REPEATS or (len(rounds) < _MAX_REPEATS and sum(map(sum, rounds)) < _ENOUGH_SECONDS):
        rounds.append([subject.seconds(timed) for timed in subject.passes])
    return [min(seconds) for seconds in zip(*rounds, strict=True)]


class _Subject:
    """A network with a made-up batch, and the three passes to time."""

    def __init__(self, model: nn.Module, inputs: Inputs, *, num_examples: int, device: torch.device) -> None:
        self._model, self._num_examples, self._device = model.to(device).train(), num_examples, device
        self._batch = pytree.tree_map(lambda leaf: leaf.to(device), inputs.draw(num_examples))
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._parameters = [value for _, value in named]
        self.layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
        self._rule = Threshold(norm=1.0).for_groups(self.layout.num_groups)
        self._flat = torch.zeros(self.layout.num_coordinates, device=device)
        self._reach: Reach | None = None
        self.running: RunningBookKeeping = BookKeeping().start(model, self._parameters, self.layout)

    @property
    def passes(self) -> Sequence[Callable[[], None]]:
        return (self.plain, self.private, self.flow)

    def _losses(self, batch: Any) -> Tensor:
        return losses_for(outputs_of(self._model, batch), self._num_examples)

    def plain(self) -> None:
        """Forward and backward as in plain training."""
        torch.autograd.grad(self._losses(self._batch).sum(), self._parameters, allow_unused=True)

    def private(self) -> None:
        """Forward, backward and clipped sum, as in a session."""
        batch, leaves = self._batch, list[Tensor]()
        if self.running.wants_input_gradients:
            batch, leaves = with_gradients(batch, self._num_examples)
        mark_batch(tensors_of(batch))
        total = ClippedSum(flat=self._flat, layout=self.layout, sensitivity=self._rule.sensitivity)
        self.running.begin(self._num_examples, leaves)
        try:
            self.running.add_clipped(self._losses(batch), self._rule, total)
        finally:
            self.running.abandon()

    def flow(self) -> None:
        """Forward and backward between the layers only."""
        mark_batch(tensors_of(self._batch))
        capture = Capture(sources_of(self._parameters), self._num_examples)
        with capture:
            losses = self._losses(self._batch)
        try:
            if self._reach is None:
                self._reach = reach_of(losses, capture.recording, self._parameters, self.layout)
            send_back(losses.sum(), capture.recording, self._reach.roots, keep_graph=False)
        except NoExampleRule:  # its gradients need a backward pass for each example, which cannot be taken apart
            torch.autograd.grad(losses.sum(), self._parameters, allow_unused=True)
        capture.recording.release()

    def seconds(self, timed: Callable[[], None]) -> float:
        """Return the duration of a pass, including all work that it launched on the device."""
        self._wait()
        start = time.perf_counter()
        timed()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
