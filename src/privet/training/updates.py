"""The second half of a step: noise, gradients, optimizer. Recorded as one CUDA graph where nothing in it changes.

Like every recording this is an option of speed: the same operations in the same order, launched at once instead of one
by one. It is used with plain SGD only, whose update depends on nothing that Python would have to compute anew.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from privet.errors import LoopError
from privet.mechanism.layout import Share
from privet.mechanism.noise import NoiseRun
from privet.mechanism.sums import ClippedSum, NormalSource, PartViews, PrivateSum
from privet.training.optimizers import NoiseAware, tell_noise
from privet.training.randomness import NoiseSource, SharedNoise
from privet.training.release import Noisy, WaitingSum

_log = logging.getLogger("privet")

# Recordings of one session: each holds the memory of a noise vector. A schedule of learning rates would need one each.
_MAX_RECORDINGS = 4
# Steps of one kind that run operation by operation before a recording, so that the optimizer's state exists.
_WARM_UP = 2
# How many coordinates of the first two draws of a recording are compared.
_SAMPLE = 1 << 16


class Update(Protocol):
    """The noise and the update of one step, ready to be compared with what was charged."""

    @property
    def private(self) -> PrivateSum:
        """The noisy sum; a recorded update fills in its numbers when it is applied, its event is right at once."""
        ...

    @property
    def is_drawn(self) -> bool:
        """Whether the noise is in ``private`` already, and not only when the update is applied."""
        ...

    def apply(self, *, keep: Tensor | None) -> None:
        """Write the gradients and step the optimizer."""
        ...


@dataclass(kw_only=True, eq=False)
class GradientViews(PartViews):
    """The gradients of the parameters in the memory of a noisy sum, made once.

    Guarantee: every gradient begins where its parameter begins in that memory. They are in the user's hands between two
    steps, so they are made anew if one was given other memory (``p.grad.data = ...``).
    """

    _addresses: Sequence[int] = ()

    def of(self, flat: Tensor) -> Sequence[Tensor]:
        with torch._C.DisableTorchFunction():  # the batch of another session may be watched
            if [part.data_ptr() for part in self._parts] != self._addresses:
                self._flat = None
            parts = super().of(flat)
            self._addresses = [part.data_ptr() for part in parts]
        return parts


@dataclass(kw_only=True, eq=False)
class Updates:
    """Adds the noise of one session's steps and updates its model.

    Attributes:
        source: Where noise comes from.
        parameters: The trained parameters, in the layout's order.
        memory: Holds the gradients from step to step.
        views: Each parameter's part of that memory.
        optimizer: Steps once per update.
        opened: The context in which the optimizer may step, with the gradients it is called with.
        divisor: The divisor of noisy sums; a constant of the plan.
        records: Whether updates may be recorded as CUDA graphs.
        share: The coordinates of the whole sum that this rank holds; None for all.
        sum_source: Where the noise of the sum comes from, on this rank.
    """

    source: NoiseSource
    parameters: Sequence[nn.Parameter]
    memory: Tensor
    views: GradientViews
    optimizer: Optimizer
    opened: Callable[[Sequence[Tensor]], AbstractContextManager[Any]]
    divisor: float
    records: bool = False
    share: Share | None = None
    sum_source: NormalSource = field(init=False)
    _seen: dict[Hashable, int] = field(default_factory=dict)
    _recorded: dict[Hashable, _RecordedUpdate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sum_source = self.source if self.share is None else SharedNoise(source=self.source, share=self.share)

    def add_noise(self, noise: NoiseRun, total: ClippedSum) -> Update:
        """Add the noise, or find the recording that will.

        Guarantee:
            The event of the result's ``private`` is built from the noise and the bound that ``apply`` writes: a
            recording is used only for the noise, bound, memory and optimizer settings it was made with.
        """
        recorded = self._recording(noise, total) if self.records else None
        return recorded or _EagerUpdate(private=noise.add(total, self.sum_source), updates=self)

    def _recording(self, noise: NoiseRun, total: ClippedSum) -> _RecordedUpdate | None:
        key = self._key(noise, total)
        if key is None:
            return None
        return self._recorded.get(key) or self._record(key, noise, total)

    def _key(self, noise: NoiseRun, total: ClippedSum) -> Hashable | None:
        """Name all that a recording freezes; None for an update that is never recorded."""
        optimizer = self.optimizer
        is_plain = type(optimizer) is SGD and noise.noise.is_recordable and total.keep is None and total.frame is None
        # more hooks than the session's own would be run once, when recording, and never again
        is_hooked = is_plain and (len(optimizer._optimizer_step_pre_hooks) > 1 or optimizer._optimizer_step_post_hooks)
        if not is_plain or is_hooked:
            return None
        settings = tuple(
            tuple((name, value) for name, value in sorted(group.items()) if name != "params")
            for group in optimizer.param_groups
        )
        has_tensors = any(isinstance(value, Tensor) for group in settings for _, value in group)
        return None if has_tensors else (noise.noise, total.sensitivity, total.flat.data_ptr(), settings)

    def _record(self, key: Hashable, noise: NoiseRun, total: ClippedSum) -> _RecordedUpdate | None:
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= _WARM_UP:
            self.records = len(self._seen) <= 4 * _MAX_RECORDINGS  # settings that never stay are not worth a look
            return None
        if len(self._recorded) >= _MAX_RECORDINGS:
            self.records = False
            return None
        try:
            graph = torch.cuda.CUDAGraph()
            self.source.join(graph)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                private = noise.add(total, self.source)
                _EagerUpdate(private=private, updates=self).apply(keep=None)
        except RuntimeError as error:
            self.records = False
            reason = str(error).strip().splitlines() or [""]
            _log.warning("The ends of steps are not recorded, they run in the ordinary way: %s.", reason[0])
            return None
        self._recorded[key] = made = _RecordedUpdate(private=private, graph=graph, updates=self)
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSum(WaitingSum):
    """The clipped sum of one training step. Secret.

    Attributes:
        updates: Adds the noise, or finds the recording that will.
        noise: The noise of the plan at work.
    """

    updates: Updates
    noise: NoiseRun

    def add_noise(self) -> Noisy[Update]:
        update = self.updates.add_noise(self.noise, self.clipped)
        return Noisy(value=update, executed=self.steps.of(update.private, self.updates.source))


@dataclass(kw_only=True, eq=False)
class _EagerUpdate:
    """Noise that has been added, and an update that runs one operation after the other."""

    private: PrivateSum
    updates: Updates
    is_drawn: ClassVar[bool] = True

    def apply(self, *, keep: Tensor | None) -> None:
        """Write the gradients and step the optimizer, one operation after the other."""
        updates = self.updates
        # one pass, into the same memory at every step
        divided = functools.partial(torch.div, out=updates.memory)
        self.private.write_gradients(updates.parameters, divisor=updates.divisor, divided=divided, views=updates.views)
        # The optimizer may use these gradients and no others: they are listed before any of its code runs.
        written = [parameter.grad for parameter in updates.parameters if parameter.grad is not None]
        if isinstance(updates.optimizer, NoiseAware):
            tell_noise(updates.optimizer, self.private, divisor=updates.divisor, keep=keep)
        with updates.opened(written):
            updates.optimizer.step()


@dataclass(kw_only=True, eq=False)
class _RecordedUpdate:
    """Noise, gradients and update as one graph.

    Guarantee:
        Every replay draws anew: the noise source's generator is registered with the graph and moves on at each replay.
        The first two replays are put on trial: noise of another size than recorded, or the same noise twice, raises.
    """

    private: PrivateSum
    graph: torch.cuda.CUDAGraph
    updates: Updates
    _draws: list[Tensor] = field(default_factory=list)
    is_drawn: ClassVar[bool] = False

    def apply(self, *, keep: Tensor | None) -> None:
        """Replay; nothing of the noise was added before."""
        on_trial = len(self._draws) < 2
        before = self.private.flat[:_SAMPLE].double() if on_trial else None
        self.graph.replay()
        # the replay has divided the noisy sum into the memory of the gradients
        memory = self.updates.memory
        self.private.write_gradients(
            self.updates.parameters,
            divisor=self.updates.divisor,
            divided=lambda flat, divisor: memory,
            views=self.updates.views,
        )
        if before is not None:
            self._draws.append(self.private.flat[:_SAMPLE].double() - before)
            check_draws(self._draws, std=self.private.noise_std)


def check_draws(draws: Sequence[Tensor], *, std: float | None) -> None:
    """Refuse draws of the wrong size, and a draw that repeats the one before it.

    Raises:
        LoopError: for noise that a recording got wrong. The step it belongs to must not be used.
    """
    newest = draws[-1]
    # six standard errors of a sum of squares of so many normal numbers
    slack = 6.0 * math.sqrt(2.0 / newest.numel())
    if std is not None and not abs(float((newest / std).square().mean()) - 1.0) <= slack + 1e-3:
        raise LoopError(
            "A recorded step drew noise of another size than it was charged. Train with launch=pv.launch.Eager()."
        )
    if len(draws) > 1 and bool(((draws[-1] - draws[-2]).abs() < 1e-3 * newest.abs().amax()).double().mean() > 0.5):
        raise LoopError(
            "A recorded step repeated the noise of the step before it. Train with launch=pv.launch.Eager()."
        )
