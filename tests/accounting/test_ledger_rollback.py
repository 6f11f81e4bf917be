"""A run folder that goes back to an older copy is refused, and its way out charges what both copies spent."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.accounting.ledger.heads import KeptHead, UserHeads
from privet.accounting.ledger.rollback import accept_roll_back, read_newest
from privet.errors import LedgerCorrupt, LedgerError
from privet.reports.certificate import certify
from privet.runs.ledger_check import check_ledger
from privet.training.folder import RunFolder
from tests.accounting.ledgers import PLAN, PLAN_HASH, step
from tests.cli.conftest import Ask
from tests.cli.conftest import ask as ask
from tests.fixtures.loops import LOOPS, Loop, plan_of

LOOP = Loop(plan=plan_of, stops_after=None)
STORED = Path(__file__).resolve().parents[1] / "fixtures" / "v438c880" / "loops"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what goes to another machine."""

    def go(name: str) -> None:
        monkeypatch.setenv("PRIVET_STATE", str(tmp_path / f"state of {name}"))

    go("this")
    return go


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A run of eight rounds: backed up after three, finished, lost, and restored."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    LOOP.run(run, at_most=3)
    shutil.copytree(run, copy)
    LOOP.run(run)
    shutil.rmtree(run)
    return Path(shutil.copytree(copy, run))


def reserving(path: Path, count: int, *, heads: UserHeads | None = None) -> None:
    """Charge rounds in a new ledger or an old one, and vanish."""
    if path.exists():
        ledger = Ledger.open(path, plan_hash=PLAN_HASH, heads=heads or UserHeads())
    else:
        ledger = Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH, heads=heads or UserHeads())
    ledger.reserve(step(), count)
    ledger.abandon()


def test_a_restored_folder_trains_no_second_model_on_one_charge(backup: Path) -> None:
    with pytest.raises(LedgerCorrupt, match=r"with 3 rounds charged.*knows of row \d+.*with 8: .*account accept RUN"):
        LOOP.run(backup)


@pytest.mark.parametrize("read", [check_ledger, certify], ids=["account", "certify"])
def test_a_restored_folder_is_neither_accounted_nor_certified(backup: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        read(backup)


def test_a_folder_of_format_1_is_remembered_from_its_first_opening(tmp_path: Path) -> None:
    loop, run, copy = LOOPS["adaptive_clipping"], tmp_path / "run", STORED / "adaptive_clipping"
    shutil.copytree(copy, run)
    assert loop.run(run) == 3
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        check_ledger(copy)


def test_the_newest_folder_goes_on_wherever_it_was_moved_and_however_often(tmp_path: Path) -> None:
    for place in range(4):
        LOOP.run(tmp_path / f"run{place}", at_most=2)
        check_ledger(tmp_path / f"run{place}")
        shutil.move(tmp_path / f"run{place}", tmp_path / f"run{place + 1}")
    assert check_ledger(tmp_path / "run4").rounds_charged == 8


def test_on_another_machine_a_copy_cannot_be_seen(backup: Path, machine: Callable[[str], None]) -> None:
    machine("somebody else")
    assert LOOP.run(backup) == 5


def test_accepting_charges_what_the_lost_copy_had_charged_and_no_more(backup: Path, ask: Ask) -> None:
    code, out, _ = ask("account", "accept", str(backup))
    assert (code, out.split(" rounds")[0]) == (0, "5")
    found = check_ledger(backup)
    assert (found.rounds_charged, found.mismatch) == (8, None)
    assert LOOP.run(backup) == 0
    assert "Nothing was charged" in ask("account", "accept", str(backup))[1]
    assert check_ledger(backup).rounds_charged == 8


def test_copies_that_went_on_apart_are_charged_together(tmp_path: Path, machine: Callable[[str], None]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    reserving(here, 3)
    shutil.copy(here, there)
    reserving(here, 10)
    machine("another")
    reserving(there, 7)
    machine("this")
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        read_newest(there, where=there)
    assert accept_roll_back(there) == 10
    assert read_newest(there, where=there).charged_rounds == 3 + 10 + 7
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        read_newest(here, where=here)  # the copy that was given up for lost
    assert accept_roll_back(here) == 17
    assert read_newest(here, where=here).charged_rounds == 3 + 10 + 17


@pytest.mark.parametrize("kept_rows", [0, 37, 129])
def test_however_long_the_ledger_what_is_accepted_is_never_too_little(tmp_path: Path, kept_rows: int) -> None:
    path, old = tmp_path / "ledger", tmp_path / "old"
    with Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH, heads=UserHeads()) as ledger:
        for row in range(130):
            if row == kept_rows:
                shutil.copy(path, old)
            ledger.reserve(step(), 1)
        ledger.abandon()
    accept_roll_back(old)
    charged = read_newest(old, where=old).charged_rounds
    assert 130 <= charged <= 130 + 3  # one row in four is kept
    assert len(json.loads(UserHeads.path_of(Ledger.read(old).run).read_text())["rows"]) <= 64


def test_what_accepting_charged_is_given_back_by_nobody(tmp_path: Path) -> None:
    path, old = tmp_path / "ledger", tmp_path / "old"
    reserving(path, 3)
    shutil.copy(path, old)
    reserving(path, 4)
    accept_roll_back(old)
    with Ledger.open(old, plan_hash=PLAN_HASH, heads=UserHeads()) as ledger:
        ledger.reserve(step(), 2)
    assert Ledger.read(old).charged_rounds == 7


def test_a_row_is_kept_before_data_are_read_for_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH, heads=UserHeads()) as ledger:
        for rounds in (1, 2):
            ledger.reserve(step(), rounds)
            kept = UserHeads().find(ledger.run)
            assert kept is not None
            assert (kept.head, kept.charged_rounds) == (ledger.head, ledger.charged_rounds)
    assert UserHeads().find(ledger.run) == KeptHead(marks=(*kept.marks, ledger.head), charged=())


