"""Power fails at every system call, in every way the disk may then look, twice: charged is never below released.

Killing a process at random moments practically never hits the one bad moment of a wrong design. So the ledger runs on
a simulated disk that loses power before each single call. Of what was not yet synced, nothing, a part or all may have
reached the disk, contents and names independently. Wrong designs are run through the same enumeration as controls: a
search that finds nothing in them would prove nothing.
"""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import pytest
from dp_accounting import dp_event

from privet.accounting.ledger import Ledger, VoidReason
from privet.accounting.ledger.store import FileState
from privet.errors import LedgerError, LedgerWriteError
from tests.accounting.ledgers import done

STEP = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
PATH = Path("/run/ledger.jsonl")


class PowerLossError(BaseException):
    """The machine is off. Nothing may catch this and go on."""


@dataclass
class Inode:
    """A file: what is surely on the disk, and what was done since."""

    durable: bytes = b""
    pending: list[bytes | int] = field(default_factory=list)

    def contents(self, num_pending: int | None = None) -> bytes:
        data = self.durable
        for change in self.pending[:num_pending]:
            data = data[:change] if isinstance(change, int) else data + change
        return data

    def survivors(self) -> set[bytes]:
        """Every content that a power loss may leave behind."""
        found = {self.durable}
        for number, change in enumerate(self.pending):
            before = self.contents(number)
            found.add(before)
            if isinstance(change, bytes):
                whole, half = len(change), len(change) // 2
                found |= {before + change[:size] for size in (1, half, whole - 1, whole)}
                # The length may reach the disk before the contents: the rest reads as zeros.
                found |= {before + change[:size] + bytes(whole - size) for size in (0, half)}
            else:
                found.add(before[:change])
        return found


@dataclass
class SimulatedDisk:
    """A file system that counts its calls and fails before one of them."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable_names: dict[str, Inode] = field(default_factory=dict)
    pending_names: list[dict[str, Inode]] = field(default_factory=list)
    handles: dict[int, Inode] = field(default_factory=dict)
    locked: dict[int, int] = field(default_factory=dict)
    num_calls: int = 0
    fail_at: int | None = None
    failure: Callable[[], BaseException] = PowerLossError
    fails_after_the_call: bool = False
    is_off: bool = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        if self.is_off:
            raise PowerLossError
        self.num_calls += 1
        failing = self.num_calls == self.fail_at
        if not failing or self.fails_after_the_call:
            yield
        if failing:
            error = self.failure()
            self.is_off = isinstance(error, PowerLossError)
            raise error

    def tick(self) -> None:
        with self.call():
            pass

    def _name(self, names: dict[str, Inode]) -> None:
        self.names, self.pending_names = names, [*self.pending_names, names]

    def _handle(self, inode: Inode) -> int:
        handle = len(self.handles) + 3
        self.handles[handle] = inode
        return handle

    def create(self, path: Path) -> int:
        with self.call():
            if str(path) in self.names:
                raise FileExistsError(errno.EEXIST, "exists")
            self._name({**self.names, str(path): Inode()})
            return self._handle(self.names[str(path)])
        raise AssertionError("unreachable")

    def open(self, path: Path, *, writable: bool) -> int:
        if str(path) not in self.names:
            raise FileNotFoundError(errno.ENOENT, "missing")
        return self._handle(self.names[str(path)])

    def lock(self, handle: int) -> None:
        if self.locked.setdefault(id(self.handles[handle]), handle) != handle:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")

    def unlock(self, handle: int) -> None:
        self.locked.pop(id(self.handles[handle]), None)

    def close(self, handle: int) -> None:
        if self.locked.get(id(self.handles[handle])) == handle:
            self.unlock(handle)

    def state(self, handle: int) -> FileState:
        inode = self.handles[handle]
        num_names = sum(other is inode for other in self.names.values())
        return FileState(size=len(inode.contents()), num_names=num_names, is_regular=True)

    def reader(self, handle: int) -> BinaryIO:
        return io.BytesIO(self.handles[handle].contents())

    def append(self, handle: int, data: bytes) -> int:
        with self.call():
            self.handles[handle].pending.append(data)
        return len(data)

    def sync(self, handle: int) -> None:
        with self.call():
            inode = self.handles[handle]
            inode.durable, inode.pending = inode.contents(), []

    def truncate(self, handle: int, size: int) -> None:
        with self.call():
            self.handles[handle].pending.append(size)

    def link(self, source: Path, target: Path) -> None:
        with self.call():
            if str(target) in self.names:
                raise FileExistsError(errno.EEXIST, "exists")
            self._name({**self.names, str(target): self.names[str(source)]})

    def remove(self, path: Path) -> None:
        with self.call():
            if str(path) not in self.names:
                raise FileNotFoundError(errno.ENOENT, "missing")
            self._name({name: inode for name, inode in self.names.items() if name != str(path)})

    def sync_names(self, path: Path) -> None:
        with self.call():
            self.durable_names, self.pending_names = self.names, []

    def after_power_loss(self) -> list[SimulatedDisk]:
        """Every disk that may be found when the machine starts again, seen from the ledger's name."""
        found: set[bytes | None] = set()
        for names in [self.durable_names, *self.pending_names]:
            inode = names.get(str(PATH))
            found |= {None} if inode is None else inode.survivors()
        left = [{} if contents is None else {str(PATH): Inode(durable=contents)} for contents in found]
        # Of the same class, so that a wrong design stays wrong after the restart.
        return [type(self)(names=names, durable_names=names) for names in left]

    def again(self, fail_at: int | None) -> SimulatedDisk:
        """The same disk once more, to fail at another call."""
        names = {name: Inode(durable=inode.durable) for name, inode in self.names.items()}
        return type(self)(names=names, durable_names=names, fail_at=fail_at)


