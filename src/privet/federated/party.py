"""A party: it has records, a copy of the model and a ledger, and answers the coordinator's broadcasts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD

from privet import checks
from privet.accounting.ledger import Ledger
from privet.errors import DataError, LedgerMismatch
from privet.federated.agreement import Agreement
from privet.federated.contributions import ClientUpdates, RoundResult, Sessions
from privet.federated.coordinates import SharedCoordinates, layout_of, read_weights, write_weights
from privet.federated.messages import Answer, Broadcast, Outcome, Values
from privet.federated.party_sums import LossFunction, PartySums, Records, clipped_update
from privet.gradients.engines.engine import Engine
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.executed import ExecutedRound, executed_clipping
from privet.mechanism.sampling import Sampling
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.training.batching import MapDataset, check_dataset
from privet.training.folder import RunFolder, RunState
from privet.training.performance import Performance, chosen_performance
from privet.training.persons import persons_of
from privet.training.randomness import Streams
from privet.training.release import ChargedRelease, Noisy
from privet.training.start import privatize
from privet.training.units import check_unit
from privet.vocabulary import Unit

_NOTHING: Values = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Replica:
    """A party's copy of the model at the start of a round. Public, like every model of the federation."""

    round: int
    weights: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class SumForCoordinator:
    """A clipped sum for the coordinator, who adds the noise. Secret to all others.

    Attributes:
        clipped: The sum, with its clipping bound.
        owed_noise_std: Standard deviation of the noise that the coordinator must add by the agreement.
        sampling: The sampling of the examples.
    """

    clipped: ClippedSum
    owed_noise_std: float
    sampling: Sampling

    def add_noise(self) -> Noisy[Tensor]:
        """Add no noise; report the clipping bound and the noise that the coordinator must add."""
        executed = executed_clipping(self.clipped, owed=self.owed_noise_std, sampling=self.sampling)
        return Noisy(value=self.clipped.flat, executed=executed)


@dataclass(frozen=True)
class PartyFolder(RunFolder):
    """The folder of a party, which restores the federation's model at the start of every round.

    Attributes:
        weights: Weights of the federation's model; None outside a session.
    """

    weights: Tensor | None = None

    def restore(self, state: RunState, *, plan: Plan, ledger: Ledger, dataset: MapDataset | None) -> bool:
        """Restore the party's newest checkpoint, then replace its weights by the federation's."""
        was_restored = super().restore(state, plan=plan, ledger=ledger, dataset=dataset)
        if self.weights is not None:
            write_weights(state.model, self.weights)
        return was_restored


