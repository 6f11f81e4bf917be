"""The trial of a new program: experiments on its first physical batch that show whether per-example gradients exist.

Nothing is taken on trust. Examples must not reach each other's gradients, which is tested exactly: the gradient of the
losses of some examples must be zero wherever the others lie. And per-example gradients must add up to autograd's.
Both tests look at structure; one broken example (a loss that is not finite) is left out and proves nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from privet.errors import UnsupportedModel
from privet.gradients.capture.observer import rounding_of
from privet.gradients.capture.recorded import Recording, Use
from privet.gradients.engines.support import took_no_part
from privet.gradients.rules.example_axis import ExampleAxis, FoldedAxis, WholeAxis, candidates, fits, is_finite
from privet.mechanism.geometry import Frame
from privet.mechanism.layout import Layout

# Two computations of a gradient may differ by this share of its length, and by a small share of the length of the whole
# gradient, since some gradients are zero except for rounding (a bias before a softmax).
_TOLERANCES = (
    (torch.finfo(torch.float64).eps, (1e-7, 1e-9)),
    (torch.finfo(torch.float32).eps, (2e-3, 1e-4)),
)
_HALF_TOLERANCE = (5e-2, 5e-3)
_LEAST_WEIGHT = 2.0**-20


@dataclass(kw_only=True, eq=False)
class Trial:
    """A running trial: its findings so far, and the set of examples that is still to be left out.

    Attributes:
        losses: One per example.
        uses: The uses of parameters in the forward pass.
        ends: Where a backward pass may stop.
        inputs: The batch's tensors, as leaves that require gradients.
        options: For each use, the example axes of its output that are still possible.
        refusals: For each use, the error if no axis remains.
        rounding: The unit of the coarsest precision in which parts of the program ran.
        is_clean: Whether every loss and gradient was finite.
        silent: The uses at which nothing but zeros arrived so far: of them nothing was found out.
        pending: The last set, if it can wait for a backward pass that is needed anyway; None if no set is pending.
    """

    losses: Tensor
    uses: Sequence[Use]
    ends: Sequence[GradientEdge]
    inputs: Sequence[Tensor]
    options: Sequence[list[ExampleAxis]]
    refusals: Sequence[UnsupportedModel]
    rounding: float = 0.0
    is_clean: bool = True
    silent: set[int] = field(default_factory=set)
    pending: Tensor | None = None
    _heard: set[int] = field(default_factory=set)

    @property
    def axes(self) -> tuple[ExampleAxis, ...]:
        """The likeliest remaining example axis of each output."""
        return tuple(choices[0] for choices in self.options)

    @property
    def is_unambiguous(self) -> bool:
        """Whether one example axis remains for each output."""
        return all(len(choices) == 1 for choices in self.options)

    def halves(self) -> Iterator[Tensor]:
        """Yield two complementary parts of the batch; the first leaves out the pending set, if there is one."""
        absent = self.pending
        even = torch.arange(len(self.losses), device=self.losses.device) % 2 == 0
        first = even if absent is None else ~absent
        yield from (first, ~first)

    def leave_out(self, absent: Tensor) -> None:
        """Run a backward pass without some examples and inspect the gradients that arrive."""
        present = ~absent & self.losses.detach().isfinite()
        if bool(present.any()):
            with torch.enable_grad():
                loss = self.losses[present].sum()
            self.send_back(loss, self.ends, absent)

    def send_back(
        self, loss: Tensor, targets: Sequence[GradientEdge | Tensor], absent: Tensor
    ) -> Sequence[Tensor | None]:
        """Send gradients back from a loss without the ``absent`` examples; return those of ``targets``.

        Raises:
            UnsupportedModel: if anything reached an absent example, at the inputs or at the output of a use.
        """
        unheard = [use for use in self.uses if use.handle is None and use.edge is not None]
        wanted: Any = [*targets, *self.inputs]
        if not wanted:
            return ()
        wanted += [use.edge for use in unheard]
        for use, place in zip(self.uses, itertools.count()):
            use.receive = functools.partial(self._inspect, place, absent)
        try:
            found: Sequence[Tensor | None] = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
            for use, gradient in zip(unheard, found[len(wanted) - len(unheard) :], strict=True):
                if gradient is not None:
                    use.hear(gradient)
        finally:
            for use in self.uses:
                use.receive = use.out_grad = None
        _check_inputs(found[len(targets) : len(wanted) - len(unheard)], absent)
        return found[: len(targets)]

    def _inspect(self, place: int, absent: Tensor, use: Use) -> None:
        """Inspect a gradient when it arrives, and release it: all of them together would take much memory."""
        gradient, use.out_grad = use.out_grad, None
        assert gradient is not None, "a use is looked at when its gradient has arrived"
        choices = self.options[place]
        if place not in self._heard:
            is_heard = bool(gradient.any())
            (self._heard if is_heard else self.silent).add(place)
            self.silent -= self._heard
        self.rounding = max(self.rounding, rounding_of([gradient]))
        self.is_clean = self.is_clean and is_finite(gradient)
        choices[:] = [axis for axis in choices if fits(axis, gradient, absent)]
        if not choices:
            raise self.refusals[place]

    def leave_out_pending(self) -> None:
        """Leave out the pending set now."""
        if self.pending is not None:
            absent, self.pending = self.pending, None
            self.leave_out(absent)


def single_example_axes(recording: Recording) -> tuple[ExampleAxis, ...]:
    """Return axes for a batch of one example, to which everything belongs."""
    return tuple(
        WholeAxis(axis=0) if use.output_shape[:1] == (1,) else FoldedAxis(examples_first=True) for use in recording.uses
    )


def trials(batch_size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield sets of examples to leave out, such that for every two examples one set has the first and not the second.

    Guarantee:
        A program that passes all of them lets no example of the batch reach the loss of another, in either direction.
        Fewer sets (odd against even, say) would pass a program that mixes examples two places apart.

    Each example carries a different half of a few marks, and each mark makes one set: of two different halves neither
    contains the other. That takes fewer backward passes than a set and its complement for every binary digit.
    """
    num_marks = next(count for count in itertools.count() if math.comb(count, count // 2) >= batch_size)
    halves = itertools.combinations(range(num_marks), num_marks // 2)
    marks = torch.zeros(batch_size, num_marks, dtype=torch.bool)
    for example, half in enumerate(itertools.islice(halves, batch_size)):
        marks[example, list(half)] = True
    yield from marks.to(device).unbind(1)


def run_trial(
    losses: Tensor, recording: Recording, roots: Sequence[bool], inputs: Sequence[Tensor], layout: Layout
) -> Trial:
    """Put a program on trial.

    The last set stays pending for :func:`check_sums`, whose backward pass can leave it out at no extra cost, unless
    something is in doubt by then.

    Args:
        losses: One per example.
        recording: The recorded forward pass.
        roots: For each use, whether a backward pass may stop there.
        inputs: The batch's tensors, as leaves that require gradients.
        layout: For names in messages.

    Raises:
        UnsupportedModel: if examples mix.
    """
    options = [list(candidates(use.output_shape, recording.batch_size)) for use in recording.uses]
    trial = new_trial(losses, recording, roots, inputs, options, layout)
    *sets, trial.pending = trials(recording.batch_size, losses.device)
    for absent in sets:
        trial.leave_out(absent)
    if not (trial.is_clean and trial.is_unambiguous):
        trial.leave_out_pending()
    return trial


def new_trial(
    losses: Tensor, recording: Recording, roots: Sequence[bool], inputs: Sequence[Tensor],
    options: list[list[ExampleAxis]], layout: Layout,
) -> Trial:  # fmt: skip
    """Return a trial with these possible axes, before any set of examples was left out."""
    return Trial(
        losses=losses,
        uses=list(recording.uses),
        ends=[use.edge for use, is_root in zip(recording.uses, roots, strict=True) if is_root and use.edge is not None],
        inputs=inputs,
        options=options,
        refusals=[_mixes_examples(use, recording, layout) for use in recording.uses],
        rounding=recording.rounding,
        is_clean=bool(losses.detach().isfinite().all()),
    )


def check_isolation(losses: Tensor, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Refuse losses in which examples reach each other, between these tensors and the losses.

    Where no axis is the examples', the first holds several rows per example, one example's rows after another's.
    """
    if len(losses) == 1:
        return
    known = losses.detach().isfinite()
    for absent in trials(len(losses), losses.device):
        present = ~absent & known
        if bool(present.any()):
            reached: Sequence[Tensor | None] = torch.autograd.grad(
                losses[present].sum(), [*outputs, *inputs], retain_graph=True, allow_unused=True
            )
            _check_inputs(reached, absent)


def _check_inputs(reached: Sequence[Tensor | None], absent: Tensor) -> None:
    for gradient in reached:
        if gradient is None:
            continue
        axes = [axis for axis in candidates(gradient.shape, len(absent)) if axis != FoldedAxis(examples_first=False)]
        if not any(fits(axis, gradient, absent) for axis in axes):
            raise UnsupportedModel(
                "Something mixes the examples of a batch: one example's loss depends on another example, so no "
                "per-example gradient exists. Usual causes: batch normalisation, centring or scaling by statistics of "
                "the batch, a loss averaged over the batch, or in-batch negatives. Make each example's loss depend on "
                "that example alone."
            )


def _mixes_examples(use: Use, recording: Recording, layout: Layout) -> UnsupportedModel:
    names = sorted({layout.names[position] for source in use.sources for position in source.parameters})
    if use.name in ("expand", "expand_as", "repeat", "tile", "broadcast_to"):
        return UnsupportedModel(
            f"'{use.name}' on {names} made as many copies as there are examples in this physical batch, but they are "
            "not one per example. Choose a physical_batch_size that differs from the lengths inside the model."
        )
    return UnsupportedModel(
        f"Something after operation '{use.name}' on {names} mixes the examples of a batch (its output has shape "
        f"{tuple(use.output_shape)} for {recording.batch_size} examples), so no per-example gradient exists. Usual "
        "causes: batch normalisation, a loss averaged over the batch, or in-batch negatives. Make each example's loss "
        "depend on that example alone. If nothing mixes them, rows were sorted, selected or split on the way: keep one "
        "row, or one block of rows, per example, and in the order of the examples."
    )


def check_sums(
    weighted_sum: Callable[[Tensor], Tensor], trial: Trial, weights: Tensor, lengths: Tensor,
    parameters: Sequence[nn.Parameter], layout: Layout, *, keep: Tensor | None, frame: Frame | None,
) -> None:  # fmt: skip
    """Refuse a program whose per-example gradients do not add up to autograd's gradient of the weighted losses.

    Two halves of the batch are compared; a fault of the program shows in both, the rounding of one wild example in one.
    The trial ends here: if a set is pending, the first half is the batch without it.

    Args:
        weighted_sum: Gives the flat sum over examples of weight times gradient, from the rules.
        trial: The findings of :func:`run_trial`.
        weights: One per example, zero for examples that are not finite.
        lengths: Length of each example's gradient, zero where the weight is.
        parameters: In the layout's order.
        layout: Where each parameter lies.
        keep: The coordinates that take part, or None for all.
        frame: The units in which ``weighted_sum`` and ``lengths`` are, or None for plain ones.

    Raises:
        UnsupportedModel: naming the parameters that differ, or that have no part in the loss; or if examples mix.
    """
    if not bool((weights > _LEAST_WEIGHT).all()):  # a smaller weight might hide influence on another
        trial.leave_out_pending()
    wrong = set(layout.names)
    for half in trial.halves():
        chosen = weights * half
        if not bool((chosen > 0).any()):
            continue
        truth = _autograd_sum(trial, chosen, parameters, layout)
        truth = truth if keep is None else truth * keep
        truth = truth if frame is None else frame.whitened(truth)
        found = weighted_sum(chosen)
        relative, absolute = tolerance_of(found.dtype, rounding=trial.rounding)
        slack = absolute * (chosen * lengths).sum()
        wrong &= {
            name
            for name, where in zip(layout.names, layout.slices, strict=True)
            if bool((found[where] - truth[where]).norm() > relative * truth[where].norm() + slack)
        }
        if not wrong:  # no parameter can be wrong in both halves any more
            return
    if wrong and bool((weights > 0).any()):
        raise no_sum(sorted(wrong))


def no_sum(names: Sequence[str]) -> UnsupportedModel:
    """Return the error that names parameters whose per-example gradients do not add up to autograd's."""
    return UnsupportedModel(
        f"The per-example gradients of {list(names)} do not add up to autograd's gradient: some operation on them "
        "could not be observed (a compiled region, a custom autograd function), has no exact rule, or mixes the "
        "examples of a batch. Call the model uncompiled and without custom functions on these parameters, or freeze "
        "them."
    )


def tolerance_of(dtype: torch.dtype, *, rounding: float) -> tuple[float, float]:
    """Return how far rounding may move a gradient: as a share of its length, and of the whole gradient's length.

    The coarsest precision in the program counts: models in double precision may take norms in single precision.
    """
    coarsest = max(rounding, torch.finfo(dtype).eps)
    return next((found for unit, found in _TOLERANCES if coarsest <= unit), _HALF_TOLERANCE)


def _autograd_sum(trial: Trial, weights: Tensor, parameters: Sequence[nn.Parameter], layout: Layout) -> Tensor:
    losses, sound = trial.losses, weights > 0
    with torch.enable_grad():
        loss = (losses[sound] * weights[sound].to(losses.dtype)).sum()
    if trial.pending is None:
        gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    else:
        absent, trial.pending = trial.pending, None
        gradients = trial.send_back(loss, parameters, absent)
    idle = sorted(name for name, gradient in zip(layout.names, gradients, strict=True) if gradient is None)
    if idle and len(losses) > 1:  # a single example may leave parts of a model idle, such as experts
        raise took_no_part(idle)
    pairs = zip(gradients, parameters, strict=True)
    found = [torch.zeros_like(parameter) if gradient is None else gradient for gradient, parameter in pairs]
    return torch.cat([gradient.reshape(-1).to(weights.dtype) for gradient in found])
