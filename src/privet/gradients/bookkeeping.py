"""The default engine: one forward, one backward without weight gradients, norms and sums from what was noted.

Autograd computes only what flows between layers. Each parameter's per-example norm and its clipped sum are then formed
from the layer's inputs and output gradients (book-keeping; Bu et al. 2023), so nothing is computed twice and no
per-example gradient is written out unless that is the cheapest way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.overrides import _pop_mode, _push_mode

from privet.errors import LoopError, UnsupportedModel
from privet.gradients.capture import Capture, Function, Recording, Source, Use
from privet.gradients.engine import Clipper, check_losses
from privet.gradients.example_axis import ExampleAxis, candidates, fits, half_of
from privet.gradients.layer_rules import RULES, by_vmap
from privet.gradients.per_example import Explicit, PerExample, joined
from privet.gradients.planner import Planner
from privet.gradients.rule_tools import Rule
from privet.gradients.support import check_coverage, quiet_vmap
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum

Signature = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class BookKeeping:
    """One backward, exact for every operation that has a rule or runs under vmap.

    Attributes:
        rules: Rules by operation; extend a copy of ``RULES`` to teach the engine a new one.
    """

    rules: Mapping[Function, Rule] = field(default_factory=lambda: RULES)

    def start(self, model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout) -> RunningBookKeeping:
        """Bind to a model; the model itself is not touched."""
        return RunningBookKeeping(rules=self.rules, parameters=parameters, layout=layout)


@dataclass(kw_only=True)
class RunningBookKeeping:
    """:class:`BookKeeping` bound to a model."""

    rules: Mapping[Function, Rule]
    parameters: Sequence[nn.Parameter]
    layout: Layout
    planner: Planner = field(default_factory=Planner)
    _capture: Capture | None = None
    _axes: dict[Signature, tuple[ExampleAxis, ...]] = field(default_factory=dict)
    _covered: set[Signature] = field(default_factory=set)

    def begin(self, batch_size: int) -> None:
        """Enter the capture mode; it stays on until the losses come back."""
        if self._capture is not None:
            raise LoopError(
                "A physical batch is still open: call step.backward(losses) before asking for the next one."
            )
        self._capture = Capture(self.parameters, batch_size)
        self._capture.__enter__()  # type: ignore[no-untyped-call]

    def abandon(self) -> None:
        """Leave the capture mode and drop what it noted."""
        self._finish()

    def close(self) -> None:
        """Leave the capture mode if an error left it on."""
        self._finish()

    def _finish(self) -> Recording | None:
        capture, self._capture = self._capture, None
        if capture is None:
            return None
        _leave(capture)
        return capture.recording

    def add_clipped(self, losses: Tensor, rule: ClippingRule, into: ClippedSum) -> Tensor:
        """Run the backward pass and add the clipped sum; see :meth:`RunningEngine.add_clipped`."""
        recording = self._finish()
        if recording is None:
            raise LoopError("step.backward(losses) was called outside step.microbatches().")
        losses = check_losses(losses, recording.batch_size)
        signature = tuple((use.name, len(use.output_shape)) for use in recording.uses)
        if signature not in self._covered:
            check_coverage(losses, recording, self.parameters, self.layout)
            self._covered.add(signature)
        axes = self._example_axes(losses, recording, signature)
        clipper = Clipper(into, recording.batch_size, self.planner)
        collector = _Collector(recording, axes, self.rules, self.parameters, clipper)
        _backward(losses.sum(), recording, keep_graph=False, receive=collector.receive)
        with torch.no_grad():
            collector.finish()
            return clipper.finish(rule)

    def _example_axes(self, losses: Tensor, recording: Recording, signature: Signature) -> Sequence[ExampleAxis]:
        """Find each use's example axis, once per program; with a single example every reading is right."""
        size = recording.batch_size
        if signature in self._axes:
            return self._axes[signature]
        options = [list(candidates(use.output_shape, size)) for use in recording.uses]
        # one broken example must not decide whether training runs: its loss is left out, its rows prove nothing
        finite = losses.detach().isfinite()
        if size > 1:
            absent = half_of(size, losses.device)
            for left_out in (absent, ~absent):
                _backward(losses[~left_out & finite].sum(), recording, keep_graph=True)
                for use, choices in zip(recording.uses, options, strict=True):
                    choices[:] = [axis for axis in choices if fits(axis, use.out_grad, left_out)]
        for use, choices in zip(recording.uses, options, strict=True):
            if not choices:
                raise _mixes_examples(use, recording, self.layout)
        if size > 1 and bool(finite.all()) and all(len(choices) == 1 for choices in options):
            self._axes[signature] = tuple(choices[0] for choices in options)
        return tuple(choices[0] for choices in options)


