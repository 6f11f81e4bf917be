"""One ledger, one answer: session, account, report, certificate, total and verifier state the same guarantee."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet.accounting.guarantee import Guarantee
from privet.cli.account import _ledger_facts
from privet.durable import state_folder
from privet.errors import LoopError, WeightsChanged
from privet.federated.agreement import Agreement
from privet.federated.contributions import ClippedSums, Contribution, Sessions
from privet.federated.coordinator import Coordinator
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.models.convex_relu import ConvexRelu
from privet.plan import Plan
from privet.reports.certificate import Standing, certify
from privet.reports.certificate_page import write_certificate
from privet.reports.content import gather
from privet.runs.ledger_check import check_ledger
from privet.runs.project import total_of_runs
from privet.training.session import Session
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Release, Unit
from tests.scripts.test_verify_certificate import HOLDS, VERIFIER, WRONG

RATE, RIDGE = 0.5, 1e-2


def network() -> ConvexRelu:
    torch.manual_seed(0)
    return ConvexRelu((3,), 2, num_gates=4)


def every_iterate(sampling: Sampling, *, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> Plan:
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=network().gradient_bound),
        noise=Gaussian(noise_multiplier=2.0),
        delta=1e-5,
        adjacency=adjacency,
        unit=Unit.RECORD,
    )


def last_iterate(sampling: Sampling) -> Plan:
    model = network()
    constants = {"gradient_bound": model.gradient_bound, "smoothness": model.smoothness}
    descent = StronglyConvexDescent(learning_rate=RATE, ridge=RIDGE, **constants)
    return replace(every_iterate(sampling), release=Release.LAST_ITERATE, descent=descent)


POISSON = every_iterate(Poisson(rate=0.5, steps=4, expected_batch_size=4), adjacency=Adjacency.ADD_REMOVE)
PLANS = {
    "poisson": POISSON,
    "adaptive": replace(POISSON, clipping=AdaptiveQuantile(norm=1.0, count_noise_std=4.0)),
    "shuffled": every_iterate(Shuffle(batches=2, epochs=2, expected_batch_size=4)),
    "last of cyclic": last_iterate(Cyclic(batches=2, epochs=2, expected_batch_size=4)),
    "last of whole": last_iterate(FullBatch(steps=4, expected_batch_size=8)),
}


@pytest.fixture(autouse=True)
def _no_second_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that is asked besides takes seconds and changes no figure."""
    monkeypatch.setattr("privet.accounting.library_check.library_epsilon", lambda *_, **__: None)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run folder as an ending left it, and what the session of the last process said of it."""

    folder: Path
    said: Guarantee
    is_complete: bool


def session_in(folder: Path, plan: Plan, *, seed: int | None = None) -> tuple[Session, ConvexRelu]:
    generator = torch.Generator().manual_seed(1)
    records = TensorDataset(torch.randn(8, 3, generator=generator), torch.arange(8) % 2)
    model = network()
    optimizer = SGD(model.parameters(), lr=RATE, weight_decay=RIDGE)
    return privatize(model, optimizer, records, plan, folder=folder, checkpoint_every=1, seed=seed), model


def walked(folder: Path, plan: Plan, *, steps: int | None = None, seed: int | None = None) -> Ended:
    """Take so many steps, all by default, and leave the session as a loop does that breaks."""
    session, model = session_in(folder, plan, seed=seed)
    with session:
        for step in session.steps():
            step.accumulate(model.losses)
            step.update()
            if step.index + 1 == steps:
                break
    return Ended(folder=folder, said=session.guarantee(), is_complete=session.is_complete)


def finished(folder: Path, plan: Plan) -> Ended:
    return walked(folder, plan)


def seeded(folder: Path, plan: Plan) -> Ended:
    return walked(folder, plan, seed=3)


def broken_off_at_once(folder: Path, plan: Plan) -> Ended:
    return walked(folder, plan, steps=1)


def broken_off_in_the_last_round(folder: Path, plan: Plan) -> Ended:
    return walked(folder, plan, steps=3)


def broken_off_after_the_last_step(folder: Path, plan: Plan) -> Ended:
    return walked(folder, plan, steps=4)


def nothing_done(folder: Path, plan: Plan) -> Ended:
    session, _ = session_in(folder, plan)
    with session:
        pass
    return Ended(folder=folder, said=session.guarantee(), is_complete=session.is_complete)


def failed_in_the_last_step(folder: Path, plan: Plan) -> Ended:
    session, model = session_in(folder, plan)
    with suppress(ZeroDivisionError), session:
        for step in session.steps():
            step.accumulate(model.losses)
            if step.index == 3:
                raise ZeroDivisionError
            step.update()
    return Ended(folder=folder, said=session.guarantee(), is_complete=session.is_complete)


def left_without_an_update(folder: Path, plan: Plan) -> Ended:
    session, model = session_in(folder, plan)
    with suppress(LoopError), session:
        for step in session.steps():
            step.accumulate(model.losses)
            if step.index < 3:
                step.update()
    return Ended(folder=folder, said=session.guarantee(), is_complete=session.is_complete)


def killed(folder: Path, plan: Plan, *, after: int) -> Ended:
    """Copy the folder and the heads while the session is open: the files that a kill at that moment leaves."""
    session, model = session_in(folder.with_name("open"), plan)
    with session:
        for step in session.steps():
            step.accumulate(model.losses)
            step.update()
            if step.index + 1 == after:
                shutil.copytree(folder.with_name("open"), folder)
                shutil.copytree(state_folder(), folder.with_name("heads"))
                said, is_complete = session.guarantee(), session.is_complete
    shutil.copytree(folder.with_name("heads"), state_folder(), dirs_exist_ok=True)
    return Ended(folder=folder, said=said, is_complete=is_complete)


def killed_early(folder: Path, plan: Plan) -> Ended:
    return killed(folder, plan, after=1)


def killed_after_the_last_step(folder: Path, plan: Plan) -> Ended:
    return killed(folder, plan, after=4)


def broken_off_and_resumed(folder: Path, plan: Plan) -> Ended:
    walked(folder, plan, steps=1)
    return walked(folder, plan)


def killed_and_resumed(folder: Path, plan: Plan) -> Ended:
    killed(folder, plan, after=3)
    return walked(folder, plan)


def resumed_when_nothing_was_left(folder: Path, plan: Plan) -> Ended:
    walked(folder, plan)
    return nothing_done(folder, plan)


def changed_by_no_step(folder: Path, plan: Plan) -> Ended:
    """Weights that something else changed at the end: the last step's row is there, and no promise."""
    session, model = session_in(folder, plan)
    with suppress(WeightsChanged), session:
        for step in session.steps():
            step.accumulate(model.losses)
            step.update()
        model.linear.weight.data.add_(1.0)
    return Ended(folder=folder, said=session.guarantee(), is_complete=session.is_complete)


