"""Every place that charges a ledger tells it what was done: half the noise, or twice the bound, is refused there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from privet.accounting.ledger import Ledger
from privet.convex.features import RandomRelu
from privet.convex.statistics import SufficientStatistics
from privet.errors import ArgumentError, LedgerMismatch, PrivetError
from privet.federated.contributions import ClientUpdates, Sessions
from privet.federated.loopback import run_in_process
from privet.federated.party import Party
from privet.mechanism import executed as executed_module
from privet.mechanism.clipping import ClippingRule, Threshold
from privet.mechanism.events import DpEvent, gaussian_event
from privet.mechanism.executed import AddedNoise, ExecutedRound, ExecutedSteps, executed_gaussian, executed_together
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from privet.training import release as release_module
from privet.training.private_statistics.normalisation import PrivateNormalisation
from privet.training.private_statistics.private_geometry import release_geometry
from privet.training.randomness import Streams
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from tests.accounting.ledgers import done, step
from tests.federated.conftest import RECORDS, Federation, agreement_of, plan_of
from tests.federated.conftest import federation as federation
from tests.federated.conftest import network as network_of_parties
from tests.federated.conftest import poisson as coins
from tests.training.tools import examples, full_batch, network, plain_sgd, run, shuffle


@pytest.fixture
def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of sums is half of what the plan says, and is told as it is."""
    honest = Gaussian.add

    def halved(self: Gaussian, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        assert self.noise_multiplier is not None
        return honest(replace(self, noise_multiplier=self.noise_multiplier / 2), clipped, source)

    monkeypatch.setattr(Gaussian, "add", halved)


@pytest.fixture
def twice_the_bound(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes parties clip to twice the agreed bound from then on."""

    def rule(self: Party) -> ClippingRule:
        clipping = self.agreement.plan.clipping
        assert isinstance(clipping, Threshold)
        assert isinstance(clipping.norm, float)
        return Threshold(norm=2 * clipping.norm).for_groups(self._layout.num_groups)

    return lambda: monkeypatch.setattr(Party, "_rule", property(rule))


def halving(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make releases draw half the noise that they meant to."""
    honest = getattr(executed_module, name)
    monkeypatch.setattr(release_module, name, lambda vector, std, source: honest(vector, std=std / 2, source=source))


def test_each_step_has_the_event_of_its_own_noise() -> None:
    layout = Layout.of([("w", (3,))], OneGroup())
    clipping = Threshold(norm=1.0).start(num_groups=1, num_steps=3, expected_batch_size=4.0)
    steps = ExecutedSteps(clipping=clipping, sampling=full_batch(3).sampling)
    source = Streams.new(torch.device("cpu"), seed=1).noise

    def event(noise_multiplier: float) -> DpEvent:
        sensitivity = Threshold(norm=1.0).for_groups(1).sensitivity
        total = ClippedSum(flat=torch.zeros(3), layout=layout, sensitivity=sensitivity)
        return steps.of(Gaussian(noise_multiplier=noise_multiplier).add(total, source), source).event

    for multiplier in (2.0, 2.0, 0.5, 2.0):
        assert event(multiplier) == gaussian_event(bounds=(1.0,), stds=(multiplier,))


def test_a_session_with_half_the_noise_is_refused_and_its_facts_are_charged(half_the_noise: None) -> None:
    model = network()
    plan = full_batch(3)
    with pytest.raises(LedgerMismatch), privatize(model, plain_sgd(model), examples(), plan) as session:
        run(session, model)
    assert session.steps_taken == 0
    assert [rounds for _, rounds in session.ledger.charged][-1:] == [1]
    assert len(session.ledger.charged) == 2


def test_a_later_step_of_a_charged_epoch_with_half_the_noise_is_refused_and_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, honest = network(), Gaussian.add
    calls: list[int] = []

    def halved_later(self: Gaussian, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        calls.append(1)
        assert self.noise_multiplier is not None
        piece = self if len(calls) < 3 else replace(self, noise_multiplier=self.noise_multiplier / 2)
        return honest(piece, clipped, source)

    monkeypatch.setattr(Gaussian, "add", halved_later)
    with pytest.raises(LedgerMismatch), privatize(model, plain_sgd(model), examples(), shuffle()) as session:
        run(session, model)
    assert session.steps_taken == 2
    assert len(session.ledger.charged) == 2


def test_a_normalisation_with_half_the_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    release = PrivateNormalisation(bounds=(1.0, 2.0), dataset_size=20, noise_multiplier=3.0)
    features = torch.randn(20, 2)
    release.release(features)
    halving(monkeypatch, "add_noise")
    with pytest.raises(LedgerMismatch):
        release.release(features)


def test_a_geometry_with_half_the_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    losses, features, labels = nn.CrossEntropyLoss(reduction="none"), torch.randn(6, 3), torch.arange(6) % 2

    def release() -> None:
        release_geometry(model, losses, features, labels, norm=1.0, noise_multiplier=4.0, power=0.5)

    release()
    halving(monkeypatch, "add_noise")
    with pytest.raises(LedgerMismatch):
        release()


@pytest.mark.parametrize("name", ["add_noise", "add_symmetric_noise"])
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_statistics_with_half_the_noise_on_either_part_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, adjacency: Adjacency, weight: float
) -> None:
    trainer = SufficientStatistics(
        features=RandomRelu(size=4),
        num_classes=2,
        delta=1e-5,
        adjacency=adjacency,
        unit=Unit.RECORD,
        label_weight=weight,
    ).calibrated(epsilon=2.0)
    inputs, labels = torch.randn(6, 3), torch.arange(6) % 2
    assert trainer.fit(inputs, labels).guarantee_.epsilon == pytest.approx(2.0)
    halving(monkeypatch, name)
    with pytest.raises(LedgerMismatch):
        trainer.fit(inputs, labels)


def test_a_coordinator_that_adds_half_the_noise_is_refused(federation: Federation, half_the_noise: None) -> None:
    with pytest.raises(LedgerMismatch, match="what ran is"), federation.coordinator() as coordinator:
        run_in_process(coordinator, {})
    assert all(map(torch.equal, network_of_parties().parameters(), coordinator.model.parameters()))


def test_a_party_that_clips_its_records_to_twice_the_bound_is_refused(
    federation: Federation, twice_the_bound: Callable[[], None]
) -> None:
    twice_the_bound()
    with pytest.raises(LedgerMismatch), federation.coordinator() as coordinator:
        run_in_process(coordinator, federation.parties())


@pytest.mark.parametrize("honest_rounds", [0, 1], ids=["first", "later"])
def test_a_party_that_clips_its_update_to_twice_the_bound_is_refused_whenever_it_is_asked(
    federation: Federation, twice_the_bound: Callable[[], None], honest_rounds: int
) -> None:
    plan = plan_of(coins(4, rate=1.0, size=1), rate=0.0, unit=Unit.CLIENT)
    federation = federation.with_agreement(agreement_of(plan, ClientUpdates(learning_rate=0.1)))
    party, replica = federation.party(0), None
    with federation.coordinator() as coordinator:
        for _ in range(honest_rounds):
            answer, replica = party.answer(coordinator.begin_round([0])[0], replica)
            coordinator.end_round({0: answer})
        twice_the_bound()
        with pytest.raises(LedgerMismatch):
            party.answer(coordinator.begin_round([0])[0], replica)
        coordinator.end_round({})
    found = Ledger.read(federation.folder / "party0" / "ledger.jsonl")
    assert found.charged_rounds == 5  # the plan, and what was done on top of it


def session_federation(federation: Federation) -> Federation:
    sampling = replace(plan_of().sampling, expected_batch_size=float(RECORDS))
    return federation.with_agreement(agreement_of(plan_of(sampling), Sessions(learning_rate=0.1)))


def test_a_coordinator_compares_what_each_party_did_in_its_own_session(federation: Federation) -> None:
    federation = session_federation(federation)
    half = ExecutedRound.read({"type": "gaussian", "noise_multiplier": 0.5})
    with ExitStack() as held:
        coordinator = held.enter_context(federation.coordinator())
        asked = coordinator.begin_round([0, 1])
        answers = {number: federation.party(number).answer(asked[number], None)[0] for number in (0, 1)}
        assert [len(answer.done) for answer in answers.values()] == [1, 1]
        with pytest.raises(LedgerMismatch, match="what ran is"):
            coordinator.end_round({0: answers[0], 1: replace(answers[1], done=(half,))})
        held.pop_all()
        coordinator.ledger.close()
    assert Ledger.read(federation.folder / "coordinator" / "ledger.jsonl").num_mismatches == 1


@pytest.mark.parametrize("steps", [0, 2])
def test_an_answer_that_does_not_say_what_its_steps_did_is_left_out(federation: Federation, steps: int) -> None:
    federation = session_federation(federation)
    with federation.coordinator() as coordinator:
        answer, _ = federation.party(0).answer(coordinator.begin_round([0])[0], None)
        report = coordinator.end_round({0: replace(answer, done=answer.done * steps)})
    assert "steps with its own noise" in report.refused[0]
    found = Ledger.read(federation.folder / "coordinator" / "ledger.jsonl")
    assert (found.charged_rounds, found.num_voids) == (1, 1)


# ------------------------------------------------------------------------------------------------------ what is taken


def test_a_ledger_takes_no_event_that_was_planned() -> None:
    ledger, planned = Ledger.in_memory("a-plan"), step()
    ledger.reserve(planned)
    for check in (ledger.check, ledger.check_within):
        with pytest.raises(ArgumentError, match="compares what was done, and got a PoissonSampledDpEvent"):
            check(planned)  # type: ignore[arg-type]
    ledger.check(done(planned))


@pytest.mark.parametrize("made", [ExecutedRound, AddedNoise])
def test_facts_are_made_where_things_are_done_and_nowhere_else(made: Callable[..., Any]) -> None:
    with pytest.raises(TypeError):
        made(object(), step())


def test_what_another_process_did_is_read_as_strictly_as_a_ledger() -> None:
    told = done(step())
    assert ExecutedRound.read(told.to_dict()).event == told.event
    for ruined in ({}, {"type": "magic"}, {"type": "gaussian", "noise_multiplier": -1.0}):
        with pytest.raises(PrivetError):
            ExecutedRound.read(ruined)


def test_the_part_with_the_least_noise_counts_for_a_joint_release() -> None:
    zeros = torch.zeros(2)

    class Silent:
        def add_normal(self, flat: torch.Tensor, std: float) -> None: ...

    little, much = (executed_module.add_noise(zeros, std=std, source=Silent()) for std in (1.0, 6.0))
    assert executed_gaussian([(little, 1.0), (much, 1.0)], bound=0.5).event.noise_multiplier == 2.0
    assert executed_gaussian([(little, 9.0), (much, 1.0)], bound=0.5).event.noise_multiplier == 12.0


def test_the_same_done_by_several_costs_once_and_different_things_cost_all() -> None:
    one, other = done(step(1.0)), done(step(2.0))
    assert executed_together([one, one]) is one
    assert len(executed_together([one, other]).event.events) == 2
    with pytest.raises(ArgumentError):
        executed_together([])
