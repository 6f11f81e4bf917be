"""The file under a ledger: durable appends, one holder at a time, and nothing half-written left behind.

All contact with the operating system goes through the small ``FileSystem`` protocol, one call for one system call. That
lets a simulated disk stand in for the real one and lose power at every single call.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from privet.errors import DependencyError, LedgerBusy, LedgerError, LedgerWriteError

try:
    import fcntl
except ModuleNotFoundError as missing:
    raise DependencyError(
        "A ledger needs the file locks of Linux and macOS, and this system has none (no module fcntl, as on "
        "Windows). Plans and accounting work here; train, report and certify in the Windows Subsystem for Linux, on "
        "Linux or on macOS."
    ) from missing

_READ_BUFFER = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileState:
    """Facts of the operating system about an open file."""

    size: int
    num_names: int
    is_regular: bool


class FileSystem(Protocol):
    """The system calls a ledger is made of. Every failure is an ``OSError``."""

    def create(self, path: Path) -> int:
        """Create a new file that only its owner may read, open for appending; fail if the name exists."""
        ...

    def open(self, path: Path, *, writable: bool) -> int:
        """Open an existing file, for appending if ``writable``; never follow a symbolic link."""
        ...

    def lock(self, handle: int) -> None:
        """Take the exclusive lock or raise ``BlockingIOError`` at once."""
        ...

    def state(self, handle: int) -> FileState:
        """Return size, number of names and type."""
        ...

    def append(self, handle: int, data: bytes) -> int:
        """Write at the end; return how many bytes were written, which may be fewer than asked."""
        ...

    def sync(self, handle: int) -> None:
        """Return only when the contents and the length are durable."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; fail if that name exists."""
        ...

    def remove(self, path: Path) -> None:
        """Remove one name."""
        ...

    def sync_names(self, path: Path) -> None:
        """Return only when the name ``path`` (and the folders it lies in) are durable."""
        ...

    def reader(self, handle: int) -> BinaryIO:
        """Return a reader from the start of the file. Closing it leaves the handle open."""
        ...

    def unlock(self, handle: int) -> None:
        """Give the lock back, also for copies of the handle in other processes."""
        ...

    def close(self, handle: int) -> None:
        """Close this process's handle only."""
        ...


class PosixFileSystem:
    """The real thing, on Linux and macOS."""

    def create(self, path: Path) -> int:
        """Create with mode 0600; the name must be free."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def open(self, path: Path, *, writable: bool) -> int:
        """Open without following a link."""
        # Non-blocking, so that a pipe put in the place of the ledger is refused rather than waited for.
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(path, flags | (os.O_RDWR | os.O_APPEND if writable else os.O_RDONLY))

    def lock(self, handle: int) -> None:
        """Lock with ``flock``, which dies with the process."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def state(self, handle: int) -> FileState:
        """Ask ``fstat``."""
        facts = os.fstat(handle)
        return FileState(size=facts.st_size, num_names=facts.st_nlink, is_regular=stat.S_ISREG(facts.st_mode))

    def append(self, handle: int, data: bytes) -> int:
        """Write once; the kernel puts the bytes at the end."""
        return os.write(handle, data)

    def sync(self, handle: int) -> None:
        """Sync data and length; on macOS down to the medium."""
        full_sync = getattr(fcntl, "F_FULLFSYNC", None)
        if full_sync is not None:
            # On macOS fsync only reaches the drive's cache.
            fcntl.fcntl(handle, full_sync)
        else:
            os.fdatasync(handle)

    def truncate(self, handle: int, size: int) -> None:
        """Cut with ``ftruncate``."""
        os.ftruncate(handle, size)

    def link(self, source: Path, target: Path) -> None:
        """Make a hard link, which unlike a rename never replaces."""
        os.link(source, target)

    def remove(self, path: Path) -> None:
        """Unlink."""
        os.unlink(path)

    def sync_names(self, path: Path) -> None:
        """Sync the folder, and every folder above it on the same device."""
        folder = path.resolve().parent
        self._sync_folder(folder)
        device = os.stat(folder).st_dev
        for above in folder.parents:
            # The run folder itself may be minutes old, so the names above it are made durable too.
            if os.stat(above).st_dev != device:
                return
            try:
                self._sync_folder(above)
            except PermissionError:
                return

    def _sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def reader(self, handle: int) -> BinaryIO:
        """Read through a large buffer."""
        os.lseek(handle, 0, os.SEEK_SET)
        return io.BufferedReader(io.FileIO(handle, closefd=False), _READ_BUFFER)

    def unlock(self, handle: int) -> None:
        """Unlock for every copy of the handle."""
        fcntl.flock(handle, fcntl.LOCK_UN)

    def close(self, handle: int) -> None:
        """Close."""
        os.close(handle)