def changed_in_public(folder: Path, plan: Plan) -> Ended:
    session, model = session_in(folder, plan)
    with session:
        for number, step in enumerate(session.steps()):
            step.accumulate(model.losses)
            step.update()
            with suppress(LoopError), session.public_change(f"adds {number % 2} to the weights"):
                model.linear.weight.data.add_(number % 2)
    return Ended(folder=folder, said=session.guarantee(), is_complete=session.is_complete)


ENDINGS: tuple[Callable[[Path, Plan], Ended], ...] = (
    finished,
    seeded,
    broken_off_at_once,
    broken_off_in_the_last_round,
    broken_off_after_the_last_step,
    nothing_done,
    failed_in_the_last_step,
    left_without_an_update,
    killed_early,
    killed_after_the_last_step,
    broken_off_and_resumed,
    killed_and_resumed,
    resumed_when_nothing_was_left,
    changed_by_no_step,
    changed_in_public,
)


def figure(found: Guarantee) -> Guarantee:
    """Leave out what is not from the ledger: second opinions, the noise of one process, what a total says of runs."""
    words = [each for each in found.assumptions if not each.startswith(("noise came from", "the listed runs"))]
    return replace(found, witness=None, cross_check=None, assumptions=tuple(words))


# where every iterate is released anyway, few endings differ
FEW_ENDINGS = (
    finished,
    seeded,
    broken_off_in_the_last_round,
    failed_in_the_last_step,
    killed_early,
    changed_by_no_step,
    changed_in_public,
)
CASES = [
    pytest.param(kind, ending, id=f"{kind}-{ending.__name__}")
    for kind, plan in PLANS.items()
    for ending in (FEW_ENDINGS if plan.release is Release.EVERY_ITERATE else ENDINGS)
]


