"""The reference engine: the model run one example at a time under vmap, every gradient written out.

Needs memory for batch size times parameters and a second forward pass; all other engines are tested against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from privet.errors import LoopError, UnsupportedModel
from privet.gradients.capture.capture import Capture
from privet.gradients.capture.observer import rounding_of
from privet.gradients.capture.reaching import check_module_hooks
from privet.gradients.capture.recorded import is_batch, tensors_in
from privet.gradients.engines.clipper import Clipper
from privet.gradients.engines.holding import check_losses, check_may_begin, check_norms
from privet.gradients.engines.support import parameters_behind, quiet_vmap
from privet.gradients.engines.trial import check_isolation, tolerance_of
from privet.gradients.forms.per_example import Explicit
from privet.gradients.norms.planner import Planner
from privet.isolation.backward import followed
from privet.isolation.parts import flattened, tensors_of
from privet.isolation.place import Place, Verdict
from privet.isolation.watch import Watch
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum


@dataclass(frozen=True, kw_only=True)
class Functional:
    """vmap over the whole model: exact for any model whose forward runs under vmap without drawing randomness.

    Attributes:
        chunk_size: How many examples go through at once; None for all of a physical batch.
    """

    chunk_size: int | None = None

    def start(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout, watch: Watch | None = None
    ) -> RunningFunctional:
        """Bind to a model; a forward hook notes its inputs and output until the session closes."""
        return RunningFunctional(model, parameters, layout, self.chunk_size, watch or Watch())


class RunningFunctional:
    """:class:`Functional` bound to a model."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        layout: Layout,
        chunk_size: int | None,
        watch: Watch,
    ) -> None:
        """Hook the model's forward."""
        self.watch = watch
        self._model, self._parameters, self._layout, self._chunk_size = model, parameters, layout, chunk_size
        self._planner = Planner()
        self._capture: Capture | None = None
        self._inputs: Sequence[Tensor] = ()
        self._has_compared_norms = False
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        self._handle: RemovableHandle = model.register_forward_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self._capture is None or not torch.is_grad_enabled():
            return None
        output = _apart(output)
        self._calls.append((args, kwargs, output))
        return output

    @property
    def wants_input_gradients(self) -> bool:
        """This engine is the reference: it puts every physical batch on trial."""
        return True

    def begin(
        self, batch_size: int, inputs: Sequence[Tensor] = (), *, can_repeat: bool = False, may_trace: bool = True,
        may_defer: bool = False,
    ) -> None:  # fmt: skip
        """Note the next call of the model; a mode without parameters follows which tensors descend from examples."""
        check_may_begin(self._capture, self._parameters, self._layout)
        check_module_hooks(self._model)
        self._inputs = inputs
        self._capture = Capture({}, batch_size, programs=self.watch.programs, may_trace=may_trace)
        self._capture.open()

    def all_finite(self) -> bool:
        """This engine looks at every gradient at once."""
        return True

    def abandon(self) -> None:
        """Forget the noted call."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.close()
        self._calls.clear()
        self._inputs = ()

    def close(self) -> None:
        self.abandon()
        self.watch.programs.unmark()
        self._handle.remove()

    def add_clipped(self, losses: Tensor, rule: ClippingRule, into: ClippedSum) -> Tensor:
        """Recompute every example's gradient and add the clipped sum; see :meth:`RunningEngine.add_clipped`."""
        if self._capture is None:
            raise LoopError("step.backward(losses) was called outside step.microbatches().")
        recording, calls, inputs = self._capture.recording, list(self._calls), self._inputs
        batch_size, follower = recording.batch_size, recording.follower
        self.abandon()
        losses = check_losses(losses, batch_size)
        assert follower is not None, "every batch is followed"
        is_proven = self.watch.judge(follower.prove(losses))
        if len(calls) != 1:
            raise UnsupportedModel(
                f"The functional engine needs exactly one call of the model per physical batch, found {len(calls)}. "
                "Use the book-keeping engine."
            )
        args, kwargs, output = calls[0]
        outputs = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        live = _distinct(outputs)
        self._check_only_through(losses, [outputs[index] for index in live])
        moving = [tensor for tensor in tensors_of((args, kwargs)) if is_batch(tensor)]
        for tensor in (*moving, *(outputs[index] for index in live)):
            _check_first(follower.verdict(tensor), tensor, batch_size)
        with torch.autocast(losses.device.type, enabled=False):
            check_isolation(losses, [outputs[index] for index in live], inputs)
            with followed(follower, self.watch):
                found: Sequence[Tensor | None] = torch.autograd.grad(
                    losses.sum(), [outputs[index] for index in live], retain_graph=True, allow_unused=True
                )
            cotangents = {index: value for index, value in zip(live, found, strict=True) if value is not None}
            with torch.no_grad():
                clipper = Clipper(into, batch_size, self._planner)
                gradients, replayed = self._gradients(args, kwargs, cotangents, batch_size)
                _check_replay(replayed, [outputs[index] for index in cotangents], losses)
                tolerance = tolerance_of(into.flat.dtype, rounding=rounding_of(outputs))
                _check_gradients(losses, gradients, self._parameters, self._layout, tolerance)
                for position, part in enumerate(gradients):
                    clipper.take(position, Explicit(gradients=part))
                norms = clipper.finish(rule)
                self._compare_norms(losses, norms, rule, into, tolerance)
                if is_proven:
                    follower.remember()
                return norms

    def _compare_norms(
        self, losses: Tensor, norms: Tensor, rule: ClippingRule, into: ClippedSum, tolerance: tuple[float, float]
    ) -> None:
        if self._has_compared_norms:
            return
        check_norms(
            losses, norms, self._parameters, self._layout, keep=into.keep, frame=into.frame, tolerance=tolerance
        )
        self._has_compared_norms = True

    def _check_only_through(self, losses: Tensor, outputs: Sequence[Tensor]) -> None:
        stop = {tensor.grad_fn for tensor in outputs}
        beside = parameters_behind(losses.grad_fn, self._parameters, stop=stop)
        if beside:
            names = sorted(self._layout.names[position] for position in beside)
            raise UnsupportedModel(
                f"The loss reaches {names} without going through the model's output, which the functional engine "
                "cannot follow. Use the book-keeping engine."
            )

    def _gradients(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], cotangents: Mapping[int, Tensor], batch_size: int
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return every parameter's per-example gradients, and the outputs of the replayed model."""
        fixed = {name: value.detach() for name, value in self._model.named_parameters(remove_duplicate=False)}
        fixed |= dict(self._model.named_buffers(remove_duplicate=False))
        leaves, structure = flattened((args, kwargs))
        moving = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and is_batch(leaf)]
        by_name = _names_of(self._model, self._parameters)

        def one(examples: tuple[Tensor, ...], cotangent: tuple[Tensor, ...]) -> tuple[Any, Any]:
            filled = list(leaves)
            for index, example in zip(moving, examples, strict=True):
                filled[index] = example
            inner_args, inner_kwargs = structure.filled(filled)

            def forward(*parameters: Tensor) -> tuple[Tensor, ...]:
                values = dict(fixed)
                for names, value in zip(by_name, parameters, strict=True):
                    values.update(dict.fromkeys(names, value))
                result = torch.func.functional_call(self._model, values, inner_args, inner_kwargs)
                found = [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]
                return tuple(found[index] for index in cotangents)

            outputs, pull = torch.func.vjp(forward, *(parameter.detach() for parameter in self._parameters))[:2]
            return tuple(pull(cotangent)), tuple(outputs)

        # every example keeps an axis for its rows: usually one, several when the model sees several views of it
        examples = tuple(_rows_of(leaves[index].detach(), batch_size) for index in moving)
        arriving = tuple(_rows_of(value, batch_size) for value in cotangents.values())
        try:
            with quiet_vmap():
                mapped = torch.func.vmap(one, chunk_size=self._chunk_size, randomness="error")
                gradients, replayed = mapped(examples, arriving)
                return gradients, tuple(out.flatten(0, 1) for out in replayed)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedModel(
                f"The model does not run one example at a time under vmap: {str(error).splitlines()[0]} Either it "
                "mixes the examples of a batch, or vmap does not know one of its operations. Use the book-keeping "
                "engine, or move random layers (dropout) to eval()."
            ) from error