@dataclass
class World:
    """What observers have seen so far. A crash does not take it back."""

    released: int = 0
    saved_at_hand: int = 0

    def release(self, disk: SimulatedDisk) -> None:
        disk.tick()
        self.released += 1
        disk.tick()


Run = Callable[[SimulatedDisk, World], None]


def start(disk: SimulatedDisk) -> Ledger:
    if str(PATH) in disk.names:
        return Ledger.open(PATH, plan_hash="plan", files=disk)
    return Ledger.create(PATH, plan={}, plan_hash="plan", files=disk)


def write_ahead(disk: SimulatedDisk, world: World) -> None:
    """The design of this library: two blocks of two rounds, the last round given up, one block given back."""
    ledger = start(disk)
    for _ in range(2):
        ledger.reserve(STEP, 2)
        ledger.check(done(STEP))
        world.release(disk)
    ledger.check(done(STEP))
    world.release(disk)
    ledger.void(VoidReason.INTERRUPTED)
    ledger.reserve(STEP, 2)
    ledger.close()


def charge_after_release(disk: SimulatedDisk, world: World) -> None:
    ledger = start(disk)
    for _ in range(3):
        world.release(disk)
        ledger.reserve(STEP)
        ledger.check(done(STEP))
    ledger.close()


def keep_rounds_over_a_restart(disk: SimulatedDisk, world: World) -> None:
    """Takes rounds that an earlier process had reserved to be still unused."""
    ledger = start(disk)
    for _ in range(world.saved_at_hand):
        world.release(disk)
    world.saved_at_hand = 2
    ledger.reserve(STEP, 2)
    for _ in range(2):
        ledger.check(done(STEP))
        world.release(disk)
    world.saved_at_hand = 0
    ledger.close()


def close_before_the_last_release(disk: SimulatedDisk, world: World) -> None:
    ledger = start(disk)
    ledger.reserve(STEP, 2)
    ledger.check(done(STEP))
    world.release(disk)
    ledger.close()
    world.release(disk)


class WithoutSync(SimulatedDisk):
    def sync(self, handle: int) -> None:
        self.tick()


class WithoutSyncOfNames(SimulatedDisk):
    def sync_names(self, path: Path) -> None:
        self.tick()


class WithoutSyncOfTheFirstRow(SimulatedDisk):
    def sync(self, handle: int) -> None:
        if self.handles[handle].contents().count(b"\n") > 1:
            super().sync(handle)


class DroppingTheLastRow(SimulatedDisk):
    """A reader that takes a whole last row for an unfinished one."""

    def reader(self, handle: int) -> BinaryIO:
        contents = self.handles[handle].contents()
        return io.BytesIO(contents[:-1] if contents.count(b"\n") > 1 else contents)


class OverwritingInPlace(SimulatedDisk):
    """Rows are not added but the file is written anew, as a counter in a state file would be."""

    def append(self, handle: int, data: bytes) -> int:
        whole = self.handles[handle].contents() + data
        with self.call():
            self.handles[handle].pending += [0, whole]
        return len(data)


@dataclass
class Findings:
    """What an enumeration saw."""

    num_scenarios: int = 0
    under_counts: int = 0
    unusable: int = 0

    def look(self, disk: SimulatedDisk, world: World) -> bool:
        """Compare the disk with the world; return whether a run could go on from here."""
        self.num_scenarios += 1
        try:
            charged = Ledger.read(PATH, files=disk).charged_rounds if str(PATH) in disk.names else 0
        except LedgerError:
            self.unusable += 1
            return False
        self.under_counts += charged < world.released
        return True