@pytest.mark.parametrize(("kind", "ending"), CASES)
def test_everyone_gives_the_same_answer_however_a_run_ended(
    tmp_path: Path, kind: str, ending: Callable[[Path, Plan], Ended]
) -> None:
    ended = ending(tmp_path / "run", PLANS[kind])
    said = figure(ended.said)
    check = check_ledger(ended.folder)
    assert figure(Guarantee.from_dict(_ledger_facts(check)["guarantee"])) == said
    assert figure(check_ledger(ended.folder / "ledger.jsonl").spent) == said
    assert figure(gather(ended.folder).ledger.spent) == said
    assert figure(total_of_runs([ended.folder]).guarantee) == said
    certificate = certify(ended.folder)
    assert figure(certificate.guarantee) == said
    assert check.is_finished == gather(ended.folder).is_finished == ended.is_complete
    write_certificate(certificate, ended.folder)
    if said.not_private_because:
        assert VERIFIER.main([str(ended.folder)]) == WRONG
    else:
        assert (certificate.standing is Standing.COMPLETE) == ended.is_complete
        assert VERIFIER.main([str(ended.folder)]) == HOLDS


COMPLETE_ENDINGS = (
    finished,
    seeded,
    broken_off_and_resumed,
    killed_and_resumed,
    resumed_when_nothing_was_left,
    changed_in_public,  # whose door stays shut for such a plan
)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_only_a_run_that_came_to_its_end_is_promised_the_bound_on_its_last_model(
    tmp_path: Path, ending: Callable[[Path, Plan], Ended]
) -> None:
    ended = ending(tmp_path / "run", PLANS["last of cyclic"])
    is_last = ending in COMPLETE_ENDINGS
    assert check_ledger(ended.folder).spent.released is (Release.LAST_ITERATE if is_last else Release.EVERY_ITERATE)


def test_a_ledger_that_does_not_say_how_its_run_ended_is_charged_every_iterate_until_the_run_is_taken_up(
    tmp_path: Path, go_to_another_machine: Callable[[], None]
) -> None:
    plan = PLANS["last of cyclic"]
    walked(tmp_path, plan)
    ledger = tmp_path / "ledger.jsonl"
    rows = ledger.read_bytes().splitlines(keepends=True)
    (place,) = (number for number, row in enumerate(rows) if b'"kind":"complete"' in row)
    ledger.write_bytes(b"".join(rows[:place]))
    go_to_another_machine()
    assert check_ledger(ledger).spent.released is Release.EVERY_ITERATE
    (tmp_path / "checkpoint.safetensors").unlink()
    assert walked(tmp_path, plan).said.released is Release.LAST_ITERATE


def test_a_run_that_breaks_off_in_its_first_epoch_goes_on_from_the_weights_it_began_with(tmp_path: Path) -> None:
    plan = PLANS["last of cyclic"]
    walked(tmp_path, plan, steps=1)
    session, model = session_in(tmp_path, plan)
    with torch.no_grad():
        model.linear.weight.add_(1.0)  # as a loop does that hands in the model of the broken run
    with session:
        assert torch.equal(model.linear.weight, network().linear.weight)


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("way", [ClippedSums(), Sessions(learning_rate=0.1)], ids=lambda way: type(way).__name__)
def test_a_federation_gives_the_same_answer_and_names_whom_it_trusts(
    tmp_path: Path, way: Contribution, rounds: int
) -> None:
    plan = every_iterate(FullBatch(steps=2, expected_batch_size=8), adjacency=Adjacency.ADD_REMOVE)
    agreement = Agreement(plan=plan, contribution=way, learning_rate=0.1, max_records=8)
    with Coordinator(agreement=agreement, model=network(), folder=tmp_path) as coordinator:
        for _ in range(rounds):
            coordinator.begin_round([0])
            coordinator.end_round({})
        said = coordinator.guarantee()
    words = [each for each in said.assumptions if not each.startswith("noise of the coordinator")]
    said = figure(replace(said, assumptions=tuple(words)))
    assert set(way.assumptions) <= set(said.assumptions)
    assert figure(check_ledger(tmp_path).spent) == said
    assert figure(total_of_runs([tmp_path]).guarantee) == said
    certificate = certify(tmp_path)
    assert figure(certificate.guarantee) == said
    write_certificate(certificate, tmp_path)
    assert VERIFIER.main([str(tmp_path)]) == HOLDS
