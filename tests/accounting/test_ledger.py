"""The laws of the ledger: what is charged, what may be given back, and what is refused."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.ledger import Ledger, LedgerHead, VoidReason
from privet.accounting.ledger.rows import read_entry
from privet.errors import (
    AccountingError,
    ArgumentError,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LoopError,
)
from privet.mechanism.events import same_event
from tests.accounting.ledgers import PLAN, PLAN_HASH, create, done, reopen, step


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_bytes().splitlines()]


# ------------------------------------------------------------------------------------------------- charging and giving


@pytest.mark.parametrize("in_memory", [True, False])
def test_every_reserved_round_is_charged_before_it_is_used(path: Path, in_memory: bool) -> None:
    ledger = Ledger.in_memory(PLAN_HASH) if in_memory else create(path)
    assert (ledger.charged, ledger.charged_rounds, ledger.available) == ([], 0, 0)
    assert isinstance(ledger.event, dp_event.NoOpDpEvent)
    ledger.reserve(step(), 5)
    assert ledger.charged_rounds == 5
    assert ledger.available == 5
    ledger.check(done(step()))
    assert ledger.charged_rounds == 5
    assert ledger.available == 4
    assert same_event(ledger.event, dp_event.SelfComposedDpEvent(step(), 5))
    assert ledger.plan_hash == PLAN_HASH


def test_the_row_is_on_disk_when_reserve_returns(path: Path) -> None:
    with create(path) as ledger:
        ledger.reserve(step(), 4)
        view = Ledger.read(path)
        assert view.charged_rounds == 4
        assert view.head == ledger.head
        assert (view.plan, view.plan_hash, view.num_rows) == (PLAN, PLAN_HASH, 2)


def test_a_clean_exit_gives_back_exactly_the_rounds_never_begun(path: Path) -> None:
    with create(path) as ledger:
        ledger.reserve(step(), 10)
        ledger.reserve(step(3.0), 2)
        for _ in range(4):
            ledger.check(done(step()))
        ledger.void(VoidReason.OUT_OF_MEMORY)
    assert ledger.available == 0
    view = Ledger.read(path)
    assert view.charged == [(step(), 5)]
    assert view.num_voids == 1
    assert kinds(path) == ["create", "reserve", "reserve", "void", "close"]


def test_an_exit_by_exception_gives_nothing_back(path: Path) -> None:
    def fail() -> None:
        with create(path) as ledger:
            ledger.reserve(step(), 10)
            ledger.check(done(step()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert Ledger.read(path).charged_rounds == 10
    assert reopen(path).charged_rounds == 10


def test_a_resumed_process_has_no_rounds_at_hand(path: Path) -> None:
    ledger = create(path)
    ledger.reserve(step(), 10)
    ledger.check(done(step()))
    del ledger
    resumed = reopen(path)
    assert resumed.available == 0
    assert resumed.charged_rounds == 10
    with pytest.raises(LoopError, match="reserve"):
        resumed.check(done(step()))
    resumed.close()
    assert Ledger.read(path).charged_rounds == 10


def test_rounds_are_used_in_the_order_in_which_they_were_reserved(path: Path) -> None:
    with create(path) as ledger:
        ledger.reserve(step(1.0))
        ledger.reserve(step(2.0), 2)
        ledger.reserve(step(1.0))
        for noise in (1.0, 2.0, 2.0, 1.0):
            ledger.check(done(step(noise)))
        assert ledger.charged == [(step(1.0), 2), (step(2.0), 2)]


def test_giving_back_many_different_events_never_breaks_the_closing_row(path: Path) -> None:
    with create(path) as ledger:
        for k in range(2000):
            ledger.reserve(step(1 + k / 1000))
    view = Ledger.read(path)
    assert 0 < view.charged_rounds < 2000
    assert kinds(path)[-1] == "close"


def test_giving_back_many_reservations_of_one_event_takes_one_small_row(path: Path) -> None:
    ledger = create(path)
    for _ in range(1000):
        ledger.reserve(step(), 1000)
    ledger.close()
    assert len(path.read_bytes().splitlines()[-1]) < 1000
    assert Ledger.read(path).charged_rounds == 0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["reserve", "check", "wrong", "void", "resume"]), max_size=25), st.booleans())
def test_charged_is_at_least_released_for_every_sequence_of_calls(
    tmp_path_factory: pytest.TempPathFactory, calls: list[str], clean: bool
) -> None:
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    ledger = create(path)
    released = begun = mismatched = 0
    for call in calls:
        if call == "reserve":
            ledger.reserve(step(), 2)
        elif call == "resume":
            del ledger
            ledger = reopen(path)
        elif ledger.available == 0:
            with pytest.raises(LoopError):
                ledger.check(done(step()))
        elif call == "check":
            ledger.check(done(step()))
            released += 1
        elif call == "void":
            ledger.void(VoidReason.STEP_FAILED)
            begun += 1
        else:
            with pytest.raises(LedgerMismatch):
                ledger.check(done(step(0.5)))
            mismatched += 1
        assert Ledger.read(path).charged_rounds >= released + begun + 2 * mismatched
    if clean:
        ledger.close()
    view = Ledger.read(path)
    assert view.charged_rounds >= released + begun + 2 * mismatched
    assert view.num_mismatches == mismatched
    if clean and "resume" not in calls:
        assert view.charged_rounds == released + begun + 2 * mismatched


# ------------------------------------------------------------------------------------------------ facts against charges


def test_facts_that_differ_are_charged_on_top_and_refused(path: Path) -> None:
    ledger = create(path)
    ledger.reserve(step(1.1), 2)
    with pytest.raises(LedgerMismatch, match=r"1\.1.*0\.55"):
        ledger.check(done(step(0.55)))
    assert ledger.charged == [(step(1.1), 2), (step(0.55), 1)]
    assert ledger.available == 1
    assert Ledger.read(path).num_mismatches == 1
    with pytest.raises(LedgerMismatch, match="something else"):
        ledger.verify([(step(1.1), 2), (step(0.55), 1)])


def test_a_round_that_differs_is_refused_after_one_that_did_not() -> None:
    ledger = Ledger.in_memory(PLAN_HASH)
    ledger.reserve(step(1.1), 3)
    same = done(step(1.1))
    ledger.check(same)
    ledger.check(same)
    with pytest.raises(LedgerMismatch):
        ledger.check(done(step(0.55)))
    ledger.reserve(step(0.7))
    with pytest.raises(LedgerMismatch):
        ledger.check(same)


def test_facts_equal_up_to_rounding_pass(path: Path) -> None:
    with create(path) as ledger:
        ledger.reserve(step(1.1))
        ledger.check(done(step(1.1 * (1 + 1e-12))))
    assert Ledger.read(path).num_mismatches == 0


@pytest.mark.parametrize("facts", [step(float("nan")), "not an event", None], ids=["nan", "text", "none"])
def test_facts_that_no_event_describes_are_charged_as_not_private(path: Path, facts: object) -> None:
    ledger = create(path)
    ledger.reserve(step())
    with pytest.raises(LedgerMismatch):
        ledger.check(done(facts))  # type: ignore[arg-type]
    assert (dp_event.NonPrivateDpEvent(), 1) in Ledger.read(path).charged


def test_verify_accepts_the_plan_and_less_and_nothing_else(path: Path) -> None:
    ledger = create(path)
    ledger.reserve(step(1.0), 3)
    ledger.reserve(step(2.0), 2)
    ledger.verify([(step(1.0), 3), (step(2.0), 2)])
    ledger.verify([(step(2.0), 9), (step(1.0), 2), (step(1.0), 1)])
    for segments in (
        [(step(1.0), 3)],
        [(step(1.0), 2), (step(2.0), 2)],
        [(step(1.0), 3), (step(2.0, 0.02), 2)],
        [],
    ):
        with pytest.raises(LedgerMismatch):
            ledger.verify(segments)
        with pytest.raises(LedgerMismatch):
            Ledger.read(path).verify(segments)
    with pytest.raises(ArgumentError):
        ledger.verify([(step(1.0), -1)])


def test_reading_never_changes_state(lived: Path) -> None:
    before = lived.read_bytes()
    for _ in range(20):
        view = Ledger.read(lived)
        assert view.charged_rounds == 5
        _ = view.event, view.charged, view.head
        with pytest.raises(LedgerMismatch):
            view.verify([(step(), 5)])
    assert lived.read_bytes() == before
    view.charged.clear()
    assert view.charged_rounds == 5


# ------------------------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize("count", [0, -1, 1.0, True, None, "1", float("nan"), 2**53 + 1])
def test_a_count_that_is_no_positive_whole_number_charges_nothing(path: Path, count: object) -> None:
    ledger = create(path)
    before = path.read_bytes()
    with pytest.raises(ArgumentError):
        ledger.reserve(step(), count)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert ledger.available == 0


@pytest.mark.parametrize("event", [step(float("nan")), step(-1.0), None, "gaussian"], ids=str)
def test_an_event_that_cannot_be_written_charges_nothing(path: Path, event: object) -> None:
    ledger = create(path)
    with pytest.raises((ArgumentError, AccountingError)):
        ledger.reserve(event)  # type: ignore[arg-type]
    assert ledger.available == 0
    assert kinds(path) == ["create"]


def test_an_event_too_large_for_a_row_charges_nothing(path: Path) -> None:
    ledger = create(path)
    with pytest.raises(ArgumentError, match="row"):
        ledger.reserve(dp_event.ComposedDpEvent([step(1 + k) for k in range(1000)]))
    ledger.reserve(step())
    assert Ledger.read(path).charged_rounds == 1


@pytest.mark.parametrize("plan_hash", ["", "a b", 'x"', "x" * 129, 7, None, "é"])
def test_a_plan_hash_that_cannot_stand_in_a_row_is_refused(path: Path, plan_hash: object) -> None:
    with pytest.raises(ArgumentError):
        Ledger.create(path, plan={}, plan_hash=plan_hash)  # type: ignore[arg-type]
    assert not path.exists()


@pytest.mark.parametrize(
    "plan", [{"a": float("nan")}, {"a": float("inf")}, {"a": 2**53 + 1}, {"a": ...}, {1: 0, "1": 0}], ids=repr
)
def test_a_plan_that_json_cannot_hold_exactly_is_refused(path: Path, plan: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        Ledger.create(path, plan=plan, plan_hash=PLAN_HASH)
    assert not path.exists()


def test_no_free_text_enters_a_ledger(path: Path) -> None:
    ledger = create(path)
    ledger.reserve(step())
    with pytest.raises(ArgumentError, match="free text"):
        ledger.void("batch of 17 records failed")  # type: ignore[arg-type]
    assert ledger.available == 1


def test_voiding_without_a_round_is_a_mistake_of_the_loop(path: Path) -> None:
    with pytest.raises(LoopError):
        create(path).void(VoidReason.WORKER_LOST)
    assert kinds(path) == ["create"]


def test_a_closed_ledger_refuses_everything_but_closing_again(path: Path) -> None:
    ledger = create(path)
    ledger.reserve(step(), 2)
    ledger.close()
    ledger.close()
    for call in (
        lambda: ledger.reserve(step()),
        lambda: ledger.check(done(step())),
        lambda: ledger.void(VoidReason.INTERRUPTED),
    ):
        with pytest.raises(LedgerError, match="closed"):
            call()
    assert kinds(path).count("close") == 1


# ------------------------------------------------------------------------------------------------- the end of a plan


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_end_of_a_plan_is_told_once_and_durably(path: Path, in_memory: bool) -> None:
    with Ledger.in_memory(PLAN_HASH) if in_memory else create(path) as ledger:
        ledger.reserve(step())
        with pytest.raises(LoopError, match="not run"):
            ledger.complete()
        ledger.check(done(step()))
        assert not ledger.is_complete
        ledger.complete()
        ledger.complete()
        assert ledger.is_complete
        assert in_memory or Ledger.read(path).is_complete
    assert ledger.is_complete
    if not in_memory:
        assert kinds(path) == ["create", "reserve", "complete", "close"]
        assert Ledger.read(path).is_complete


@pytest.mark.parametrize("follows", ["reserve", "void", "mismatch"])
def test_whatever_follows_the_end_of_a_plan_takes_it_back(path: Path, follows: str) -> None:
    with create(path) as ledger:
        ledger.complete()
        ledger.reserve(step())
        if follows == "void":
            ledger.void(VoidReason.INTERRUPTED)
        elif follows == "mismatch":
            with pytest.raises(LedgerMismatch):
                ledger.check(done(step(9.0)))
        assert not ledger.is_complete
    assert not Ledger.read(path).is_complete


@pytest.mark.parametrize("seq_and_sha", [(-1, "0" * 64), (True, "0" * 64), (0, "0" * 63), (0, "G" * 64), (0, None)])
def test_a_head_that_names_no_row_cannot_be_made(seq_and_sha: tuple[int, str]) -> None:
    with pytest.raises(ArgumentError):
        LedgerHead(seq=seq_and_sha[0], sha256=seq_and_sha[1])


def test_a_head_cannot_be_changed() -> None:
    head = Ledger.in_memory(PLAN_HASH).head
    with pytest.raises(FrozenInstanceError):
        head.seq = 5  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("is_seeded", [True, False])
def test_a_ledger_remembers_whether_the_user_chose_the_seed(path: Path, is_seeded: bool) -> None:
    with Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH, is_seeded=is_seeded) as ledger:
        assert ledger.is_seeded is is_seeded
    assert Ledger.read(path).is_seeded is is_seeded
    with reopen(path) as ledger:
        assert ledger.is_seeded is is_seeded
    assert (b"seeded" in path.read_bytes()) is is_seeded


@pytest.mark.parametrize("said", ["false", "1", "null", '"yes"'])
def test_a_first_row_says_seeded_in_one_way_only(said: str) -> None:
    with pytest.raises(LedgerCorrupt):
        read_entry(b"create", b'{"format":1,"plan":{},"seeded":%b}' % said.encode(), seq=0)
