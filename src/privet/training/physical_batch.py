"""How many examples to send through a model at once: found by trying, before training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from privet import checks
from privet.errors import DataError
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.support import check_model
from privet.isolation.parts import tensors_of, with_tensors
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients
from privet.training.launch.recording import LossFunction
from privet.training.trained import trainable_parameters

# A larger batch must be this much faster per example to be worth its memory.
_WORTHWHILE = 1.05
# So many doublings in a row without a gain end the search: the first may be an accident of this machine.
_PATIENCE = 2
_REPEATS = 2


def suggest_physical_batch(
    model: nn.Module, loss_function: LossFunction, examples: Any, *, limit: int, engine: Engine | None = None
) -> int:
    """Find a physical batch size: doubled until memory runs out or examples per second stop growing.

    The size is a performance knob and changes no guarantee. Only the shapes of the examples and the time they take
    enter it, so made-up examples do as well as real ones. Weights, buffers, gradients and torch's random state are left
    exactly as they were.

    Args:
        model: Any model that a private session accepts, in the mode and on the device it will be trained in.
        loss_function: From a batch's items to one loss per example, as for ``step.accumulate``.
        examples: A batch such as the data set would give; repeated where a size needs more of them than there are.
        limit: The largest size to try; more than the expected logical batch is never of use.
        engine: The engine that will be used; :class:`~privet.gradients.engines.bookkeeping.BookKeeping` by default.

    Returns:
        The smallest size within 5 percent of the best throughput; 1 if the limit is 1.

    Raises:
        UnsupportedModel: a session would refuse the model.
        DataError: the examples hold no tensor with examples along its first axis.
        torch.OutOfMemoryError: not even one example fits.
    """
    limit = checks.count("limit", limit)
    check_model(model)
    available = _num_examples(examples)
    found: list[tuple[int, float]] = []
    with _unchanged(model):
        trial = _Trial(model, loss_function, engine or BookKeeping())
        try:
            for size in _doubling(limit):
                rate = trial.examples_per_second(_repeated(examples, size, available), size)
                if rate is None:
                    if not found:
                        raise torch.OutOfMemoryError("Not even one example fits into memory.")
                    break
                found.append((size, rate))
                if _has_stopped_growing([rate for _, rate in found]):
                    break
        finally:
            trial.close()
    best = max(rate for _, rate in found)
    return next(size for size, rate in found if rate * _WORTHWHILE >= best)


def _doubling(limit: int) -> Iterator[int]:
    size = 1
    while size < limit:
        yield size
        size *= 2
    yield limit


def _has_stopped_growing(rates: Sequence[float]) -> bool:
    if len(rates) <= _PATIENCE:
        return False
    return max(rates[-_PATIENCE:]) < _WORTHWHILE * max(rates[:-_PATIENCE])


def _num_examples(examples: Any) -> int:
    sizes = {len(tensor) for tensor in tensors_of(examples) if tensor.dim() > 0}
    if len(sizes) != 1 or 0 in sizes:
        raise DataError(
            f"The examples must be tensors with the same number of rows, at least one; found row counts "
            f"{sorted(sizes)}. Pass a batch as the data set would give it, such as (inputs, labels)."
        )
    return sizes.pop()


def _repeated(examples: Any, size: int, available: int) -> Any:
    """Return a batch of ``size`` examples, going round the given ones."""

    def chosen(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0:
            return tensor
        return tensor[torch.arange(size, device=tensor.device) % available]

    return with_tensors(examples, chosen)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Bring back buffers and torch's random state at the end of the block; engines write no gradients."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({value.device.index or 0 for value in model.parameters() if value.is_cuda})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


class _Trial:
    """A model with an engine, for private passes whose sums are thrown away."""

    def __init__(self, model: nn.Module, loss_function: LossFunction, engine: Engine) -> None:
        named = trainable_parameters(model)
        parameters = [parameter for _, parameter in named]
        self._loss_function, self._device = loss_function, parameters[0].device
        self._layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
        self._rule = Threshold(norm=1.0).for_groups(self._layout.num_groups)
        dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        self._flat = torch.zeros(self._layout.num_coordinates, device=self._device, dtype=dtype)
        self._engine = engine.start(model, parameters, self._layout)

    def close(self) -> None:
        """Leave the model."""
        self._engine.close()

    def examples_per_second(self, batch: Any, size: int) -> float | None:
        """Return the best of a few passes after a first one, which chooses strategies; None if memory runs out."""
        try:
            self._pass(batch, size)
            return size / max(1e-9, min(self._pass(batch, size) for _ in range(_REPEATS)))
        except (RuntimeError, MemoryError) as error:  # torch's own out-of-memory error is a RuntimeError
            if not _is_out_of_memory(error):
                raise
        if self._device.type == "cuda":  # only now: in the handler the traceback would hold the tensors
            torch.cuda.empty_cache()
        return None

    def _pass(self, batch: Any, size: int) -> float:
        self._wait()
        start = time.perf_counter()
        leaves: Sequence[Tensor] = ()
        if self._engine.wants_input_gradients:
            batch, leaves = with_gradients(batch, size)
        mark_batch(tensors_of(batch))
        total = ClippedSum(flat=self._flat, layout=self._layout, sensitivity=self._rule.sensitivity)
        self._engine.begin(size, leaves)
        try:
            losses = self._loss_function(*(batch if isinstance(batch, tuple | list) else (batch,)))
            self._engine.add_clipped(losses, self._rule, total)
        finally:
            self._engine.abandon()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _is_out_of_memory(error: Exception) -> bool:
    # the processor's allocator has no class of error of its own
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
