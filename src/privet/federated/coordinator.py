"""The coordinator: it keeps the model and a ledger, sends broadcasts to parties, and checks all their answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import VoidReason
from privet.errors import CheckpointError, LoopError
from privet.federated.agreement import Agreement
from privet.federated.coordinates import SharedCoordinates, layout_of, read_weights
from privet.federated.messages import Answer, Broadcast, Outcome
from privet.federated.party_sums import clip
from privet.mechanism.clipping import FixedRun
from privet.mechanism.events import compose
from privet.mechanism.executed import ExecutedRound, ExecutedSteps, executed_together
from privet.mechanism.sums import ClippedSum, PrivateSum
from privet.training.checkpoint import as_bytes, contents, load_checkpoint, write_checkpoint
from privet.training.folder import RunFolder
from privet.training.randomness import Streams
from privet.training.release import ChargedRelease, GradientSum, Noisy
from privet.training.trained import trainable_parameters


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """Result of a round. Secret to the coordinator: under ``ClientUpdates`` it contains the sampled parties.

    Attributes:
        round: Number of the round.
        accepted: Parties whose contribution is in the model.
        refused: Parties whose answer was not used, with the reason.
        silent: Parties that did not answer.
    """

    round: int
    accepted: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseOfParties:
    """One step of the parties' own sessions, to which each party has added its noise.

    Attributes:
        executed: The noise and the bounds that the parties report.
    """

    executed: ExecutedRound

    def add_noise(self) -> Noisy[None]:
        """Add no noise; return the parties' report."""
        return Noisy(value=None, executed=self.executed)


