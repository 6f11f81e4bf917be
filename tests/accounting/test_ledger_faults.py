"""A disk that is full, failing or read-only: nothing is charged, nothing runs, and the ledger stays whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dp_accounting import dp_event

from privet.accounting.ledger import Ledger, VoidReason
from privet.accounting.ledger.store import PosixFileSystem
from privet.errors import LedgerError, LedgerMismatch, LedgerWriteError
from tests.accounting.ledgers import done

PLAN_HASH = "ab" * 32
STEP = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
OTHER = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(0.9))


class FaultyFiles(PosixFileSystem):
    """The real file system, of which single calls can be made to fail."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.bytes_left: int | None = None

    def _maybe_fail(self, call: str) -> None:
        if call in self.failing:
            raise OSError(self.failing[call], os.strerror(self.failing[call]))

    def create(self, path: Path) -> int:
        self._maybe_fail("create")
        return super().create(path)

    def append(self, handle: int, data: bytes) -> int:
        self._maybe_fail("append")
        if self.bytes_left is None:
            return super().append(handle, data)
        if self.bytes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().append(handle, data[: self.bytes_left])

    def sync(self, handle: int) -> None:
        self._maybe_fail("sync")
        super().sync(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._maybe_fail("truncate")
        super().truncate(handle, size)

    def link(self, source: Path, target: Path) -> None:
        self._maybe_fail("link")
        super().link(source, target)

    def sync_names(self, path: Path) -> None:
        self._maybe_fail("sync_names")
        super().sync_names(path)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def ledger(path: Path, files: FaultyFiles) -> Iterator[Ledger]:
    made = Ledger.create(path, plan={}, plan_hash=PLAN_HASH, files=files)
    made.reserve(STEP, 2)
    made.check(done(STEP))
    yield made
    files.failing.clear()
    files.bytes_left = None


@pytest.mark.parametrize("bytes_left", [0, 1, 50, 200])
def test_a_full_disk_charges_nothing_and_the_run_goes_on_once_there_is_space(
    path: Path, files: FaultyFiles, ledger: Ledger, bytes_left: int
) -> None:
    before, head = path.read_bytes(), ledger.head
    files.bytes_left = bytes_left
    for _ in range(3):
        with pytest.raises(LedgerWriteError, match="Nothing was charged"):
            ledger.reserve(STEP, 5)
    assert path.read_bytes() == before
    assert (ledger.available, ledger.charged_rounds, ledger.head) == (1, 2, head)
    files.bytes_left = None
    ledger.reserve(STEP, 5)
    ledger.close()
    assert Ledger.read(path).charged_rounds == 1


@pytest.mark.parametrize("bytes_left", [0, 1, 50, 200])
def test_a_row_that_cannot_even_be_cut_back_is_unfinished_and_stops_the_ledger(
    path: Path, files: FaultyFiles, ledger: Ledger, bytes_left: int
) -> None:
    files.bytes_left = bytes_left
    files.failing["truncate"] = errno.EIO
    with pytest.raises(LedgerWriteError):
        ledger.reserve(STEP, 5)
    files.bytes_left = None
    files.failing.clear()
    with pytest.raises(LedgerWriteError, match="again"):
        ledger.reserve(STEP)
    with pytest.raises(LedgerWriteError):
        ledger.close()
    assert Ledger.read(path).has_unfinished_row == (bytes_left > 0)
    resumed = Ledger.open(path, plan_hash=PLAN_HASH)
    assert (resumed.charged_rounds, resumed.available) == (2, 0)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_after_a_failed_sync_nothing_more_is_trusted(path: Path, files: FaultyFiles, ledger: Ledger, code: int) -> None:
    files.failing["sync"] = code
    with pytest.raises(LedgerWriteError):
        ledger.reserve(STEP, 5)
    assert (ledger.available, ledger.charged_rounds) == (1, 2)
    files.failing.clear()
    with pytest.raises(LedgerWriteError, match="Open it again"):
        ledger.reserve(STEP)
    with pytest.raises(LedgerWriteError):
        ledger.close()
    assert Ledger.open(path, plan_hash=PLAN_HASH).charged_rounds == 2


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EDQUOT, errno.EFBIG])
def test_a_failed_write_is_a_typed_error(path: Path, files: FaultyFiles, ledger: Ledger, code: int) -> None:
    before = path.read_bytes()
    files.failing["append"] = code
    with pytest.raises(LedgerWriteError, match="Cannot write"):
        ledger.reserve(STEP)
    assert path.read_bytes() == before


def test_rounds_reserved_before_the_disk_filled_may_still_be_used(files: FaultyFiles, ledger: Ledger) -> None:
    files.bytes_left = 0
    with pytest.raises(LedgerWriteError):
        ledger.reserve(STEP)
    ledger.check(done(STEP))
    assert ledger.available == 0


def test_a_closing_row_that_cannot_be_written_gives_nothing_back_and_frees_the_ledger(
    path: Path, files: FaultyFiles, ledger: Ledger
) -> None:
    files.bytes_left = 20
    with pytest.raises(LedgerWriteError):
        ledger.close()
    ledger.close()
    assert ledger.available == 0
    assert Ledger.open(path, plan_hash=PLAN_HASH).charged_rounds == 2


def test_a_void_that_cannot_be_written_still_uses_up_its_round(files: FaultyFiles, ledger: Ledger) -> None:
    files.bytes_left = 20
    with pytest.raises(LedgerWriteError):
        ledger.void(VoidReason.INTERRUPTED)
    assert (ledger.available, ledger.charged_rounds) == (0, 2)