def _apart(output: Any) -> Any:
    """Return a model's output with every tensor copied, where it has several that gradients flow back to.

    One output may be computed from another (logits from features). Its gradient would then hold what reaches it through
    the other as well, and the other's would be counted twice. Nothing but the loss is computed from the copies.

    Raises:
        UnsupportedModel: a container of several outputs cannot be taken apart.
    """
    if sum(tensor.requires_grad for tensor in tensors_in(output)) < 2:
        return output
    copies: dict[int, Tensor] = {}

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return copies.setdefault(id(leaf), leaf.clone() if leaf.requires_grad else leaf)
        if any(tensor.requires_grad for tensor in tensors_in(leaf)):
            raise UnsupportedModel(
                f"The model returns several tensors in a {type(leaf).__name__}, which the functional engine cannot "
                "take apart, and one of them may be computed from another. Return a tuple, a list or a dict."
            )
        return leaf

    return pytree.tree_map(copy, output)


def _distinct(outputs: Sequence[Tensor]) -> list[int]:
    """Return the places of the outputs that gradients flow back to, each tensor once."""
    first: dict[int, int] = {}
    for index, tensor in enumerate(outputs):
        if tensor.requires_grad:
            first.setdefault(id(tensor), index)
    return list(first.values())


def _check_gradients(
    losses: Tensor, gradients: Sequence[Tensor], parameters: Sequence[nn.Parameter], layout: Layout,
    tolerance: tuple[float, float],
) -> None:  # fmt: skip
    """Refuse gradients that do not add up to autograd's, with a weight of its own for every example.

    Examples taken for each other, a part counted twice and a part that is missing all show, and in both halves of a
    batch; the rounding of one wild example shows in one.
    """
    count = len(losses)
    rows = [part.reshape(count, -1).float() for part in gradients]
    lengths = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in rows]).norm(dim=0)
    sound = lengths.isfinite() & losses.detach().isfinite()
    weights = torch.linspace(1, 2, count, device=losses.device).div(lengths.clamp_min(1))
    first = torch.arange(count, device=losses.device) % 2 == 0
    wrong = set(layout.names)
    for half in (first & sound, ~first & sound):
        if bool(half.any()):
            wrong &= _differing(losses, gradients, parameters, layout, weights, lengths, half, tolerance)
    if not bool(sound.any()):
        return
    if wrong:
        raise UnsupportedModel(
            f"The gradients of {sorted(wrong)}, computed one example at a time, do not add up to autograd's. Either "
            "examples do not lie on the first axis of what goes in and out of the model, or a hook changes its outputs "
            "or its gradients. Use the book-keeping engine."
        )


