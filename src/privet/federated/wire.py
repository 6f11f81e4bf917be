"""Network traffic, measured by a proxy in front of a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of the TCP streams in both directions, including HTTP and polling.

    Attributes:
        up: Bytes from parties to the coordinator.
        down: Bytes from the coordinator to parties.
    """

    up: int = 0
    down: int = 0

    @property
    def total(self) -> int:
        return self.up + self.down

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(up=self.up - other.up, down=self.down - other.down)


def free_port() -> int:
    """Return a free port of the loopback device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class CountingProxy:
    """A TCP proxy on the loopback device that counts bytes; use it in a ``with`` block.

    TCP and IP headers and handshakes are not counted: they depend on the network, not on the message.
    """

    def __init__(self, target_port: int) -> None:
        self._target, self.port = target_port, free_port()
        self._counts = {"up": 0, "down": 0}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def traffic(self) -> Traffic:
        """The traffic up to now."""
        return Traffic(up=self._counts["up"], down=self._counts["down"])

    def __enter__(self) -> Self:
        """Listen in a background thread."""
        self._thread.start()
        if not self._ready.wait(10):
            raise ConnectionError(f"The counting proxy could not listen on port {self.port}. Start it again.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and close open connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        self._stop = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self._ready.set()
        await self._stop.wait()
        server.close()
        left = list(self._open)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await server.wait_closed()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(far_writer)
            await asyncio.gather(
                self._copy(reader, far_writer, "up"),
                self._copy(far_reader, writer, "down"),
            )
        except (OSError, asyncio.CancelledError):
            pass  # the other side sees a closed connection
        finally:
            for each in writers:
                each.close()
            for each in writers:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await each.wait_closed()
            self._open.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        while data := await reader.read(_CHUNK):
            self._counts[direction] += len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
