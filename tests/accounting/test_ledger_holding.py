"""One holder at a time: files, locks, processes, forks, threads and kills."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger, VoidReason
from privet.errors import (
    LedgerBusy,
    LedgerError,
    LedgerMismatch,
)
from tests.accounting.ledgers import create, done, reopen, step


def test_a_new_ledger_is_private_to_its_owner_and_leaves_no_other_file(path: Path) -> None:
    old = os.umask(0)
    try:
        create(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_nlink == 1
    assert os.listdir(path.parent) == [path.name]


def test_an_existing_ledger_is_never_started_afresh(lived: Path) -> None:
    before = lived.read_bytes()
    with pytest.raises(LedgerError, match="already"):
        create(lived)
    assert lived.read_bytes() == before
    assert os.listdir(lived.parent) == [lived.name]


def test_opening_under_another_plan_is_refused_with_advice(lived: Path) -> None:
    before = lived.read_bytes()
    with pytest.raises(LedgerMismatch, match="new run"):
        Ledger.open(lived, plan_hash="cd" * 32)
    assert lived.read_bytes() == before
    reopen(lived).close()


def test_a_missing_ledger_is_refused(path: Path) -> None:
    for call in (lambda: reopen(path), lambda: Ledger.read(path)):
        with pytest.raises(LedgerError, match="does not exist"):
            call()
    assert not path.exists()


def _symlink(place: Path, target: Path) -> None:
    place.symlink_to(target)


def _folder(place: Path, target: Path) -> None:
    place.mkdir()


def _pipe(place: Path, target: Path) -> None:
    os.mkfifo(place)


@pytest.mark.parametrize("put", [_symlink, _folder, _pipe])
def test_what_is_not_a_regular_file_is_refused(lived: Path, tmp_path: Path, put: Callable[[Path, Path], None]) -> None:
    place = tmp_path / "other.jsonl"
    put(place, lived)
    for call in (lambda: reopen(place), lambda: Ledger.read(place), lambda: create(place)):
        with pytest.raises(LedgerError):
            call()


def test_a_second_holder_is_refused_and_admitted_after_close(path: Path) -> None:
    first = create(path)
    with pytest.raises(LedgerBusy, match="another process"):
        reopen(path)
    assert Ledger.read(path).num_rows == 1
    first.close()
    reopen(path).close()


def run_in_child(action: Callable[[], bool]) -> bool:
    """Run an action in a forked process and return its answer."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if action() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def raises(kind: type[Exception], action: Callable[[], object]) -> bool:
    try:
        action()
    except kind:
        return True
    return False


def test_a_second_process_is_refused(path: Path) -> None:
    ledger = create(path)
    assert run_in_child(lambda: raises(LedgerBusy, lambda: reopen(path)))
    ledger.close()
    assert run_in_child(lambda: reopen(path).charged_rounds == 0)


def test_a_dead_process_leaves_no_lock_and_its_rounds_stay_charged(path: Path) -> None:
    create(path).close()

    def reserve_and_die() -> bool:
        ledger = reopen(path)
        ledger.reserve(step(), 7)
        os._exit(0)

    assert run_in_child(reserve_and_die)
    assert reopen(path).charged_rounds == 7


def test_a_forked_child_can_neither_use_nor_close_its_parents_ledger(path: Path) -> None:
    ledger = create(path)
    ledger.reserve(step(), 3)
    before = path.read_bytes()

    def child() -> bool:
        refused = [
            raises(LedgerBusy, lambda: ledger.reserve(step())),
            raises(LedgerBusy, lambda: ledger.check(done(step()))),
            raises(LedgerBusy, lambda: ledger.void(VoidReason.INTERRUPTED)),
        ]
        ledger.close()
        return all(refused) and raises(LedgerBusy, lambda: reopen(path))

    assert run_in_child(child)
    assert path.read_bytes() == before
    ledger.check(done(step()))
    ledger.close()
    assert Ledger.read(path).charged_rounds == 1


def test_a_ledger_closed_by_its_owner_is_free_even_while_a_forked_worker_lives(path: Path) -> None:
    ledger = create(path)
    read_end, write_end = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    ledger.close()
    reopen(path).close()
    os.write(write_end, b"x")
    os.waitpid(worker, 0)
    os.close(read_end)
    os.close(write_end)


def test_threads_that_reserve_at_once_keep_the_chain_whole(path: Path) -> None:
    ledger = create(path)
    threads = [threading.Thread(target=lambda: [ledger.reserve(step()) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Ledger.read(path).charged_rounds == 80


def _train_until_killed(path: Path, report: int) -> None:
    """Run rounds for ever, telling each release through a pipe that outlives this process."""
    ledger = reopen(path)
    while True:
        ledger.reserve(step(), 3)
        for _ in range(3):
            ledger.check(done(step()))
            os.write(report, b"r")


def test_a_process_killed_at_any_time_has_charged_what_it_released(path: Path) -> None:
    rng, released = random.Random(1), 0
    create(path).close()
    for kill in range(40):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                _train_until_killed(path, write_end)
            os._exit(1)
        os.close(write_end)
        released += len(os.read(read_end, 1))
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        while chunk := os.read(read_end, 65536):
            released += len(chunk)
        os.close(read_end)
        charged = Ledger.read(path).charged_rounds
        assert released <= charged <= released + 3 * (kill + 1)
    assert released > 40
