"""A federation without a network: what it computes, what it charges, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet.accounting.ledger import Ledger
from privet.errors import DataError, LedgerMismatch, LoopError, PlanError
from privet.federated.contributions import ClientUpdates, Contribution, Sessions
from privet.federated.coordinates import SharedCoordinates, layout_of, read_weights
from privet.federated.coordinator import Coordinator, RoundReport
from privet.federated.loopback import run_in_process
from privet.federated.messages import Answer, Outcome
from privet.federated.party import Party, Replica
from privet.mechanism.clipping import Clipping, KeepOrDrop, Threshold
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.training.start import privatize
from privet.vocabulary import Unit
from tests.accounting.ledgers import done
from tests.federated.conftest import (
    NUM_PARTIES,
    RECORDS,
    Federation,
    agreement_of,
    all_records,
    losses_of,
    network,
    plan_of,
    poisson,
)

ALL = tuple(range(NUM_PARTIES))


def charged(federation: Federation, who: str) -> int:
    return Ledger.read(federation.folder / who / "ledger.jsonl").charged_rounds


@pytest.mark.parametrize(
    ("rate", "clipping"),
    [
        (0.0, Threshold(norm=0.5)),
        (0.5, Threshold(norm=0.5)),
        (0.9, Threshold(norm=0.5)),
        (0.0, KeepOrDrop(norm=0.5, cutoff=2.0)),
    ],
    ids=["0.0", "0.5", "0.9", "global clipping"],
)
def test_sums_of_parties_train_the_model_that_all_records_in_one_place_train(
    federation: Federation, rate: float, clipping: Clipping
) -> None:
    plan = replace(plan_of(rate=rate, noise_multiplier=1e-7), clipping=clipping)
    federation = federation.with_agreement(agreement_of(plan))
    with federation.coordinator() as coordinator:
        run_in_process(coordinator, federation.parties())
    model = network()
    with privatize(model, SGD(model.parameters(), lr=1.0), all_records(), federation.agreement.plan, seed=1) as session:
        for step in session.steps():
            step.accumulate(losses_of(model))
            step.update()
    torch.testing.assert_close(read_weights(coordinator.model), read_weights(model), atol=1e-5, rtol=0)
    assert (read_weights(model) - read_weights(network())).abs().max() > 0.01


def test_sessions_of_parties_average_to_the_central_model_when_noise_is_negligible(federation: Federation) -> None:
    sampling = replace(plan_of().sampling, expected_batch_size=float(RECORDS))
    plan = plan_of(sampling, noise_multiplier=1e-7)
    federation = federation.with_agreement(agreement_of(plan, Sessions(learning_rate=1.0)))
    with federation.coordinator() as coordinator:
        run_in_process(coordinator, federation.parties())
    model, central = network(), plan_of(noise_multiplier=1e-7)
    with privatize(model, SGD(model.parameters(), lr=1.0), all_records(), central, seed=1) as session:
        for step in session.steps():
            step.accumulate(losses_of(model))
            step.update()
    torch.testing.assert_close(read_weights(coordinator.model), read_weights(model), atol=1e-5, rtol=0)


WAYS: list[tuple[Contribution, Unit]] = [
    (Sessions(learning_rate=0.5, local_steps=2), Unit.RECORD),
    (ClientUpdates(learning_rate=0.1), Unit.CLIENT),
]


@pytest.mark.parametrize(("way", "unit"), WAYS, ids=["sessions", "client_updates"])
def test_every_party_ends_at_the_planned_cost_and_says_what_it_protects(
    federation: Federation, way: Contribution, unit: Unit
) -> None:
    size = RECORDS if unit is Unit.RECORD else NUM_PARTIES
    plan = replace(plan_of(poisson(4, size=size), unit=unit), mask=replace(plan_of().mask, refresh_every=2))
    federation = federation.with_agreement(agreement_of(plan, way))
    with federation.coordinator() as coordinator:
        run_in_process(coordinator, federation.parties())
        spent = coordinator.guarantee()
    assert spent.epsilon == pytest.approx(plan.guarantee().epsilon)
    assert spent.unit is unit
    assert f"add-or-remove one {unit.value}" in str(spent)
    assert charged(federation, "coordinator") == 4
    asked = [number for number in ALL if (federation.folder / f"party{number}").exists()]
    assert asked
    assert all(charged(federation, f"party{number}") == 4 for number in asked)


def test_without_seeds_a_federation_is_private_and_with_them_it_says_that_it_is_not(federation: Federation) -> None:
    for seed, is_private in ((None, True), (5, False)):
        with replace(federation, folder=federation.folder / str(seed)).coordinator(seed=seed) as coordinator:
            coordinator.begin_round([])
            coordinator.end_round({})
            assert (coordinator.guarantee().not_private_because == ()) is is_private


def test_a_message_carries_the_kept_values_and_later_broadcasts_only_what_moved(federation: Federation) -> None:
    number, masks = (
        0,
        SharedCoordinates(federation.agreement, layout_of(network(), federation.agreement), torch.device("cpu")),
    )
    party, replica = federation.party(number), None
    with federation.coordinator() as coordinator:
        for place in range(3):
            broadcast = coordinator.begin_round([number])[number]
            expected = masks.number if place == 0 else masks.num_kept(place - 1)
            assert broadcast.values.shape == (expected,)
            answer, replica = party.answer(broadcast, replica)
            assert replica is not None
            assert torch.equal(replica.weights, read_weights(coordinator.model))
            assert answer.values.shape == (masks.num_kept(place),)
            assert answer.values.dtype == np.float32
            coordinator.end_round({number: answer})
        assert masks.num_kept(0) == masks.number - masks.number // 2


def _ruined(answer: Answer, fault: str) -> Answer | None:
    ruined = {
        "nan": replace(answer, values=np.where(np.arange(len(answer.values)) == 1, np.nan, answer.values)),
        "infinite": replace(answer, values=answer.values + np.float32(np.inf)),
        "short": replace(answer, values=answer.values[:-1]),
        "shape": replace(answer, values=answer.values.reshape(1, -1)),
        "type": replace(answer, values=answer.values.astype(np.float64)),
        "huge": replace(answer, values=np.full_like(answer.values, 1e20)),
        "stale": replace(answer, round=answer.round - 1),
        "foreign": replace(answer, agreement="0" * 64),
        "elsewhere": replace(answer, mask_seed=answer.mask_seed + 1),
        "silent": None,
    }[fault]
    return ruined if ruined is None or fault == "type" else replace(ruined, values=ruined.values.astype(np.float32))


FAULTS = ["nan", "infinite", "short", "shape", "type", "huge", "stale", "foreign", "elsewhere", "silent"]


def _ran(federation: Federation, present: tuple[int, ...], fault: str | None) -> tuple[Coordinator, RoundReport]:
    """Run to the end; in round 1 party 2 is faulty, or absent if it is not among those present."""
    parties, replicas = federation.parties(), dict[int, Replica | None]()
    reports: list[RoundReport] = []
    with federation.coordinator() as coordinator:
        while not coordinator.is_complete:
            is_faulty = coordinator.round == 1
            answers = {}
            for number, broadcast in coordinator.begin_round(present if is_faulty else ALL).items():
                found, replicas[number] = parties[number].answer(broadcast, replicas.get(number))
                ruined = _ruined(found, fault) if fault is not None and is_faulty and number == 2 else found
                if ruined is not None:
                    answers[number] = ruined
            reports.append(coordinator.end_round(answers))
    return coordinator, reports[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_party_leaves_the_model_that_its_absence_leaves_and_stays_charged(
    federation: Federation, fault: str
) -> None:
    faulty, report = _ran(replace(federation, folder=federation.folder / "faulty"), ALL, fault)
    absent, _ = _ran(replace(federation, folder=federation.folder / "absent"), (0, 1), None)
    assert report.accepted == (0, 1)
    assert (2 in report.refused) is (fault != "silent")
    assert report.silent == ((2,) if fault == "silent" else ())
    assert torch.equal(read_weights(faulty.model), read_weights(absent.model))
    assert bool(read_weights(faulty.model).isfinite().all())
    faults = replace(federation, folder=federation.folder / "faulty")
    assert [charged(faults, f"party{number}") for number in ALL] == [4, 4, 4]
    assert charged(faults, "coordinator") == 4
    assert charged(replace(federation, folder=federation.folder / "absent"), "party2") == 3


def test_a_party_that_fails_while_it_computes_stays_charged_for_the_round(federation: Federation) -> None:
    party = federation.party(0)

    def failing(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of paper")

    party._records = replace(party._records, losses=failing)
    with federation.coordinator() as coordinator:
        broadcast = coordinator.begin_round([0])[0]
        with pytest.raises(RuntimeError, match="out of paper"):
            party.answer(broadcast, None)
        coordinator.end_round({})
    assert charged(federation, "party0") == 1


def test_a_round_that_nobody_answers_releases_noise_and_is_charged(federation: Federation) -> None:
    with federation.coordinator() as coordinator:
        before = read_weights(coordinator.model)
        coordinator.begin_round(ALL)
        assert coordinator.end_round({}).silent == ALL
        assert not torch.equal(read_weights(coordinator.model), before)
    assert charged(federation, "coordinator") == 1


def test_the_coordinator_adds_the_planned_noise_to_kept_coordinates_and_none_to_others(federation: Federation) -> None:
    plan = plan_of(poisson(150), noise_multiplier=2.0)
    federation = federation.with_agreement(agreement_of(plan, learning_rate=3.0))
    masks = SharedCoordinates(federation.agreement, layout_of(network(), federation.agreement), torch.device("cpu"))
    draws = []
    with federation.coordinator() as coordinator:
        while not coordinator.is_complete:
            before, kept = read_weights(coordinator.model), masks.kept(coordinator.round)
            assert kept is not None
            coordinator.begin_round([])
            coordinator.end_round({})
            moved = read_weights(coordinator.model) - before
            assert not bool(moved[~kept.coordinates].any())
            draws.append(moved[kept.index])
    found, planned = torch.cat(draws), 3.0 * 2.0 * 0.5 / plan.sampling.expected_batch_size
    # the spread of a standard deviation over n draws is about one over the root of 2 n
    assert float(found.std()) == pytest.approx(planned, rel=4 / (2 * len(found)) ** 0.5)


def test_a_round_is_charged_before_anyone_is_asked_and_a_crash_keeps_it_charged(federation: Federation) -> None:
    def crash() -> None:
        with federation.coordinator() as coordinator:
            coordinator.begin_round(ALL)
            assert coordinator.ledger.charged_rounds == 1
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    with federation.coordinator() as resumed:
        assert resumed.round == 1
        run_in_process(resumed, federation.parties())
    assert charged(federation, "coordinator") == 4
    assert charged(federation, "party0") == 3


def test_leaving_in_the_middle_of_a_round_gives_nothing_back(federation: Federation) -> None:
    with federation.coordinator() as coordinator:
        coordinator.begin_round(ALL)
    assert charged(federation, "coordinator") == 1
    with federation.coordinator() as resumed:
        assert resumed.round == 1


def test_a_resumed_coordinator_goes_on_from_its_checkpoint(federation: Federation) -> None:
    with federation.coordinator() as first:
        first.begin_round([])
        first.end_round({})
    with federation.coordinator() as second:
        assert second.round == 1
        assert torch.equal(read_weights(second.model), read_weights(first.model))


def test_a_party_that_lost_the_model_says_so_uncharged_and_gets_all_of_it(federation: Federation) -> None:
    party = federation.party(0)
    with federation.coordinator() as coordinator:
        answer, _ = party.answer(coordinator.begin_round([0])[0], None)
        coordinator.end_round({0: answer})
        answer, replica = party.answer(coordinator.begin_round([0])[0], None)
        assert (answer.outcome, replica) == (Outcome.NEEDS_MODEL, None)
        assert 0 in coordinator.end_round({0: answer}).refused
        assert coordinator.begin_round([0])[0].since is None
        coordinator.end_round({})
    assert charged(federation, "party0") == 1


def test_a_party_whose_ledger_is_spent_says_so_and_contributes_nothing(federation: Federation) -> None:
    plan = federation.agreement.plan
    (federation.folder / "party0").mkdir(parents=True)
    path = federation.folder / "party0" / "ledger.jsonl"
    with Ledger.create(path, plan=plan.to_dict(), plan_hash=plan.hash, is_seeded=True) as ledger:
        ledger.reserve(plan.round_event, 4)
        for _ in range(4):
            ledger.check(done(plan.round_event))
    with federation.coordinator() as coordinator:
        answer, _ = federation.party(0).answer(coordinator.begin_round([0])[0], None)
        assert answer.outcome is Outcome.SPENT
        assert len(answer.values) == 0
        coordinator.end_round({0: answer})


def test_another_agreement_and_a_round_that_is_over_are_refused_before_anything_is_charged(
    federation: Federation,
) -> None:
    party = federation.party(0)
    with federation.coordinator() as coordinator:
        broadcast = coordinator.begin_round([0])[0]
        with pytest.raises(LedgerMismatch, match="another agreement"):
            federation.party(0, agreement=agreement_of(plan_of(noise_multiplier=2.0))).answer(broadcast, None)
        with pytest.raises(LedgerMismatch, match="asks for round 4"):
            party.answer(replace(broadcast, round=4), None)
        with pytest.raises(DataError, match="another length"):
            party.answer(replace(broadcast, values=broadcast.values[1:]), None)
        assert not (federation.folder / "party0").exists()
        _, replica = party.answer(broadcast, None)
        with pytest.raises(LedgerMismatch, match="asks for round 0"):
            party.answer(broadcast, replica)
        coordinator.end_round({})
    assert charged(federation, "party0") == 1


def test_a_clients_update_is_clipped_again_by_the_coordinator(federation: Federation) -> None:
    plan = plan_of(poisson(1, rate=1.0, size=1), rate=0.0, noise_multiplier=1e-7, unit=Unit.CLIENT)
    federation = federation.with_agreement(agreement_of(plan, ClientUpdates(learning_rate=5.0, local_epochs=3)))
    with federation.coordinator() as coordinator:
        before = read_weights(coordinator.model)
        answer, _ = federation.party(0).answer(coordinator.begin_round([0])[0], None)
        assert float(np.linalg.norm(answer.values)) == pytest.approx(0.5, rel=1e-4)
        coordinator.end_round({0: answer})
        moved = read_weights(coordinator.model) - before
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-3)
    torch.testing.assert_close(moved, torch.from_numpy(answer.values), atol=1e-5, rtol=0)


def test_clients_join_by_coins_of_the_plan(federation: Federation) -> None:
    plan = plan_of(poisson(300, rate=0.3, size=NUM_PARTIES), rate=0.0, unit=Unit.CLIENT)
    federation = federation.with_agreement(agreement_of(plan, ClientUpdates(learning_rate=0.1)))
    counts = np.zeros(NUM_PARTIES)
    with federation.coordinator() as coordinator:
        while not coordinator.is_complete:
            counts[list(coordinator.begin_round(ALL))] += 1
            coordinator.end_round({})
    assert np.all(np.abs(counts / 300 - 0.3) < 4 * np.sqrt(0.21 / 300))


def test_agreements_without_a_guarantee_are_refused() -> None:
    with pytest.raises(PlanError, match=r"Unit\.CLIENT"):
        agreement_of(plan_of(), ClientUpdates(learning_rate=0.1))
    with pytest.raises(PlanError, match="drawn by one process alone"):
        agreement_of(replace(plan_of(), mask=RandomMask(schedule=Constant(value=0.5))))
    with pytest.raises(PlanError, match="cannot be divided"):
        agreement_of(plan_of(), Sessions(learning_rate=0.1, local_steps=3))
    with pytest.raises(PlanError, match="change only between messages"):
        agreement_of(plan_of(), Sessions(learning_rate=0.1, local_steps=2))


def test_a_party_with_more_records_than_agreed_does_not_take_part(federation: Federation) -> None:
    records = all_records()
    assert isinstance(records, TensorDataset)
    model = network()
    with pytest.raises(DataError, match="max_records"):
        Party(
            agreement=federation.agreement,
            model=model,
            dataset=records,
            losses=losses_of(model),
            folder=federation.folder / "crowd",
        )


def test_rounds_are_begun_and_ended_in_turn(federation: Federation) -> None:
    with federation.coordinator() as coordinator:
        with pytest.raises(LoopError, match="after begin_round"):
            coordinator.end_round({})
        coordinator.begin_round([])
        with pytest.raises(LoopError, match="after end_round"):
            coordinator.begin_round([])
        coordinator.end_round({})