class _Collector:
    """Turns output gradients into per-example gradients while the backward pass runs, so they can be freed early."""

    def __init__(
        self,
        recording: Recording,
        axes: Sequence[ExampleAxis],
        rules: Mapping[Function, Rule],
        parameters: Sequence[nn.Parameter],
        clipper: Clipper,
    ) -> None:
        """Count how often each parameter is used: one that is used once can be handed on at once."""
        self._batch_size, self._rules = recording.batch_size, rules
        self._parameters, self._clipper = parameters, clipper
        self._axes = dict(zip(map(id, recording.uses), axes, strict=True))
        self._uses = Counter(place for use in recording.uses for source in use.sources for place in source.parameters)
        self._waiting: dict[int, list[PerExample]] = defaultdict(list)
        self._derived: list[tuple[Source, PerExample]] = []

    def receive(self, use: Use) -> None:
        """Apply the rule of a use whose output gradient has arrived, then let go of the gradient."""
        _check_unchanged(use)
        rule = self._rules.get(use.function, by_vmap)
        for source, part in rule(use, self._axes[id(use)], self._batch_size):
            if source.derived:
                self._derived.append((source, part))
            else:
                (position,) = source.parameters
                if self._uses[position] == 1:
                    self._clipper.take(position, part)
                else:
                    self._waiting[position].append(part)
        use.out_grad = None

    def finish(self) -> None:
        """Carry derived gradients back, and join the uses of every parameter that had several."""
        for source, part in self._derived:
            for position, pulled in _pull_back(source.tensor, part, source.parameters, self._parameters):
                self._waiting[position].append(pulled)
        for position, parts in self._waiting.items():
            self._clipper.take(position, parts[0] if len(parts) == 1 else joined(parts))


def _leave(capture: Capture) -> None:
    """Take one mode out of torch's stack, wherever it lies: two sessions may have physical batches open at once."""
    above = []
    while (top := _pop_mode()) is not capture:  # type: ignore[no-untyped-call]
        above.append(top)
    for mode in reversed(above):
        _push_mode(mode)  # type: ignore[no-untyped-call]


def _backward(
    loss: Tensor, recording: Recording, *, keep_graph: bool, receive: Callable[[Use], None] | None = None
) -> None:
    """Send gradients to every noted output, and no further."""
    for use in recording.uses:
        use.out_grad, use.receive = None, receive
    edges = [use.edge for use in recording.uses if use.is_root]
    torch.autograd.grad(loss, edges, retain_graph=keep_graph, allow_unused=True)


def _check_unchanged(use: Use) -> None:
    for tensor, version in use.versions:
        if tensor._version != version:
            raise UnsupportedModel(
                f"An input of operation '{use.name}' was changed in place after the operation used it, so its gradient "
                "can no longer be formed. Replace the in-place operation that follows by its ordinary form."
            )


def _pull_back(
    derived: Tensor, part: PerExample, positions: frozenset[int], parameters: Sequence[nn.Parameter]
) -> list[tuple[int, PerExample]]:
    """Carry per-example gradients of a derived tensor back to the parameters it was computed from."""
    order = sorted(positions)
    with quiet_vmap():
        pulled: Sequence[Tensor | None] = torch.autograd.grad(
            derived,
            [parameters[position] for position in order],
            grad_outputs=part.in_full().to(derived.dtype),
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
    return [
        (position, Explicit(gradients=gradients))
        for position, gradients in zip(order, pulled, strict=True)
        if gradients is not None
    ]


def _mixes_examples(use: Use, recording: Recording, layout: Layout) -> UnsupportedModel:
    names = sorted({layout.names[position] for source in use.sources for position in source.parameters})
    return UnsupportedModel(
        f"Something after operation '{use.name}' on {names} mixes the examples of a batch (its output has shape "
        f"{tuple(use.output_shape)} for {recording.batch_size} examples), so no per-example gradient exists. Usual "
        "causes: batch normalisation, a loss averaged over the batch, or in-batch negatives. Make each example's loss "
        "depend on that example alone."
    )
