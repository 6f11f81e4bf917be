"""A federation of real processes on one machine: a SuperLink, one SuperNode per party, and a counting proxy between.

All traffic stays on the loopback device. Connections are not encrypted: between machines, start ``flower-superlink``
and ``flower-supernode`` with certificates.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from privet.errors import DependencyError, LoopError
from privet.federated.wire import CountingProxy, Traffic, free_port

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
_START_S = 120.0
_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation"
version = "1.0.0"
description = "A federation of privet"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "privet"

[tool.flwr.app.components]
serverapp = "federation_apps:server"
clientapp = "federation_apps:client"

[tool.flwr.app.config]
{config}
"""
_RECIPE_APPS = "from privet.federated.recipe_apps import client, server\n\n__all__ = ['client', 'server']\n"


def quiet_environment(home: Path) -> dict[str, str]:
    """Return the environment of this process with Flower's telemetry, update checks and downloads switched off.

    Args:
        home: Folder for Flower's files.
    """
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    return {**os.environ, **_QUIET, "FLWR_HOME": str(home), "PATH": path}


def write_app(folder: Path, config: Mapping[str, str], *, apps: str = _RECIPE_APPS) -> None:
    """Write the folder for ``flwr run``: a project file, and a module with ``client`` and ``server``.

    Args:
        folder: A new or empty folder.
        config: The run's configuration.
        apps: Source of the module; the apps of a federated recipe by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # literal strings of TOML do not interpret backslashes
    lines = "\n".join(f"{key} = '{value}'" for key, value in config.items())
    (folder / "pyproject.toml").write_text(_PROJECT.format(config=lines), "utf-8")
    (folder / "federation_apps.py").write_text(apps, "utf-8")


@dataclass
class LoopbackDeployment:
    """A SuperLink and SuperNodes; use it in a ``with`` block, which stops them at its end.

    Attributes:
        folder: Folder for logs and Flower's files.
        num_parties: Number of SuperNodes; SuperNode k has ``partition-id=k``.
    """

    folder: Path
    num_parties: int
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Start the SuperLink, the proxy and the SuperNodes."""
        self._home = self.folder / "flower"
        self._home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        (self._home / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n\n'
            f'[superlink.loopback]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self._proxy = CountingProxy(port)
        self._proxy.__enter__()
        try:
            self._start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
            self._wait_for(port)
            for number in range(self.num_parties):
                self.start_party(number)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._processes["superlink"].poll() is not None:
                    message = f"The SuperLink did not start. See {self.folder / 'superlink.log'}."
                    raise LoopError(message) from None
                time.sleep(0.1)

    def start_party(self, number: int) -> None:
        """Start the SuperNode of a party, connected through the proxy."""
        self._start(
            f"supernode{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._proxy.port}",
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", f"partition-id={number}",
        )  # fmt: skip

    def _start(self, name: str, *command: str) -> None:
        try:
            with (self.folder / f"{name}.log").open("ab") as log:
                # a new process session, so that its child processes can be stopped with it
                self._processes[name] = subprocess.Popen(  # noqa: S603 (fixed commands of an installed package)
                    command, stdout=log, stderr=log, env=quiet_environment(self._home), start_new_session=True
                )
        except FileNotFoundError:
            raise DependencyError(f"{command[0]} is not installed. Run: pip install 'privet[flower]'.") from None

    @property
    def traffic(self) -> Traffic:
        """Number of bytes between SuperNodes and SuperLink up to now."""
        return self._proxy.traffic

    def run(self, app: Path, *, rounds: Path, timeout_s: float) -> list[Traffic]:
        """Submit an app and wait until its server app has ended.

        Args:
            app: The folder of the app.
            rounds: A file to which the server app appends a line at the end of every round.
            timeout_s: Timeout of the run, in seconds.

        Returns:
            The traffic of each round.

        Raises:
            LoopError: the run did not start, or did not end in time.
        """
        seen: list[Traffic] = []
        last = self.traffic
        deadline = time.monotonic() + timeout_s
        log = self.folder / "run.log"
        with log.open("wb") as output:
            runner = subprocess.Popen(  # noqa: S603 (as above)
                ["flwr", "run", str(app), "loopback", "--stream"],  # noqa: S607 (found in the environment's own folder)
                stdout=output, stderr=output, env=quiet_environment(self._home), start_new_session=True,
            )  # fmt: skip
        self._processes["run"] = runner
        while True:
            has_ended = runner.poll() is not None
            num_lines = len(rounds.read_bytes().splitlines()) if rounds.exists() else 0
            if num_lines > len(seen):
                now = self.traffic
                # rounds that ended between two polls share one entry
                seen += [now - last] + [Traffic()] * (num_lines - len(seen) - 1)
                last = now
            if has_ended:
                break
            if time.monotonic() > deadline:
                raise LoopError(f"The federation did not end within {timeout_s:g} s. See the logs in {self.folder}.")
            time.sleep(0.05)
        if runner.returncode or not seen:
            raise LoopError(f"The federation ended before its first round did. See {log}.")
        return seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every started process and its child processes."""
        for process in reversed(self._processes.values()):
            _end(process, signal.SIGTERM)
        deadline = time.monotonic() + 5
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            _end(process, signal.SIGKILL)
            process.wait(5)
        self._proxy.__exit__(kind, error, trace)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    try:
        os.killpg(process.pid, how)
    except (ProcessLookupError, PermissionError):
        return