def test_a_mismatch_that_cannot_be_recorded_is_raised_and_remembered(files: FaultyFiles, ledger: Ledger) -> None:
    files.bytes_left = 20
    with pytest.raises(LedgerMismatch, match="could not be recorded"):
        ledger.check(done(OTHER))
    files.bytes_left = None
    with pytest.raises(LedgerMismatch):
        ledger.verify([(STEP, 100)])
    with pytest.raises(LedgerMismatch):
        ledger.reserve(STEP)
    ledger.close()


@pytest.mark.parametrize("call", ["create", "append", "sync", "link", "sync_names"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_creation_that_fails_leaves_the_name_free_and_nothing_behind(
    path: Path, files: FaultyFiles, call: str, code: int
) -> None:
    files.failing[call] = code
    with pytest.raises(LedgerWriteError, match="Nothing was charged"):
        Ledger.create(path, plan={}, plan_hash=PLAN_HASH, files=files)
    assert os.listdir(path.parent) == []
    files.failing.clear()
    Ledger.create(path, plan={}, plan_hash=PLAN_HASH, files=files).close()


@pytest.mark.parametrize("call", ["truncate", "sync"])
def test_an_unfinished_row_that_cannot_be_cut_off_keeps_the_ledger_shut(
    path: Path, files: FaultyFiles, ledger: Ledger, call: str
) -> None:
    del ledger
    data = path.read_bytes()
    other = path.with_name("other.jsonl")
    other.write_bytes(data + data[:40])
    files.failing[call] = errno.EIO
    with pytest.raises(LedgerWriteError, match="unfinished"):
        Ledger.open(other, plan_hash=PLAN_HASH, files=files)
    files.failing.clear()
    assert Ledger.open(other, plan_hash=PLAN_HASH, files=files).charged_rounds == 2


def test_a_ledger_deleted_while_in_use_takes_no_more_rounds(path: Path, ledger: Ledger) -> None:
    path.unlink()
    with pytest.raises(LedgerWriteError, match="deleted"):
        ledger.reserve(STEP)


def test_a_ledger_replaced_while_in_use_takes_no_more_rounds(path: Path, ledger: Ledger) -> None:
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    with pytest.raises(LedgerWriteError, match="deleted"):
        ledger.reserve(STEP)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_ledger_changed_by_others_while_in_use_takes_no_more_rounds(path: Path, ledger: Ledger, change: int) -> None:
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(LedgerWriteError, match="something else wrote"):
        ledger.reserve(STEP)
    assert ledger.available == 1


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerWriteError, match="does not exist"):
        Ledger.create(tmp_path / "nowhere" / "ledger.jsonl", plan={}, plan_hash=PLAN_HASH)


# ---------------------------------------------------------------------------------------------- faults of a real kernel

_WRITE_UNTIL_REFUSED = """
import resource, signal, sys
from dp_accounting import dp_event
from privet.accounting.ledger import Ledger
from privet.errors import LedgerWriteError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
ledger = Ledger.create(sys.argv[1], plan={}, plan_hash="plan")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
reserved = 0
try:
    while True:
        ledger.reserve(step)
        reserved += 1
except LedgerWriteError:
    assert ledger.available == reserved == ledger.charged_rounds
    sys.stdout.write(str(reserved))
"""


def test_the_size_limit_of_a_real_kernel_leaves_whole_rows_only(path: Path) -> None:
    """The kernel writes part of the row that crosses the limit: a real short write."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_UNTIL_REFUSED, str(path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    view = Ledger.read(path)
    assert view.charged_rounds == int(done.stdout) > 2
    assert not view.has_unfinished_row
    assert path.stat().st_size <= 2000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 16 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.geteuid() == 0 and (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(place)], capture_output=True).returncode
        == 0
    )
    if not mounted:
        pytest.skip("mounting a small file system needs more rights")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def reserve_until_refused(ledger: Ledger) -> int:
    for reserved in range(1000):
        try:
            ledger.reserve(STEP)
        except LedgerWriteError:
            return reserved
    raise AssertionError("the disk never filled")


def test_a_disk_that_is_really_full_and_then_is_not(small_disk: Path) -> None:
    path = small_disk / "ledger.jsonl"
    ledger = Ledger.create(path, plan={}, plan_hash=PLAN_HASH)
    reserved = reserve_until_refused(ledger)
    assert 10 < reserved < 100
    assert ledger.charged_rounds == Ledger.read(path).charged_rounds == reserved
    subprocess.run(["mount", "-o", "remount,size=64k", str(small_disk)], check=True, capture_output=True)
    ledger.reserve(STEP)
    assert Ledger.read(path).charged_rounds == reserved + 1


def test_a_disk_that_is_really_read_only(small_disk: Path) -> None:
    path = small_disk / "ledger.jsonl"
    with Ledger.create(path, plan={}, plan_hash=PLAN_HASH) as ledger:
        ledger.reserve(STEP)
        ledger.check(done(STEP))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, capture_output=True)
    with pytest.raises(LedgerWriteError):
        Ledger.open(path, plan_hash=PLAN_HASH)
    with pytest.raises(LedgerWriteError):
        Ledger.create(small_disk / "new.jsonl", plan={}, plan_hash=PLAN_HASH)
    assert Ledger.read(path).charged_rounds == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_ledger_without_permission_is_a_typed_error(path: Path, ledger: Ledger) -> None:
    ledger.close()
    path.chmod(0)
    for call in (lambda: Ledger.read(path), lambda: Ledger.open(path, plan_hash=PLAN_HASH)):
        with pytest.raises(LedgerError):
            call()