class Coordinator:
    """The coordinating party of a federation; use it in a ``with`` block.

    Guarantee:
        A round is charged durably before any broadcast, and stays charged whatever parties answer. If the coordinator
        adds the noise, it adds it in every round, also in a round without answers, and updates the model only if the
        added noise matches the charge. Answers with another round, agreement, number of values or norm, and answers
        that are not finite, never reach the model.
    """

    def __init__(
        self,
        *,
        agreement: Agreement,
        model: nn.Module,
        folder: str | Path,
        checkpoint_every: int = 10,
        seed: int | None = None,
    ) -> None:
        """Bind the agreement to a model.

        Args:
            agreement: The agreement of all parties.
            model: The network with its initial weights; an existing run in the folder is resumed instead.
            folder: Folder of the coordinator's ledger and checkpoints.
            checkpoint_every: Number of rounds between checkpoints. A crash loses the rounds after the last checkpoint,
                and they stay charged.
            seed: Makes the coordinator repeatable and NOT PRIVATE.
        """
        self.agreement, self.model = agreement, model
        self._layout = layout_of(model, agreement)
        self._parameters = [parameter for _, parameter in trainable_parameters(model)]
        self._device = self._parameters[0].device
        self._coordinates = SharedCoordinates(agreement, self._layout, self._device)
        self._optimizer = SGD(self._parameters, lr=agreement.learning_rate)
        every, words = checks.count("checkpoint_every", checkpoint_every), agreement.contribution.assumptions
        self._folder = RunFolder(Path(folder), every=every, assumptions=words)
        self._seed = seed if seed is None else checks.count("seed", seed, minimum=0)
        self._held: dict[int, int] = {}  # party -> the round whose model the party holds
        self._asked: tuple[int, ...] | None = None
        self._releases: list[ChargedRelease[PrivateSum | None]] = []

    def __enter__(self) -> Self:
        """Open the ledger, restore the newest checkpoint, and draw the keys of the run."""
        plan = self.agreement.plan
        self.ledger = self._folder.open_ledger(plan, is_seeded=self._seed is not None)
        try:
            checkpoint = load_checkpoint(self._folder.checkpoint_path)
            if checkpoint is not None:
                if not plan.matches_hash(checkpoint.plan_hash) or not self.ledger.contains(checkpoint.head):
                    raise CheckpointError(
                        f"The checkpoint in {self._folder.path} does not belong to the ledger beside it. Restore the "
                        "newest ledger, or start in a new folder."
                    )
                checkpoint.restore(self.model, self._optimizer)
        except BaseException:
            self.ledger.close()
            raise
        # rounds that an earlier process charged never run again, complete or not
        self._round = math.ceil(self.ledger.charged_rounds / self.agreement.contribution.steps_per_round)
        self._streams = Streams.new(self._device, seed=self._seed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write a last checkpoint, compare the charges with the plan, and close the ledger."""
        try:
            if error is None and self._asked is not None:
                for release in self._releases:
                    release.give_up(VoidReason.INTERRUPTED)
            if error is None:
                self._checkpoint()
                self.ledger.verify(self.agreement.plan.segments)
        finally:
            self.ledger.__exit__(kind, error, trace)

    @property
    def round(self) -> int:
        """Number of the open or next round."""
        return self._round

    @property
    def is_complete(self) -> bool:
        """Whether all rounds have run."""
        return self._round >= self.agreement.num_rounds

    def begin_round(self, parties: Sequence[int]) -> dict[int, Broadcast]:
        """Charge a round, and return the broadcast for each party.

        Args:
            parties: All reachable parties of the federation. With ``ClientUpdates`` a coin per party decides whether it
                joins, so the result may be empty.

        Raises:
            LoopError: a round is open, or all rounds have run.
        """
        if self._asked is not None or self.is_complete:
            raise LoopError("begin_round() belongs after end_round() of the last round, while rounds are left.")
        plan, contribution = self.agreement.plan, self.agreement.contribution
        charges = [contribution.steps_per_round] + [0] * (contribution.steps_per_round - 1)
        self._releases = [ChargedRelease(self.ledger, plan.round_event, num_charged=charge) for charge in charges]
        asked = sorted(set(parties))
        if contribution.samples_parties:
            asked = [asked[place] for place in next(plan.sampling.round_batches(len(asked), self._streams.sampling))]
        self._asked = tuple(asked)
        weights = read_weights(self.model)
        return {party: self._broadcast(weights, self._held.get(party)) for party in asked}

    def _broadcast(self, weights: Tensor, since: int | None) -> Broadcast:
        if since is not None:
            weights = weights[self._coordinates.changed(since, self._round)]
        return Broadcast(
            round=self._round,
            agreement=self.agreement.hash,
            mask_seed=self.agreement.mask_seed,
            since=since,
            values=weights.numpy(),
        )

    def end_round(self, answers: Mapping[int, Answer]) -> RoundReport:
        """Process the answers, add noise if the coordinator owes it, and update the model.

        Args:
            answers: One answer per party; answers of parties without a broadcast are ignored.
        """
        if self._asked is None:
            raise LoopError("end_round() belongs after begin_round().")
        asked, self._asked = self._asked, None
        refused: dict[int, str] = {}
        accepted: dict[int, Tensor] = {}
        for party in asked:
            answer = answers.get(party)
            reason = None if answer is None else self._refusal(answer)
            if answer is None or reason is not None:
                # its model is unknown, so the next broadcast must contain all weights
                self._held.pop(party, None)
                if reason is not None:
                    refused[party] = reason
                continue
            self._held[party] = self._round
            if answer.outcome is Outcome.CONTRIBUTED:
                accepted[party] = self._coordinates.scatter(answer.values, self._round)
            else:
                refused[party] = "its ledger has no rounds left"
        self._update_model(list(accepted.values()), [answers[party].done for party in accepted])
        report = RoundReport(
            round=self._round,
            accepted=tuple(accepted),
            refused=refused,
            silent=tuple(party for party in asked if party not in answers),
        )
        self._round += 1
        if self._round % self._folder.every == 0:
            self._checkpoint()
        return report

    def _refusal(self, answer: Answer) -> str | None:
        """Return the reason to refuse an answer; None if it is accepted."""
        if (answer.round, answer.agreement) != (self._round, self.agreement.hash):
            return "it answers another round or another agreement"
        if answer.mask_seed != self.agreement.mask_seed:
            return "it has another mask seed"
        if answer.outcome is Outcome.NEEDS_MODEL:
            return "it lacks the model, and receives all weights in the next round"
        if answer.outcome is Outcome.SPENT:
            return None
        values, expected = answer.values, self._coordinates.num_kept(self._round)
        if values.dtype != np.float32 or values.shape != (expected,):
            return f"it has the shape {values.shape} and the type {values.dtype}, not ({expected},) and float32"
        if not bool(np.isfinite(values).all()):
            return "it contains values that are not finite"
        contribution = self.agreement.contribution
        most = 0 if contribution.has_central_noise else contribution.steps_per_round
        if not min(1, most) <= len(answer.done) <= most:
            return f"it reports {len(answer.done)} steps with its own noise, and a round has {most}"
        limit = self.agreement.longest_message(num_groups=self._layout.num_groups, num_kept=expected)
        if float(np.linalg.norm(values.astype(np.float64))) > limit:
            return "its norm is larger than that of any honest answer"
        return None

    def _average(self, total: Tensor, reported: Sequence[tuple[ExecutedRound, ...]]) -> PrivateSum:
        """Compare the noise of the parties' sessions with the charge, step by step; return their sum."""
        events = []
        for place, release in enumerate(self._releases):
            parts = [done[place] for done in reported if place < len(done)]
            if parts:
                noisy = release.add_noise_and_compare(NoiseOfParties(executed=executed_together(parts)))
                events.append((noisy.executed.event, 1))
            else:
                release.give_up(VoidReason.WORKER_LOST)
        return PrivateSum(flat=total, layout=self._layout, event=compose(events))

    def _update_model(self, contributions: Sequence[Tensor], reported: Sequence[tuple[ExecutedRound, ...]]) -> None:
        contribution = self.agreement.contribution
        total = torch.zeros(self._layout.num_coordinates, dtype=torch.float64, device=self._device)
        if not contribution.has_central_noise:
            for part in contributions:
                total -= part
            # the parties' answers contain noise already, so their number may be used as divisor
            private, divisor = self._average(total, reported), float(max(1, len(contributions)))
        else:
            rule = self.agreement.plan.clipping.for_groups(self._layout.num_groups)
            for part in contributions:
                if contribution.samples_parties:
                    total -= clip(part, layout=self._layout, rule=rule)
                else:
                    total += part
            private, divisor = self._add_noise(total.float()), self.agreement.plan.sampling.expected_batch_size
        private.write_gradients(self._parameters, divisor=divisor)
        self._optimizer.step()

    def _add_noise(self, flat: Tensor) -> PrivateSum:
        """Add noise once, and compare it with the charge."""
        plan, kept = self.agreement.plan, self._coordinates.kept(self._round)
        rule = plan.clipping.for_groups(self._layout.num_groups)
        clipped = ClippedSum(
            flat=flat,
            layout=self._layout,
            sensitivity=rule.sensitivity,
            keep=None if kept is None else kept.coordinates,
            kept=kept,
        )
        summed = GradientSum(
            clipped=clipped,
            noise=plan.noise,
            source=self._streams.noise,
            steps=ExecutedSteps(clipping=FixedRun(rule=rule), sampling=plan.sampling),
        )
        (release,) = self._releases
        private = release.add_noise_and_compare(summed).value
        assert private is not None
        return private

    def _checkpoint(self) -> None:
        body, tensors = contents(
            model=self.model,
            optimizer=self._optimizer,
            step=self._round,
            steps_taken=self._round,
            head=self.ledger.head,
            plan_hash=self.ledger.plan_hash,
            clipping={},
            average={},
        )
        write_checkpoint(self._folder.checkpoint_path, as_bytes(body, tensors))

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the charges in the coordinator's ledger."""
        return self.agreement.guarantee(
            self.ledger,
            assumptions=(f"noise of the coordinator came from {self._streams.noise.description}",)
            if self.agreement.contribution.has_central_noise
            else (),
        )
