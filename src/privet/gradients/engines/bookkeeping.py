"""The default engine: one forward, one backward without weight gradients, norms and sums from recorded factors.

Autograd computes only the gradients between layers. Each parameter's per-example norm and clipped sum are then formed
from the layer's inputs and output gradients (book-keeping; Bu et al. 2023), so nothing is computed twice and no
per-example gradient is written out unless that is cheapest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from privet.errors import LoopError, NoExampleRule
from privet.gradients.capture.capture import Capture
from privet.gradients.capture.in_place import Function
from privet.gradients.capture.reaching import check_module_hooks, reach_of
from privet.gradients.capture.recorded import Reach, Recording, send_back, sources_of
from privet.gradients.engines.clipper import Clipper, SumPlaces
from privet.gradients.engines.engine import NewProgram, NotTried, Present
from privet.gradients.engines.holding import check_losses, check_may_begin, check_norms
from privet.gradients.engines.one_by_one import check_functions, take_one_by_one
from privet.gradients.engines.prepared import Collector, Prepared
from privet.gradients.engines.scattered_trial import accompany, check_scattered, not_scattered
from privet.gradients.engines.trial import Trial, check_sums, new_trial, run_trial, single_example_axes, tolerance_of
from privet.gradients.norms.budgets import Balanced, Budget
from privet.gradients.norms.kernel_warmup import KernelWarmup, launches_of
from privet.gradients.norms.known_times import KnownTimes
from privet.gradients.norms.planner import TRACEABLE, Planner
from privet.gradients.rules.example_axis import FRONT, ExampleAxis, FoldedAxis, axis_of, candidates
from privet.gradients.rules.layer_rules import RULES, by_vmap
from privet.gradients.rules.rule_tools import Rule
from privet.isolation.backward import followed
from privet.isolation.place import Place
from privet.isolation.programs import Proof
from privet.isolation.watch import Watch
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum

Signature = tuple[tuple[Function, ...], tuple[tuple[str, tuple[ExampleAxis, ...]], ...]]
"""Distinguishes programs: every operation on the examples, and the possible example axes at each use of parameters."""

# Number of trials for a program whose examples never come as leaves.
_TRIALS_WITHOUT_LEAVES = 2
# A model with more programs than the first number (one that skips layers at random, say) always gets its examples as
# leaves; the findings of as many programs as the second are kept.
_FEW_PROGRAMS, _MOST_PROGRAMS = 4, 1024


@dataclass(frozen=True, kw_only=True)
class BookKeeping:
    """One backward, exact for every operation that has a rule or runs under vmap.

    Attributes:
        rules: Rules by operation; extend a copy of ``RULES`` to teach the engine a new one.
        memory: How much memory may be spent on speed.
    """

    rules: Mapping[Function, Rule] = field(default_factory=lambda: RULES)
    memory: Budget = field(default_factory=Balanced)

    def start(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout, watch: Watch | None = None
    ) -> RunningBookKeeping:
        devices = {parameter.device for parameter in parameters}
        known = KnownTimes.of(devices.pop()) if len(devices) == 1 else None
        planner = Planner(budget=self.memory, known=known)
        return RunningBookKeeping(
            model=model, rules=self.rules, parameters=parameters, layout=layout, planner=planner, watch=watch or Watch()
        )


@dataclass(kw_only=True)
class RunningBookKeeping:
    """:class:`BookKeeping` bound to a model."""

    model: nn.Module
    rules: Mapping[Function, Rule]
    parameters: Sequence[nn.Parameter]
    layout: Layout
    planner: Planner = field(default_factory=Planner)
    watch: Watch = field(default_factory=Watch)
    _capture: Capture | None = None
    _inputs: Sequence[Tensor] = ()
    _axes: dict[Signature, tuple[ExampleAxis, ...]] = field(default_factory=dict)
    _reaches: dict[Signature, Reach] = field(default_factory=dict)
    _without_rules: set[Signature] = field(default_factory=set)  # programs that need a backward pass for each example
    _programs: set[tuple[Function, ...]] = field(default_factory=set)
    _tried_without_leaves: Counter[Signature] = field(default_factory=Counter)
    _has_leaves: bool = False
    _can_repeat: bool = False
    _may_defer: bool = False
    _unread: list[Tensor] = field(default_factory=list)  # on the device: whether sums that nobody looked at are sound
    _num_present: int | None = None  # rows after so many are padding; None where there is none
    _met_new_program: bool = False
    _expansions: dict[int, bool] = field(default_factory=dict)
    _warmup: KernelWarmup | None = None

    def __post_init__(self) -> None:
        self._sources, self._places = sources_of(self.parameters), SumPlaces(layout=self.layout)

    @property
    def forms_by_rules(self) -> bool:
        """Whether rules formed the gradients of all programs so far, and not a backward pass for each example."""
        return not self._without_rules

    @property
    def wants_input_gradients(self) -> bool:
        """Until its program has passed a trial, and after another was met, examples are handed out as leaves."""
        is_first = not self._axes and not self.watch.programs.by_size
        return is_first or self._met_new_program or len(self._programs) > _FEW_PROGRAMS

    def begin(
        self, batch_size: int, inputs: Sequence[Tensor] = (), *, can_repeat: bool = False, may_trace: bool = True,
        may_defer: bool = False,
    ) -> None:  # fmt: skip
        """Enter the capture mode; it stays on until the losses come back."""
        check_may_begin(self._capture, self.parameters, self.layout)
        self._inputs, self._has_leaves = inputs, self.wants_input_gradients or bool(inputs)
        self._can_repeat, self._may_defer = can_repeat, may_defer
        follows = self.wants_input_gradients and self.planner.plain_bytes is None
        self._capture = Capture(
            self._sources, batch_size, self._expansions,
            follows_memory=follows, programs=self.watch.programs, may_trace=may_trace,
        )  # fmt: skip
        self._capture.open()

    def abandon(self) -> None:
        """Leave the capture mode and drop its notes."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.close().release()

    def all_finite(self) -> bool:
        unread, self._unread = self._unread, []
        return not unread or bool(torch.stack(unread).all())

    def close(self) -> None:
        self.abandon()
        self.watch.programs.unmark()

    def add_clipped(self, losses: Tensor, rule: ClippingRule, into: ClippedSum) -> Tensor:
        """Run the backward pass and add the clipped sum; see :meth:`RunningEngine.add_clipped`."""
        return self._add(losses, rule, into, None).norms

    def add_present(self, losses: Tensor, rule: ClippingRule, into: ClippedSum, present: Tensor) -> Present:
        """Add the clipped sum without consulting the host; see :meth:`ReplayableEngine.add_present`."""
        return self._add(losses, rule, into, present)

    def add_scattered(self, losses: Tensor, rule: ClippingRule, into: ClippedSum, num_present: int) -> Tensor:
        """Add to a sum of which every rank holds a part; see :meth:`ScatteringEngine.add_scattered`."""
        self._num_present, self._may_defer = num_present, False
        try:
            return self._add(losses, rule, into, None).norms[:num_present]
        finally:
            self._num_present = None

    def _add(self, losses: Tensor, rule: ClippingRule, into: ClippedSum, present: Tensor | None) -> Present:
        capture, self._capture = self._capture, None
        if capture is None:
            raise LoopError("step.backward(losses) was called outside step.microbatches().")
        recording = capture.close()
        try:
            losses = check_losses(losses, recording.batch_size)
            # norms and sums in half precision would break the bound, whatever the forward pass ran in
            with torch.autocast(losses.device.type, enabled=False):
                return self._add_recorded(losses, recording, rule, into, present)
        finally:
            self._inputs = ()
            recording.release()

    def expect_replays(self) -> None:
        """Leave launches out of account when strategies are compared."""
        self.planner.counts_launches = False

    @contextmanager
    def traceable(self) -> Iterator[None]:
        """Plan anew without hand-written kernels, which a tracer does not see."""
        planner = self.planner
        self.planner = Planner(
            strategies=TRACEABLE,
            budget=planner.budget,
            plain_bytes=planner.plain_bytes,
            counts_launches=planner.counts_launches,
            known=planner.known,
        )
        try:
            yield
        finally:
            self.planner = planner

    def _add_recorded(
        self, losses: Tensor, recording: Recording, rule: ClippingRule, into: ClippedSum, present: Tensor | None
    ) -> Present:
        assert recording.follower is not None, "every batch is followed"
        proof = recording.follower.prove(losses)
        if recording.follower.is_lost:
            raise NotTried("A program must be proven before it can be replayed.")
        prepared = None if proof.known is None else proof.known.prepared
        fits = prepared is not None and prepared.fits(recording, self.planner)
        # a trial gathers the parameters of a sharded model on all ranks, and batches of one length are new on one alone
        accompanies = into.scatter is not None and into.scatter.is_any(not fits and proof.trace is not None)
        if prepared is None or not fits:
            return self._add_examined(losses, recording, proof, rule, into, present, accompanies=accompanies)
        self.watch.check_numbers(proof)
        clipper = Clipper(
            into, recording.batch_size, self.planner, present=present, known=prepared.measured, places=self._places,
            defers=self._may_defer, num_present=self._num_present,
        )  # fmt: skip
        if prepared.is_by_rules:
            self._collect(losses, recording, prepared, clipper, keep_graph=accompanies)
        else:
            take_one_by_one(losses, self.parameters, clipper, asks=present is None)
        with torch.no_grad():
            norms = clipper.finish(rule)
        if accompanies and into.scatter is not None:
            accompany(losses, self.parameters, into.scatter)
        if clipper.is_finite is not None:
            self._unread.append(clipper.is_finite)
        return Present(norms, clipper.needs_check or not prepared.is_by_rules, is_known=True)

    def _add_examined(
        self, losses: Tensor, recording: Recording, proof: Proof, rule: ClippingRule, into: ClippedSum,
        present: Tensor | None, *, accompanies: bool,
    ) -> Present:  # fmt: skip
        """Prepare the computation of this program's gradients, run it, and keep it for the program's next run."""
        assert recording.follower is not None, "every batch is followed"
        size, remembered = recording.batch_size, None
        outputs = tuple((use.name, candidates(use.output_shape, size)) for use in recording.uses)
        signature = (tuple(recording.program), outputs)
        if self._warmup is None and losses.is_cuda:  # threads build while the proof runs
            self._warmup = KernelWarmup(launches_of(recording, self.rules, self.planner), losses.device)
        trial, is_by_rules = None, signature not in self._without_rules
        fault: NoExampleRule | None = None
        axes: Sequence[ExampleAxis]
        check_module_hooks(self.model)
        is_proven = self.watch.judge(proof)
        if is_proven:
            try:
                reach = self._reach(losses, recording, signature)
                axes = self._proven_axes(proof, recording)
            except NoExampleRule as error:
                fault = error
                reach, is_by_rules = Reach(roots=(False,) * len(recording.uses), num_reached=0), False
                axes = (FRONT,) * len(recording.uses)  # they are not asked for
            if proof.trace is not None:
                trial = new_trial(losses, recording, reach.roots, self._inputs, [[axis] for axis in axes], self.layout)
        elif present is not None:
            raise NotTried("A program that is not proven must pass a trial before it can be replayed.")
        elif into.scatter is not None:
            raise not_scattered(str(proof.losses))
        else:
            reach = self._reach(losses, recording, signature)
            axes, trial, remembered = self._tried_axes(losses, recording, signature, reach)
        if trial is not None and size > 1 and self.planner.plain_bytes is None:
            self.planner.plain_bytes = recording.held_bytes() / size
        if self._warmup is not None:
            self._warmup.wait()
        prepared = Prepared(
            axes=axes,
            rules=[self.rules.get(use.function, by_vmap) for use in recording.uses],
            reach=reach,
            num_uses=Counter(spot for use in recording.uses for source in use.sources for spot in source.parameters),
            shapes=[use.output_shape for use in recording.uses],
            planner=self.planner,
            is_by_rules=is_by_rules,
        )
        is_kept = trial is None and proof.known is not None and recording.follower.tracer is None
        following = replace(prepared) if is_kept else None  # the choices hold from the next run on
        if following is not None and is_by_rules:
            following.bind(recording, self.layout)
        clipper = Clipper(into, size, self.planner, present=present, num_present=self._num_present)
        with followed(recording.follower, self.watch):
            if prepared.is_by_rules:
                try:
                    self._collect(losses, recording, prepared, clipper, keep_graph=is_proven or trial is not None)
                except NoExampleRule as error:
                    if not is_proven:
                        raise
                    fault = error
                    prepared.is_by_rules, clipper = False, Clipper(into, size, self.planner, present=present)
            if not prepared.is_by_rules and into.scatter is not None:
                raise not_scattered(str(fault)) from fault
            if not prepared.is_by_rules:
                check_functions(recording.follower, self.parameters, fault)
                self._without_rules.add(signature)
                take_one_by_one(losses, self.parameters, clipper, asks=present is None)
        with torch.no_grad():
            norms = clipper.finish(rule)
            if trial is not None:
                runs_user_code = recording.follower.has_code
                self._check_sums(trial, norms, clipper, into, present, is_linear=not runs_user_code)
                self._remember(trial, recording, remembered)
            elif accompanies and into.scatter is not None:
                accompany(losses, self.parameters, into.scatter)
            if trial is None and following is not None and proof.known is not None:
                following.measured, following.revision = clipper.measured, self.planner.revision
                following.is_by_rules = prepared.is_by_rules
                proof.known.prepared = following
            needs_check = clipper.needs_check or not prepared.is_by_rules
            return Present(norms, needs_check, is_known=proof.known is not None)

    def _collect(
        self, losses: Tensor, recording: Recording, prepared: Prepared, clipper: Clipper, *, keep_graph: bool = False
    ) -> None:
        """Run the backward pass and hand the per-example gradients of every parameter to the clipper."""
        collector = Collector(
            prepared=prepared, batch_size=recording.batch_size, parameters=self.parameters, clipper=clipper,
            has_code_on_the_way=recording.asks_derived,
        )  # fmt: skip
        receive = collector.receive if prepared.alike and clipper.takes_layers else collector.take
        send_back(losses.sum(), recording, prepared.reach.roots, keep_graph=keep_graph, receive=receive)
        prepared.reach.check_heard(recording, self.layout)
        with torch.no_grad():
            collector.finish()

    def _proven_axes(self, proof: Proof, recording: Recording) -> Sequence[ExampleAxis]:
        if recording.hidden is not None:
            raise recording.hidden
        if recording.batch_size == 1:
            return single_example_axes(recording)
        for use, place in zip(recording.uses, proof.uses, strict=True):
            if not isinstance(place, Place) or place.num != recording.batch_size:
                # a parameter that makes rows of its own, or a Python loop over some of the examples at a time
                raise NoExampleRule(f"It is not known where the examples lie in the result of '{use.name}'.")
        return tuple(axis_of(place) for place in proof.uses if isinstance(place, Place))

    def _tried_axes(
        self, losses: Tensor, recording: Recording, signature: Signature, reach: Reach
    ) -> tuple[Sequence[ExampleAxis], Trial | None, Signature | None]:
        """Find by experiment how the examples lie, in a program for which the isolation rules cannot say it."""
        if recording.hidden is not None:
            raise recording.hidden
        if signature in self._axes:
            return self._axes[signature], None, None
        if self._can_repeat and not self._has_leaves and signature[0] not in self._programs:
            self._met_new_program = True
            raise NewProgram
        trial = run_trial(losses, recording, reach.roots, self._inputs, self.layout)
        return trial.axes, trial, signature

    def _reach(self, losses: Tensor, recording: Recording, signature: Signature) -> Reach:
        """Return the reach of a program; if it is new, check first that every parameter is accounted for."""
        reach = self._reaches.get(signature)
        if reach is None:
            reach = reach_of(losses, recording, self.parameters, self.layout)
            if len(self._reaches) < _MOST_PROGRAMS:
                self._reaches[signature] = reach
        return reach

    def _remember(self, trial: Trial, recording: Recording, signature: Signature | None) -> None:
        """Keep the findings about a program; those of a trial only if it could have found everything.

        A program whose examples were not leaves may have mixed them before the first parameter. It is tried again with
        the next batch, whose examples will be leaves; if they never are, two trials must do. A known program that
        differs only because the number of examples differs needs no leaves.
        """
        assert recording.follower is not None, "every batch is followed"
        moves = recording.rearranges or (recording.packs and any(map(_is_folded, trial.axes)))
        if not trial.is_clean:
            return
        if signature is None:
            recording.follower.remember()
            return
        if not trial.is_unambiguous or trial.silent or moves:
            return
        if not self._has_leaves and signature[0] not in self._programs:
            self._met_new_program = True
            self._tried_without_leaves[signature] += 1
            if self._tried_without_leaves[signature] < _TRIALS_WITHOUT_LEAVES:
                return
        self._met_new_program = False
        if len(self._axes) < _MOST_PROGRAMS:
            self._axes[signature] = trial.axes
            self._programs.add(signature[0])

    def _check_sums(
        self, trial: Trial, norms: Tensor, clipper: Clipper, into: ClippedSum, present: Tensor | None, *,
        is_linear: bool,
    ) -> None:  # fmt: skip
        """Compare with autograd, with all examples clipped: rounding of a huge one would hide the others.

        User code in the backward pass may treat a scaled gradient differently (clamp it, say), so such programs are
        compared on the unscaled losses.
        """
        sound = norms.isfinite().all(1) & trial.losses.detach().isfinite()
        sound = sound if present is None else sound & present  # the clipper has taken out the padding
        if self._num_present is not None:
            sound[self._num_present :] = False
        factors = clipper.factors.amin(1)
        weights = (factors if is_linear else torch.ones_like(factors)).masked_fill(~sound, 0)
        lengths = torch.linalg.vector_norm(norms, dim=1).masked_fill(~sound, 0)
        tolerance = tolerance_of(norms.dtype, rounding=trial.rounding)
        if into.scatter is not None:
            check_scattered(
                trial, clipper.weighted_part, weights, norms.masked_fill(~sound.unsqueeze(1), math.nan), lengths,
                self.parameters, self.layout, tolerance=tolerance, scatter=into.scatter,
            )  # fmt: skip
            return
        check_sums(
            clipper.weighted_sum, trial, weights, lengths, self.parameters, self.layout,
            keep=into.keep, frame=into.frame,
        )  # fmt: skip
        check_norms(
            trial.losses, norms, self.parameters, self.layout, keep=into.keep, frame=into.frame, tolerance=tolerance
        )


def _is_folded(axis: ExampleAxis) -> bool:
    return isinstance(axis, FoldedAxis)
