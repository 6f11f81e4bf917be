"""The protocol of gradient engines: from per-example losses to a clipped sum.

An engine decides how norms and sums are computed, never what they are. Choosing another engine, another precision or
another physical batch size cannot change a guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from privet.errors import LoopError
from privet.isolation.watch import Watch
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum


class RunningEngine(Protocol):
    """An engine bound to one model for the length of a session.

    Attributes:
        wants_input_gradients: Whether the next physical batch should come as leaves that require gradients, for a trial
            of the program.
        watch: The findings about programs that ran.
    """

    @property
    def wants_input_gradients(self) -> bool: ...
    @property
    def watch(self) -> Watch: ...

    def begin(
        self, batch_size: int, inputs: Sequence[Tensor] = (), *, can_repeat: bool = False, may_trace: bool = True,
        may_defer: bool = False,
    ) -> None:  # fmt: skip
        """Watch the forward pass of one physical batch of this many examples; ``inputs`` are its gradient leaves.

        With ``can_repeat`` :meth:`add_clipped` may raise :class:`NewProgram` to ask for the same batch as leaves.
        With ``may_defer`` it need not wait for a device to learn whether all gradients are finite: the sum may be used
        only if :meth:`all_finite` holds in the end.
        Without ``may_trace`` a program that was not proven before is not proven now, and not added.
        """
        ...

    def add_clipped(self, losses: Tensor, rule: ClippingRule, into: ClippedSum) -> Tensor:
        """Add the clipped gradients of the watched batch to ``into`` and return the norms ``[batch, group]``.

        Guarantee:
            ``into.flat`` moves by the sum over examples of factor times gradient, each term within
            ``into.sensitivity``. An example with a non-finite gradient adds exactly zero. ``p.grad`` is not touched.
            The norms are private.
        """
        ...

    def all_finite(self) -> bool:
        """Whether all gradients were finite that :meth:`add_clipped` added unseen since this was asked last.

        If not, the sums that they were added to are to be thrown away. Waits for the device.
        """
        ...

    def abandon(self) -> None:
        """Stop watching and forget the physical batch; harmless when nothing is watched."""
        ...

    def close(self) -> None:
        """Leave the model as it was found."""
        ...


class NewProgram(RuntimeError):
    """The batch ran a new program and its examples were no leaves. Nothing was added; run the batch again."""


class Spoiled(RuntimeError):
    """A gradient is not finite, and it cannot be told whose. Nothing was added; run the examples one at a time."""


class NotTried(LoopError):
    """A program that has not passed its trial yet was to be replayed."""


class Present(NamedTuple):
    """The result of :meth:`ReplayableEngine.add_present`. The norms are private.

    Attributes:
        is_known: Whether the program was recognised: its calls of torch show everything that it does.
    """

    norms: Tensor
    needs_check: bool
    is_known: bool = False


@runtime_checkable
class ReplayableEngine(RunningEngine, Protocol):
    """An engine whose work on a physical batch can be recorded once and replayed on other examples."""

    def add_present(self, losses: Tensor, rule: ClippingRule, into: ClippedSum, present: Tensor) -> Present:
        """Do as :meth:`add_clipped` without reading anything back from the device.

        Guarantee:
            As there; rows that are not ``present`` (boolean ``[batch]``) are padding and add exactly zero. Only if
            ``needs_check`` is set, a norm that is not finite means that ``into`` is corrupt.

        Raises:
            NotTried: if the program was not seen before by :meth:`add_clipped`, which puts it on trial.
        """
        ...

    def expect_replays(self) -> None:
        """Choose the fastest on the device: once recorded as a graph, launching costs nothing."""
        ...

    def traceable(self) -> AbstractContextManager[None]:
        """Use only operations that a tracer sees, as long as the context lasts."""
        ...


@runtime_checkable
class ScatteringEngine(RunningEngine, Protocol):
    """An engine that adds to sums of which every rank holds a part."""

    def add_scattered(self, losses: Tensor, rule: ClippingRule, into: ClippedSum, num_present: int) -> Tensor:
        """Do as :meth:`add_clipped` for a sum with a ``scatter``; return the norms of the rows that are present.

        Guarantee:
            As there; rows from ``num_present`` on are padding and add exactly zero. All ranks make the same calls of
            the scatter, whatever the numbers of their examples.

        Raises:
            UnsupportedModel: no rule proves the program, or forms its gradients. On all ranks or on none.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """A choice of engine: a performance knob, never part of a plan."""

    def start(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout, watch: Watch | None = None
    ) -> RunningEngine:
        """Bind to a model and its trainable parameters, in the layout's order; programs are judged by ``watch``."""
        ...
