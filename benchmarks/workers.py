"""Processes that answer commands: JSON objects, one a line, over pipes.

A process loads its libraries once and then does what it is told, so that two versions of a package, or the next model
of a list, cost one start each. What a process or its libraries print goes to its error output, never between answers.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

Send = Callable[[Mapping[str, Any]], None]

_CHUNK = 1 << 16
_MAX_LINES = 8
_LOAD_SECONDS = 300.0


class WorkerFailed(RuntimeError):
    """A process ended, or did not answer in time; the message has the end of its error output."""


class WorkerLate(WorkerFailed):
    """A process did not answer in time."""


class Worker:
    """A process that answers commands; use it in a ``with`` block, which ends the process."""

    def __init__(self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """Start ``python -m module``; it loads its libraries while the caller goes on."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(  # noqa: S603 -- this package itself, with names from its own lists
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
            bufsize=0,  # a command that its process did not take must not be sent again when the pipe is closed
        )
        self._unread = b""
        self._is_ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait(self) -> None:
        """Wait until the process has loaded its libraries."""
        if not self._is_ready:
            self._line(_LOAD_SECONDS)
            self._is_ready = True

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send a command, which is read when the process is ready."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._reason("The process ended before it was told what to do")) from None

    def answer(self, seconds: float = float("inf")) -> dict[str, Any]:
        """Wait for the next answer; the time that the process needs to get ready does not count.

        Raises:
            WorkerFailed: the process ended.
            WorkerLate: there is no answer after so many seconds.
        """
        self.wait()
        return self._line(seconds)

    def _line(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(None if left == float("inf") else left):
                    raise WorkerLate(self._reason(f"No answer within {seconds:.0f} s"))
            new = os.read(self._process.stdout.fileno(), _CHUNK)
            if not new:
                self._process.wait()
                raise WorkerFailed(self._reason(f"The process ended with status {self._process.returncode}"))
            self._unread += new
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: Mapping[str, Any], seconds: float = float("inf")) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(command)
        return self.answer(seconds)

    def end(self) -> None:
        """End the process; what it had not yet answered is lost."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _reason(self, what: str) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-_MAX_LINES:]
        return ": ".join([what, *filter(None, ["\n".join(lines)])])


def serve(handle: Callable[[dict[str, Any], Send], None]) -> None:
    """Answer the commands that come in, until there are no more; ``handle`` sends the answers of one command."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(answer: Mapping[str, Any]) -> None:
            channel.write(json.dumps(answer) + "\n")
            channel.flush()

        send({"is_ready": True})
        for line in sys.stdin:
            handle(json.loads(line), send)
