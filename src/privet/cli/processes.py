"""``privet train --processes N``: the same command in several processes of this machine, which train as ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType


def run_in_processes(arguments: Sequence[str], number: int) -> int:
    """Start the command in so many processes that find each other; return the exit code of the first that failed.

    Ctrl-C reaches all of them from the terminal, and SIGTERM is passed on. They stop together, so this process only
    waits.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(received: int, frame: FrameType | None) -> None:
        for process in started:
            process.send_signal(received)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, pass_on)
    try:
        command = [sys.executable, "-m", "privet", *arguments]  # this command again
        started.extend(subprocess.Popen(command, env=_environment(rank, number, port)) for rank in range(number))  # noqa: S603
        codes = [process.wait() for process in started]
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    return next((code for code in codes if code), 0)


def is_further_rank() -> bool:
    """Whether a launcher started this process as another rank than the first, which speaks for all."""
    return os.environ.get("WORLD_SIZE", "").strip() not in ("", "0", "1") and os.environ.get("RANK", "0") != "0"


@contextmanager
def unheard() -> Iterator[None]:
    """Let nothing that is printed in the block be seen; errors that leave it are told outside."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _environment(rank: int, number: int, port: int) -> Mapping[str, str]:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_PORT": port}
    return {**os.environ, "MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in own.items()}}


def without_option(arguments: Sequence[str], name: str) -> list[str]:
    """Return a command line without an option and its value."""
    found, skips = [], False
    for argument in arguments:
        if skips:
            skips = False
        elif argument == name:
            skips = True
        elif not argument.startswith(f"{name}="):
            found.append(argument)
    return found
