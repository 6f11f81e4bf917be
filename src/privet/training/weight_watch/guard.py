"""The guard of a run: between two private updates nothing may change the tensors of a model and its optimizer.

The guard compares three things: the tensors that are held and their places in memory; torch's counters of changes in
place; and the bits, which also show writes past the counters (``.data``, numpy, other libraries).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as torch_optimizer

from privet.errors import LoopError, UnsupportedModel, WeightsChanged
from privet.gradients.sharding.local import settle
from privet.mechanism.noise import Noise
from privet.mechanism.sums import ClippedSum
from privet.training.loop_events import Observer
from privet.training.weight_watch.fingerprints import Fingerprints
from privet.training.weight_watch.following import Following
from privet.training.weight_watch.holdings import Holdings, changes_between, likely_cause, listed
from privet.training.weight_watch.pages import Comparison

# In a large model so many pages at least, and this share of all, are read at a step that does not read all of them.
_LEAST_PAGES, _SHARE = 4, 16
_TRUSTED = ("torch.optim.", "privet.training.optimizers")


class LoopGuard(Observer):
    """Lets private updates change the tensors of a model and its optimizer, and refuses every other change.

    Guarantee:
        Between two private updates, every change that torch counts, and every tensor that was replaced or moved, is
        found at the next look. A look is taken before each update, at ``guarantee()``, at checkpoints and at the exit;
        physical batches are followed by the counters alone.
        Changes that torch does not count are found by fingerprints (``weight_watch.fingerprints``) taken
        after an update and compared at the looks that follow. Models of up to a million numbers (on a device, sixteen
        million), optimizer state included, are taken as a whole after every update; larger ones as a whole after
        updates 0, 1, 2, 4, 8 and so on, the last one and those before a checkpoint, and otherwise a sixteenth of
        their pages, chosen at random. On CUDA devices the answer is read when it is there, at the latest at the next
        look at a whole model, at ``guarantee()`` and at the exit.
        What can pass unnoticed, therefore: a write past torch's counters that touches only pages of a large model
        that were not chosen; one that is undone before the next look; and state that is kept neither in the model's
        parameters and buffers nor in the optimizer's state.
        torch's own optimizers and this library's are trusted to move the weights by the gradients they are given.
        Other code that runs during an update (an optimizer of another make, hooks, a replaced ``step``) is followed
        operation by operation (:mod:`privet.training.weight_watch.following`).

    Attributes:
        is_broken: Whether a change was found that no private update made. Nothing is promised after it.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, found: Callable[[], None],
        gathered: Mapping[int, nn.Parameter] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Accept the present state.

        Args:
            model: Guarded.
            optimizer: Guarded, and kept from stepping outside ``opened``.
            found: Called once, before the first error of a change is raised.
            gathered: The shards that the model holds in place of whole parameters, by the identity of the latter.
        """
        self._optimizer, self._found = optimizer, found
        self._sharded = model if gathered else None
        self._holdings = Holdings(model, optimizer, gathered=gathered)
        self._trained = {id(value) for value in self._holdings.parameters.values() if value.requires_grad}
        self._random = random.SystemRandom()
        self._pending: deque[Comparison] = deque()
        self._prints, self._held = Fingerprints.of({}), dict[str, Tensor]()
        self._where: Any = None
        self.is_broken, self._may_step, self._was_read_in_step = False, False, False
        self.resume(0)
        self.accept(reads_all=True)
        self._hook = optimizer.register_step_pre_hook(self._check_step)

    def resume(self, steps_taken: int) -> None:
        """Count from the steps that are in the model."""
        self._num_updates = steps_taken
        # all bits are compared at powers of two, since that takes a pass over the weights
        self._is_deep = steps_taken & (steps_taken - 1) == 0

    def close(self) -> None:
        """Give the optimizer back."""
        self._hook.remove()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of a guarantee about tensors that cannot be read."""
        if not self._prints.unseen:
            return ()
        return (f"nothing wrote past torch's counters into {listed(self._prints.unseen)}, whose bits cannot be read",)

    def pass_begins(self) -> None:
        """Refuse every change since the last update that torch counts, and at some steps every other one."""
        self.look(waits=True, reads_bits=self._is_deep)
        self._was_read_in_step = self._is_deep
        self._check_trained()

    def forward_ends(self) -> None:
        """Refuse a change by the forward pass; the counters alone are compared."""
        if self._holdings.counters() != self._counters:
            self.note()
            raise UnsupportedModel(_forward_words(changes_between(self._places, self._holdings.held())))

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        self.look(waits=self._is_deep)
        self._check_trained()

    @contextmanager
    def updating(self, *, is_kept: bool) -> Iterator[None]:
        """Let a private update change the weights; also one that broke off is accepted, for its gradients had noise.

        Args:
            is_kept: Whether the weights will be written to a checkpoint or are the last, so that all are compared.

        Raises:
            WeightsChanged: of the update itself, if it used anything but the gradients it was given.
        """
        if self._sharded is not None:
            settle(self._sharded)
        try:
            yield
            self.resume(self._num_updates + 1)
        except WeightsChanged:
            self.note()
            raise
        finally:
            if not self.is_broken:
                self.accept(reads_all=is_kept or self._is_deep)

    @contextmanager
    def opened(self, gradients: Sequence[Tensor]) -> Iterator[None]:
        """Let the optimizer step with these gradients for the length of the block.

        Raises:
            WeightsChanged: the step used another tensor.
            LoopError: the session's own hook was taken off the optimizer.
        """
        if self._hook.id not in self._optimizer._optimizer_step_pre_hooks:
            raise LoopError("The session's hook was taken off the optimizer. Leave the hooks of others in place.")
        strangers = strangers_in(self._optimizer, own_hook=self._hook.id)
        allowed = [*gradients, *self._held.values()]
        following = Following(allowed=allowed, whom=strangers) if strangers else nullcontext()
        self._may_step = True
        try:
            with following:
                yield
        finally:
            self._may_step = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let the weights change for the length of the block; whatever changed before it is found first."""
        self.look(waits=True)
        self._settle()
        try:
            yield
        finally:
            self._settle()
            self.accept(reads_all=True)

    def _settle(self) -> None:
        """Free the gathered copies of a sharded model's weights, which a change of its shards makes stale."""
        if self._sharded is not None:
            settle(self._sharded)

    def look(self, *, waits: bool, reads_bits: bool = True) -> None:
        """Refuse every change since the state was accepted.

        Args:
            waits: Whether devices that have not reported yet are waited for.
            reads_bits: Whether the bits are compared; otherwise only replacements, moves and counted changes are found.

        Raises:
            WeightsChanged: naming the tensors and the likely cause. No guarantee is given after it.
            UnsupportedModel: likewise, where the weights are known to have been right when the step began.
        """
        if self.is_broken:
            raise WeightsChanged(
                "The weights of this session were changed by something that was no private step, so it cannot go on, "
                "and no guarantee is given. Start anew, with a fresh model and in a new folder."
            )
        now = self._holdings.held()
        if now != self._places:
            self._refuse(changes_between(self._places, now))
        if not reads_bits:
            return
        self._pending += [seen.compared() for seen in self._accepted]
        written: set[str] = set()
        while self._pending and (found := self._pending[0].names(waits=waits)) is not None:
            written |= found
            self._pending.popleft()
        if written and self._was_read_in_step:
            self.note()
            raise UnsupportedModel(_forward_words(written))
        if written:
            self._refuse(dict.fromkeys(written, "its bits"))

    def last_look(self) -> WeightsChanged | UnsupportedModel | None:
        """Compare the weights for the last time; return the error of a change, unless one was raised before."""
        try:
            if not self.is_broken:
                self.look(waits=True)
        except (WeightsChanged, UnsupportedModel) as found:
            return found
        return None

    def accept(self, *, reads_all: bool) -> None:
        """Take the present state as the one to compare with."""
        self._places, self._counters = self._holdings.held(), self._holdings.counters()
        where = (self._places.versions[0], self._places.wheres)
        if where != self._where:
            self._held = self._holdings.everything  # so that no other tensor can take the identity of one of them
            self._where, self._prints = where, Fingerprints.of(self._held)
        num_pages = self._prints.num_pages
        size = max(_LEAST_PAGES, num_pages // _SHARE)
        is_whole = reads_all or size >= num_pages
        self._accepted = self._prints.take(None if is_whole else sorted(self._random.sample(range(num_pages), size)))
        self._was_read_in_step = False

    def note(self) -> None:
        """Note a change that no private step made: nothing is promised after it."""
        if not self.is_broken:
            self.is_broken = True
            self._found()

    def _refuse(self, changes: Mapping[str, str]) -> None:
        self.note()
        raise WeightsChanged(
            f"Since the last private update something else changed {listed(changes)}. "
            f"{likely_cause(changes, self._holdings.parameters)} "
            "What was trained or written that way is not private, and no guarantee is given for this run. Start anew "
            "with a fresh model; wrap changes that use no private data in session.public_change('what it does')."
        )

    def _check_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._may_step:
            raise LoopError(
                "optimizer.step() was called outside a private step, which would train without privacy. Call "
                "step.update(): it adds the noise and steps the optimizer. (Gradient scalers and trainers that call "
                "optimizer.step() themselves cannot be used here.)"
            )

    def _check_trained(self) -> None:
        """Refuse a change of the trained parameters, and gradients that did not come from a private step.

        Raises:
            LoopError: naming the parameters.
        """
        trained, parameters = self._trained, self._holdings.parameters
        changed = [name for name, value in parameters.items() if value.requires_grad is not (id(value) in trained)]
        if changed:
            raise LoopError(
                f"The parameters {changed} were frozen or unfrozen since the session began, which its plan knows "
                "nothing of. Decide what is trained before privatize(); for training in stages use a mask, or "
                "one session per stage, whose costs add up."
            )
        for group in self._optimizer.param_groups:
            for value in group["params"]:
                if id(value) not in trained and value.grad is not None:
                    raise LoopError(
                        "The optimizer holds a parameter that this session does not train, and it has a gradient, "
                        "which would be applied without noise. Set its .grad to None, or take it out of the optimizer."
                    )


def strangers_in(optimizer: Optimizer, *, own_hook: int) -> Sequence[str]:
    """Name the code in the optimizer's ``step`` that is neither torch's nor this library's."""
    kind = type(optimizer)
    found = [] if f"{kind.__module__}.".startswith(_TRUSTED) else [f"the optimizer {kind.__name__}"]
    step = vars(optimizer).get("step")
    if step is not None and not _is_of_a_scheduler(step, kind):
        found.append("the function that was put in the place of optimizer.step")
    hooks = {**optimizer._optimizer_step_pre_hooks}
    hooks.pop(own_hook, None)
    others = [*hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    others += torch_optimizer._global_optimizer_pre_hooks.values()
    others += torch_optimizer._global_optimizer_post_hooks.values()
    return found if not others else found + [f"the hook {_name(hook)}" for hook in others]


def _name(hook: Any) -> str:
    return getattr(hook, "__qualname__", type(hook).__name__)


def _is_of_a_scheduler(step: Any, kind: type[Optimizer]) -> bool:
    """Whether a ``step`` is the one with which torch's schedulers of learning rates count calls."""
    code, inner = getattr(step, "__code__", None), getattr(step, "__wrapped__", None)
    return code is not None and code.co_filename == lr_scheduler.__file__ and inner is kind.step


def _forward_words(names: Iterable[str]) -> str:
    return (
        f"The forward pass changed the buffers or parameters {listed(names)}, which carries private data past the "
        "noise. Put the layers that own them into eval() mode, or replace them. (If it was no forward pass: between "
        "two updates nothing else may change the weights, no second optimizer and no assignment.)"
    )