def _differing(
    losses: Tensor, gradients: Sequence[Tensor], parameters: Sequence[nn.Parameter], layout: Layout,
    weights: Tensor, lengths: Tensor, chosen: Tensor, tolerance: tuple[float, float],
) -> set[str]:  # fmt: skip
    """Return the names of the parameters for which the weighted sum over some examples differs from autograd's."""
    relative, absolute = tolerance
    found: Sequence[Tensor | None] = torch.autograd.grad(
        losses, parameters, grad_outputs=(weights * chosen).to(losses.dtype), retain_graph=True, allow_unused=True
    )
    slack = absolute * (weights * lengths)[chosen].sum()
    differing = set()
    for name, part, truth in zip(layout.names, gradients, found, strict=True):
        total = torch.tensordot(weights[chosen].to(part.dtype), part[chosen], 1)
        expected = torch.zeros_like(total) if truth is None else truth
        if bool((total - expected).norm() > relative * expected.norm() + slack):
            differing.add(name)
    return differing


def _check_first(verdict: Verdict, tensor: Tensor, batch_size: int) -> None:
    """Refuse a tensor that goes in or out of the model with its examples elsewhere than on the first axis."""
    is_first = isinstance(verdict, Place) and verdict.axis == 0 and verdict.before == 1
    if not is_first or tensor.dim() == 0 or len(tensor) % batch_size:
        raise UnsupportedModel(
            f"The model works with a tensor of shape {list(tensor.shape)} for a physical batch of {batch_size} "
            "examples. The functional engine needs the examples on the first axis of what goes in and out of the "
            "model. Use the book-keeping engine."
        )


def _rows_of(tensor: Tensor, batch_size: int) -> Tensor:
    """Return the tensor as ``[example, row of the example, ...]``; its first axis holds one example after another."""
    return tensor.reshape(batch_size, len(tensor) // batch_size, *tensor.shape[1:])


def _check_replay(replayed: Sequence[Tensor], outputs: Sequence[Tensor], losses: Tensor) -> None:
    """Refuse a model that gives most examples another output alone than in company: it mixes examples.

    Most, not one: a single wild example may round differently, and must not decide whether training runs.
    """
    known = losses.detach().isfinite()
    for alone, together in zip(replayed, outputs, strict=True):
        alike = torch.isclose(alone, together, rtol=1e-2, atol=1e-3) if alone.shape == together.shape else known & False
        differing = known & alike.reshape(len(known), -1).all(1).logical_not()
        if 2 * int(differing.sum()) > int(known.sum()):
            raise UnsupportedModel(
                "The model mixes the examples of a batch, or draws randomness: it gives examples another output alone "
                "than within their batch. Use layers that treat examples one by one, or the book-keeping engine."
            )


def _names_of(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[list[str]]:
    """All names under which each parameter is known; a tied parameter has several."""
    found: dict[int, list[str]] = {id(parameter): [] for parameter in parameters}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in found:
            found[id(parameter)].append(name)
    return [found[id(parameter)] for parameter in parameters]
