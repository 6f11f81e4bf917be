"""One step on several ranks: sums are added up, noise is added once, and ranks compare both before an update."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from privet.gradients.sharding.local import settle
from privet.isolation.watch import Evidence
from privet.mechanism.noise import Noise
from privet.mechanism.sums import ClippedSum
from privet.training.distributed.digests import digest_of, model_digest, optimizer_digest, sampled_digest
from privet.training.distributed.drawing import SharedDraws
from privet.training.distributed.ranks import Facts, Point, Ranks
from privet.training.evidence import EvidenceRecorder
from privet.training.folder import RunState
from privet.training.loop_events import Observer
from privet.training.release import Noisy
from privet.training.updates import StepSum, Update


@dataclass(kw_only=True, eq=False)
class SumOverRanks(Observer):
    """Adds up the clipped sums of all ranks before the noise.

    Guarantee:
        An example is on one rank and is clipped there, so the sum over ranks has the bound of one clipped sum. It is
        formed in single or double precision. Before it, all ranks state step, batch, bounds, mask and divisor, and at
        steps 0, 1, 2, 4, 8 and so on weights and optimizer; if any of them differ, no rank goes on. What was tried
        instead of proven on any rank is in the ledger before the sum is used.
    Edge cases: ranks without examples add zeros. Without examples at all the step releases noise alone.

    Attributes:
        ranks: The run's.
        state: The state that must stay equal.
        draws: The run's batches.
        recorder: The evidence of this rank.
        divisor: The divisor of noisy sums.
        assumption: The assumption of a guarantee about the ranks, in words.
        key: Keys digests of secret values.
    """

    ranks: Ranks
    state: RunState
    draws: SharedDraws
    recorder: EvidenceRecorder
    divisor: float
    assumption: str
    key: bytes
    _own: Evidence | None = None
    _evidence: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    _mask: tuple[object, str] = (None, "")
    _compares_weights: bool = False

    @property
    def is_deep(self) -> bool:
        """Whether weights are compared at this step: at powers of two, and after a change of the weights."""
        taken = self.state.steps_taken
        return self._compares_weights or taken & (taken - 1) == 0

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        found = self.recorder.found()
        note = b"" if found is self._own else _as_note(found)
        self._note(self.ranks.meet(Point.SUMMING, self._facts(clipped), note=note))
        self._own, self._compares_weights = found, False
        if clipped.scatter is None:  # it was added up on the way otherwise
            self.ranks.add_up_(clipped.flat)
        if clipped.squares is not None:
            self.ranks.add_up_(clipped.squares)
        for statistic in self.state.clipping.unreleased():
            self.ranks.add_up_(statistic)

    def before_public_change(self) -> None:
        self.ranks.meet(Point.CHANGING)
        self._compares_weights = True

    def _facts(self, clipped: ClippedSum) -> Facts:
        facts: dict[str, Any] = {
            "steps in the model": self.state.steps_taken,
            "the batch": self.draws.present,
            "bounds": list(clipped.sensitivity.bounds),
            "whether bounds are held": clipped.is_held,
            "the divisor": self.divisor,
            "the mask": self._mask_digest(clipped),
            "the clipping rule": {name: list(values) for name, values in self.state.clipping.state().items()},
        }
        return {**facts, **state_facts(self.state)} if self.is_deep else facts

    def _mask_digest(self, clipped: ClippedSum) -> str:
        if clipped.keep is None:
            return ""
        if self._mask[0] is not clipped.keep:  # masks that stay are digested once
            self._mask = clipped.keep, digest_of([("mask", clipped.keep)], key=self.key)
        return self._mask[1]

    def _note(self, notes: Any) -> None:
        """Write down the weakest evidence of all ranks."""
        for rank, note in enumerate(notes):
            if note:
                self._evidence[rank] = json.loads(note)
        if notes:
            tried = _union(found["tried"] for found in self._evidence.values())
            settled = _union(found["settled"] for found in self._evidence.values())
            waived = _union(found["waived"] for found in self._evidence.values())
            self.recorder.write(
                Evidence(
                    tried=tried,
                    settled=tuple(reason for reason in settled if reason not in tried),
                    waived=(self.assumption, *waived),
                )
            )


def _union(lists: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for words in lists for word in words))


def _as_note(found: Evidence) -> bytes:
    return json.dumps({"tried": found.tried, "settled": found.settled, "waived": found.waived}).encode()


def state_facts(state: RunState) -> Facts:
    """Return digests of all that a step changes."""
    settle(state.model)  # numpy would pin the memory of parameters that are gathered
    average = None if state.average is None else digest_of(sorted(state.average.tensors().items()))
    return {
        "the weights": model_digest(state.model),
        "the optimizer": optimizer_digest(state.optimizer),
        "the averaged weights": average,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedStepSum(StepSum):
    """The sum of one step over all ranks; its noise is compared on all ranks before it is compared with the charge.

    Guarantee: a noisy sum is handed out on one rank only if every rank added noise of the same size and, as far as it
    is looked at, the same noise: at every step on processors, where reading numbers waits for nothing, and on devices
    at those of ``SumOverRanks.is_deep``. Two noisy versions of one sum would be two releases.

    Attributes:
        ranks: The run's.
        looks: Whether noise is compared at this step.
        key: Keys the digest.
    """

    ranks: Ranks
    looks: Callable[[], bool]
    key: bytes

    def add_noise(self) -> Noisy[Update]:
        looks = self.looks()
        noisy = super().add_noise()
        facts: dict[str, Any] = {"what ran": noisy.executed.to_dict()}
        # of a sharded sum every rank has other coordinates
        is_whole = self.clipped.scatter is None
        if is_whole and noisy.value.is_drawn and (looks or _is_at_hand(self.clipped.flat)):
            facts["the noisy sum"] = sampled_digest(self.clipped.flat, key=self.key)
        self.ranks.meet(Point.RELEASING, facts)
        return noisy


def _is_at_hand(flat: Tensor) -> bool:
    return flat.device.type == "cpu"