class Party:
    """One party of a federation. Its folder contains its ledger; no other party may use it.

    Guarantee:
        A round is charged durably in this party's ledger before a record is read for it, and stays charged after a
        crash, a lost message or a refusal. A broadcast of another agreement is refused before anything is charged.
    """

    def __init__(
        self,
        *,
        agreement: Agreement,
        model: nn.Module,
        dataset: MapDataset,
        losses: LossFunction,
        folder: str | Path,
        performance: Performance | None = None,
        seed: int | None = None,
        physical_batch_size: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        """Check the arguments without reading a record.

        Args:
            agreement: The agreement of all parties.
            model: The network; broadcasts set its weights.
            dataset: The party's records; one item is one unit of the plan, or any record for ``ClientUpdates``.
            losses: Maps the items of a batch to one loss each.
            folder: Folder of this party's ledger.
            performance: How a step is computed: engine, launch, physical batch size.
            seed: Makes the party repeatable and NOT PRIVATE; use a different seed for every party.
            physical_batch_size: Deprecated; ``performance=Performance(physical_batch_size=...)``.
            engine: Deprecated; ``performance=Performance(engine=...)``.

        Raises:
            DataError: the party has more records than ``max_records`` of the agreement.
        """
        self.agreement, self._model = agreement, model
        former = {"physical_batch_size": physical_batch_size, "engine": engine}
        self._performance = chosen_performance("Party", performance, former, stacklevel=3)
        records = check_dataset(dataset)
        # with Unit.CLIENT the whole party is the unit, so its items may be of any kind
        if agreement.plan.unit is not Unit.CLIENT:
            records = check_unit(records, agreement.plan)
        persons = persons_of(agreement.plan.sampling, records)
        self._records = Records(
            dataset=records if persons is None else persons.dataset.records,
            losses=losses,
            physical_batch_size=self._performance.physical_batch_size,
            persons=persons,
        )
        if len(self._records) > agreement.max_records:
            raise DataError(
                f"A party has more records than the agreement's max_records ({agreement.max_records}). Agree on a "
                "larger number, or remove records before the first round."
            )
        self._layout = layout_of(model, agreement)
        self._coordinates = SharedCoordinates(agreement, self._layout, next(model.parameters()).device)
        words = agreement.contribution.assumptions
        self._dataset = dataset
        self._folder = PartyFolder(Path(folder), every=agreement.plan.num_steps, reserve_ahead=1, assumptions=words)
        self._running: PartySums | None = None
        self._seed = seed if seed is None else checks.count("seed", seed, minimum=0)

    def answer(self, broadcast: Broadcast, replica: Replica | None) -> tuple[Answer, Replica | None]:
        """Take part in a round.

        Args:
            broadcast: The coordinator's message.
            replica: The replica that the previous call returned; None if it is lost.

        Returns:
            The answer, and the replica to keep.

        Raises:
            LedgerMismatch: the coordinator has another agreement, or asks for a past round.
        """
        self._check(broadcast, replica)
        now = self._updated(broadcast, replica)
        if now is None:
            return self._reply(broadcast, Outcome.NEEDS_MODEL), None
        write_weights(self._model, now.weights)
        found = self.agreement.contribution.contribute(_Round(self, broadcast.round, now))
        outcome = Outcome.SPENT if found.values is None else Outcome.CONTRIBUTED
        values = _NOTHING if found.values is None else found.values
        return self._reply(broadcast, outcome, values, found.executed), now

    def _check(self, broadcast: Broadcast, replica: Replica | None) -> None:
        mine = (self.agreement.hash, self.agreement.mask_seed)
        if (broadcast.agreement, broadcast.mask_seed) != mine:
            raise LedgerMismatch(
                "The coordinator has another agreement than this party. Nothing was charged. Give all parties the same "
                "plan, contribution, learning rate and max_records."
            )
        last_round = -1 if replica is None else replica.round
        if not last_round < broadcast.round < self.agreement.num_rounds:
            raise LedgerMismatch(
                f"The coordinator asks for round {broadcast.round}, but rounds {last_round + 1} to "
                f"{self.agreement.num_rounds - 1} are left. Nothing was charged."
            )

    def _updated(self, broadcast: Broadcast, replica: Replica | None) -> Replica | None:
        """Return the model of this round, or None if this party lacks the model that the broadcast refers to."""
        values = torch.from_numpy(np.array(broadcast.values, dtype=np.float32))
        if broadcast.since is None:
            places: Tensor | None = None
            weights = values
        else:
            if replica is None or replica.round != broadcast.since:
                return None
            places = self._coordinates.changed(broadcast.since, broadcast.round)
            weights = replica.weights.clone()
        if len(values) != (self._coordinates.number if places is None else len(places)):
            raise DataError("The coordinator's message has another length than the model. Nothing was charged.")
        if places is not None:
            weights.index_copy_(0, places, values)
        return Replica(round=broadcast.round, weights=weights)

    def _reply(
        self, broadcast: Broadcast, outcome: Outcome, values: Values = _NOTHING, done: tuple[ExecutedRound, ...] = ()
    ) -> Answer:
        return Answer(
            round=broadcast.round,
            agreement=broadcast.agreement,
            mask_seed=broadcast.mask_seed,
            outcome=outcome,
            values=values,
            done=done,
        )

    def _streams(self, number: int) -> Streams:
        # a process may serve one round only, so every round needs a different seed
        return Streams.new(torch.device("cpu"), seed=self._seed_of(number))

    def _seed_of(self, number: int) -> int | None:
        if self._seed is None:
            return None
        return int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])

    @property
    def _rule(self) -> ClippingRule:
        return self.agreement.plan.clipping.for_groups(self._layout.num_groups)

    def _sums(self) -> PartySums:
        if self._running is None:
            device = next(self._model.parameters()).device
            self._running = PartySums(
                self._model, self._records, engine=self._performance.engine, layout=self._layout, device=device
            )
        return self._running

    def _sum(self, number: int) -> Values | None:
        plan, rule = self.agreement.plan, self._rule
        with self._folder.open_ledger(plan, is_seeded=self._seed is not None) as ledger:
            if ledger.charged_rounds >= plan.num_rounds:
                return None
            with ChargedRelease[Tensor](ledger, plan.round_event) as release:
                indices = self._records.drawn(plan.sampling, self._streams(number))
                found = self._sums().clipped_sum(
                    indices,
                    rule=rule,
                    kept=self._coordinates.kept(number),
                    noise=plan.noise,
                    ledger=ledger,
                    number=number,
                )
                sent = release.add_noise_and_compare(self._for_coordinator(found)).value
        return self._coordinates.gather(sent, number)

    def _for_coordinator(self, clipped: ClippedSum) -> SumForCoordinator:
        owed = self.agreement.central_noise_std(num_groups=self._layout.num_groups)
        return SumForCoordinator(clipped=clipped, owed_noise_std=owed, sampling=self.agreement.plan.sampling)

    def _update(self, contribution: ClientUpdates, number: int) -> Values:
        plan, rule = self.agreement.plan, self._rule
        with self._folder.open_ledger(plan, is_seeded=self._seed is not None) as ledger:
            # A coin was drawn in every round, also in rounds without a broadcast to this party, which it does not learn
            # of. So its first round charges the whole plan.
            missing = plan.num_rounds - ledger.charged_rounds
            with ChargedRelease[Tensor](ledger, plan.round_event, num_charged=missing, num_used=missing) as release:
                moved = clipped_update(
                    self._model,
                    self._records,
                    contribution,
                    layout=self._layout,
                    rule=rule,
                    kept=self._coordinates.kept(number),
                    rng=self._streams(number).sampling,
                )
                sent = release.add_noise_and_compare(self._for_coordinator(moved)).value
        return self._coordinates.gather(sent, number)

    def _session(self, contribution: Sessions, number: int, before: Tensor) -> RoundResult:
        session = privatize(
            self._model,
            SGD([value for value in self._model.parameters() if value.requires_grad], lr=contribution.learning_rate),
            self._dataset,
            self.agreement.plan,
            performance=self._performance,
            # the weights of the session's checkpoint are older than the federation's
            folder=replace(self._folder, weights=before),
            seed=self._seed_of(number),
        )
        done: list[ExecutedRound] = []
        with session:
            for step in session.steps(first=number * contribution.local_steps):
                step.accumulate(self._records.losses)
                step.update()
                done.append(step.executed)
                if len(done) == contribution.local_steps:
                    break
        if not done:
            return RoundResult(values=None)
        moved = self._coordinates.gather(read_weights(self._model) - before, number)
        return RoundResult(values=moved, executed=tuple(done))


class _Round:
    """One round of a party, as its contribution sees it."""

    def __init__(self, party: Party, number: int, now: Replica) -> None:
        self._party, self._number, self._now = party, number, now

    def clipped_sum(self) -> RoundResult:
        return RoundResult(values=self._party._sum(self._number))

    def session(self, contribution: Sessions) -> RoundResult:
        return self._party._session(contribution, self._number, self._now.weights)

    def update(self, contribution: ClientUpdates) -> RoundResult:
        return RoundResult(values=self._party._update(contribution, self._number))