def test_a_ledger_that_grew_past_what_was_kept_is_the_newest_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    reserving(path, 1)
    kept = UserHeads.path_of(Ledger.read(path).run).read_bytes()
    reserving(path, 1)
    UserHeads.path_of(Ledger.read(path).run).write_bytes(kept)  # as if the process had died between the two
    reserving(path, 1)
    assert read_newest(path, where=path).charged_rounds == 3


def test_a_run_that_goes_on_while_it_is_read_is_not_taken_for_an_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "ledger", Ledger.read
    reserving(path, 1)
    views = [read(path)]
    reserving(path, 1)
    monkeypatch.setattr(Ledger, "read", lambda path: views.pop() if views else read(path))
    assert read_newest(path, where=path).charged_rounds == 2


def test_a_state_folder_that_cannot_be_written_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "privet"):
        ledger = RunFolder(tmp_path / "run").open_ledger(plan_of(), is_seeded=False)
        for _ in range(3):
            ledger.reserve(step())
        ledger.close()
    told = [line for line in caplog.messages if "older copy of the run folder will not be noticed" in line]
    assert len(told) == 1
    assert "PRIVET_STATE" in told[0]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format":1,"rows":[],"charged":[]}', b'{"format":1}'])
def test_a_damaged_file_of_the_newest_row_is_refused_with_what_to_do(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "ledger"
    reserving(path, 1)
    UserHeads.path_of(Ledger.read(path).run).write_bytes(damage)
    with pytest.raises(LedgerError, match=r"is damaged\. If you are certain .* delete the file"):
        reserving(path, 1)


def test_the_file_of_a_newer_version_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    reserving(path, 1)
    UserHeads.path_of(Ledger.read(path).run).write_bytes(b'{"format":2}')
    with pytest.raises(LedgerError, match="made by a newer privet"):
        read_newest(path, where=path)


def test_nothing_computed_from_data_is_kept(backup: Path) -> None:
    kept = json.loads(UserHeads.path_of(Ledger.read(backup / "ledger.jsonl").run).read_text())
    assert set(kept) == {"format", "rows", "charged"}
    assert {key for row in kept["rows"] for key in row} == {"seq", "sha256"}
    assert {key for part in kept["charged"] for key in part} == {"event", "count"}