def enumerate_power_losses(run: Run, disk_type: type[SimulatedDisk], *, losses: int = 2) -> Findings:
    findings = Findings()
    todo = [(disk_type(), World(), losses)]
    seen: set[tuple[object, ...]] = set()
    while todo:
        disk, world, losses_left = todo.pop()
        call, went_off = 0, True
        while went_off:
            call += 1
            attempt, new_world = disk.again(call if losses_left else None), replace(world)
            try:
                run(attempt, new_world)
            except PowerLossError:
                pass
            except LedgerError:
                findings.unusable += 1
            went_off = attempt.is_off
            for found in attempt.after_power_loss():
                if findings.look(found, new_world) and went_off:
                    contents = found.names[str(PATH)].durable if found.names else None
                    situation = (_without_chance(contents), new_world.released, new_world.saved_at_hand, losses_left)
                    if situation not in seen:
                        seen.add(situation)
                        todo.append((found, new_world, losses_left - 1))
    return findings


def _without_chance(contents: bytes | None) -> object:
    """Two disks that differ only in random words lead to the same future."""
    rows = (contents or b"").split(b"\n")
    return tuple(row.split(b',"crc"')[0] for row in rows[:-1]), len(rows[-1]), b"\0" in rows[-1]


def test_charged_is_at_least_released_after_every_two_power_losses(
    record_property: Callable[[str, object], None],
) -> None:
    findings = enumerate_power_losses(write_ahead, SimulatedDisk)
    assert findings.num_scenarios > 1000
    record_property("power losses", findings.num_scenarios)
    record_property("under-counts", findings.under_counts)
    assert (findings.under_counts, findings.unusable) == (0, 0)


@pytest.mark.parametrize(
    ("run", "disk_type", "consequence"),
    [
        (write_ahead, WithoutSync, "under_counts"),
        (write_ahead, WithoutSyncOfNames, "under_counts"),
        (write_ahead, WithoutSyncOfTheFirstRow, "unusable"),
        (write_ahead, DroppingTheLastRow, "under_counts"),
        (write_ahead, OverwritingInPlace, "unusable"),
        (charge_after_release, SimulatedDisk, "under_counts"),
        (keep_rounds_over_a_restart, SimulatedDisk, "under_counts"),
        (close_before_the_last_release, SimulatedDisk, "under_counts"),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_the_enumeration_finds_every_wrong_design(
    run: Run, disk_type: type[SimulatedDisk], consequence: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("wrong designs found", f"{run.__name__} {disk_type.__name__}")
    assert getattr(enumerate_power_losses(run, disk_type, losses=1), consequence) > 0


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize(
    "failure",
    [KeyboardInterrupt, lambda: OSError(errno.EIO, "input/output error"), lambda: OSError(errno.ENOSPC, "disk full")],
    ids=["interrupt", "EIO", "ENOSPC"],
)
def test_a_failure_at_any_call_leaves_a_ledger_that_can_be_resumed(
    failure: Callable[[], BaseException], after: bool
) -> None:
    whole, findings = SimulatedDisk(), Findings()
    write_ahead(whole, World())
    for call in range(1, whole.num_calls + 1):
        disk, world = SimulatedDisk(fail_at=call, failure=failure, fails_after_the_call=after), World()
        with contextlib.suppress(KeyboardInterrupt, OSError, LedgerWriteError):
            write_ahead(disk, world)
        for found in [disk.again(None), *disk.after_power_loss()]:
            assert findings.look(found, world)
            write_ahead(found, world_after := replace(world))
            assert findings.look(found, world_after)
    assert findings.num_scenarios > whole.num_calls
    assert findings.under_counts == 0


def test_an_interrupt_at_any_call_never_breaks_the_chain_for_the_same_process() -> None:
    """Whoever catches the interrupt and goes on either goes on well or is told to open the ledger again."""
    for call in range(1, 40):
        disk, world = SimulatedDisk(), World()
        ledger = start(disk)
        disk.fail_at, disk.failure, disk.num_calls = call, KeyboardInterrupt, 0
        for _ in range(6):
            with contextlib.suppress(KeyboardInterrupt, LedgerWriteError):
                ledger.reserve(STEP, 2)
                ledger.check(done(STEP))
                world.release(disk)
        with contextlib.suppress(KeyboardInterrupt, LedgerWriteError):
            ledger.close()
        findings = Findings()
        assert findings.look(disk.again(None), world)
        assert findings.under_counts == 0
        assert world.released >= 4