_MEANINGS = {
    errno.ENOENT: "it does not exist",
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is a folder",
    errno.EEXIST: "it exists already",
}


@contextmanager
def _raised_as(kind: type[LedgerError], what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EROFS:
            kind = LedgerWriteError
        meaning = _MEANINGS.get(error.errno or 0, error.strerror or type(error).__name__)
        raise kind(f"{what}: {meaning}. {advice}") from error


class LedgerFile:
    """An open, locked ledger file of which only whole, durable rows count."""

    def __init__(self, *, files: FileSystem, path: Path, handle: int) -> None:
        self._files = files
        self._path = path
        self._handle = handle
        self._broken = False
        # Frees the lock of a ledger that was dropped without being closed; never writes, so nothing is given back.
        self._finalizer = weakref.finalize(self, files.close, handle)

    @classmethod
    def create(cls, path: Path, first_line: bytes, *, process: str, files: FileSystem) -> LedgerFile:
        """Put a ledger with its first row under a name that is still free.

        Guarantee: the name appears only after the first row is durable, and is itself durable on return. So a ledger
        that is empty, or missing after this returned, was damaged or deleted and is never a fresh start.
        """
        draft = path.with_name(f".{path.name}.{process}.new")
        advice = "Nothing was charged. Keep the ledger on a local disk with free space."
        with _raised_as(LedgerWriteError, f"Cannot create a ledger at {path}", advice):
            handle = files.create(draft)
        made = cls(files=files, path=path, handle=handle)
        try:
            with _raised_as(LedgerWriteError, f"Cannot create the ledger {path}", advice):
                files.lock(handle)
                made.append(first_line, at=0)
                cls._publish(files, draft, path)
        except BaseException:
            made.release()
            with suppress(OSError):
                files.remove(draft)
            raise
        return made

    @staticmethod
    def _publish(files: FileSystem, draft: Path, path: Path) -> None:
        try:
            files.link(draft, path)
        except FileExistsError:
            raise LedgerError(
                f"There is a ledger at {path} already. Resume it with Ledger.open, or start in a new folder: "
                "what was charged is never forgotten."
            ) from None
        try:
            files.remove(draft)
            files.sync_names(path)
        except BaseException:
            files.remove(path)
            raise

    @classmethod
    def open(cls, path: Path, *, files: FileSystem) -> LedgerFile:
        """Open and lock an existing ledger file; refuse links, folders, devices and files in use."""
        advice = "A run must not go on without its ledger."
        with _raised_as(LedgerError, f"Cannot open the ledger {path} for writing", advice):
            handle = files.open(path, writable=True)
        opened = cls(files=files, path=path, handle=handle)
        try:
            _check_regular(files, handle, path)
            with _raised_as(LedgerError, f"Cannot lock the ledger {path}", "Keep it on a file system that has locks."):
                opened._lock()
        except BaseException:
            opened.release()
            raise
        return opened

    def _lock(self) -> None:
        try:
            self._files.lock(self._handle)
        except BlockingIOError:
            raise LedgerBusy(
                f"The ledger {self._path} is in use by another process, or by an open session of this one. Wait "
                "until it ends, or close that session; worker processes that were left behind hold the ledger too."
            ) from None
        if self._files.state(self._handle).num_names == 0:
            raise LedgerBusy(f"The ledger {self._path} was replaced while it was being opened. Try again.")

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """Read the whole file from its start."""
        with (
            self._files.reader(self._handle) as reader,
            _raised_as(LedgerError, f"Cannot read the ledger {self._path}", "Check the disk."),
        ):
            yield reader

    def drop_unfinished(self, size: int) -> None:
        """Durably cut off an unfinished row that begins at ``size``."""
        advice = "Its last row is unfinished and must be cut off before the ledger can grow. Make it writable."
        with _raised_as(LedgerWriteError, f"Cannot write to the ledger {self._path}", advice):
            self._files.truncate(self._handle, size)
            self._files.sync(self._handle)

    def append(self, line: bytes, *, at: int) -> None:
        """Make one row durable.

        Guarantee: on return the whole row is on the disk. On any error the row does not count: it is cut off again, or,
        where even that fails, lies unfinished at the end, and this object refuses every later append.
        """
        self._check_unchanged(at)
        advice = "Nothing was charged and nothing may run. Free space or repair the disk, then resume."
        try:
            with _raised_as(LedgerWriteError, f"Cannot write to the ledger {self._path}", advice):
                num_written = self._files.append(self._handle, line)
                if num_written != len(line):
                    raise OSError(errno.ENOSPC, f"only {num_written} of {len(line)} bytes were written")
                self._sync()
        except BaseException:
            self._cut_back(at)
            raise

    def _check_unchanged(self, size: int) -> None:
        if self._broken:
            raise LedgerWriteError(
                f"The ledger {self._path} failed before and takes no more rows. Open it again to resume."
            )
        with _raised_as(LedgerWriteError, f"Cannot read the state of the ledger {self._path}", "Nothing was charged."):
            state = self._files.state(self._handle)
        if state.num_names == 0:
            raise LedgerWriteError(
                f"The ledger {self._path} was deleted while in use. Nothing was charged; stop this run."
            )
        if state.size != size:
            raise LedgerWriteError(
                f"The ledger {self._path} has {state.size} bytes where {size} were expected: a write was interrupted, "
                "or something else wrote to it. Nothing was charged. Open it again to resume."
            )

    def _sync(self) -> None:
        try:
            self._files.sync(self._handle)
        except OSError:
            # After a failed sync the system may call later ones successful without having written the lost pages.
            self._broken = True
            raise

    def _cut_back(self, size: int) -> None:
        try:
            self._files.truncate(self._handle, size)
        except OSError:
            self._broken = True

    def release(self) -> None:
        """Give the lock back and close the file. Safe to call twice."""
        if self._finalizer.alive:
            with suppress(OSError):
                self._files.unlock(self._handle)
            self._finalizer()

    def abandon(self) -> None:
        """Close this process's copy of the handle without touching the lock, as a forked child must."""
        self._finalizer()


def _check_regular(files: FileSystem, handle: int, path: Path) -> None:
    if not files.state(handle).is_regular:
        raise LedgerError(f"{path} is not a regular file. A ledger is never a device, pipe or folder.")


@contextmanager
def reading(path: Path, *, files: FileSystem) -> Iterator[BinaryIO]:
    """Open a ledger to look at it: no lock, no change."""
    with _raised_as(LedgerError, f"Cannot read the ledger {path}", "Check the path."):
        handle = files.open(path, writable=False)
    try:
        _check_regular(files, handle, path)
        with (
            files.reader(handle) as reader,
            _raised_as(LedgerError, f"Cannot read the ledger {path}", "Check the disk."),
        ):
            yield reader
    finally:
        files.close(handle)
