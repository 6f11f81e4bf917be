"""``privet train --processes N``: the same command in several processes of this machine, which train as ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence


def run_in_processes(arguments: Sequence[str], number: int) -> int:
    """Start the command in so many processes that find each other; return the exit code of the first that failed.

    Ctrl-C reaches all of them from the terminal. They stop together, so this process only waits.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        started = [
            subprocess.Popen(  # noqa: S603 -- this command again
                [sys.executable, "-m", "privet", *arguments],
                env=_environment(rank, number, port),
            )
            for rank in range(number)
        ]
        codes = [process.wait() for process in started]
    finally:
        signal.signal(signal.SIGINT, before)
    return next((code for code in codes if code), 0)


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
