"""Single connections of the door: how many there may be, and how long each may take for what.

This module imports aiohttp, and is imported when a door is opened.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from gkestimator.core.errors import one_line
from gkestimator.core.records import NamedValues
from gkestimator.serving.access import DoorLimits

_REASONS = {408: "Request Timeout", 503: "Service Unavailable"}
_READ_BYTES = 2**18
# How long the rest of a refused body is read and dropped, so that the client reads the refusal and not a reset.
_LINGER_S = 1.0
# The same for connections beyond the most, and how many of those may linger.
_TURNED_AWAY_S = 0.1
_MOST_TURNED_AWAY = 128


@dataclass
class DoorTally:
    """Count the connections that are open now, and the answers since the door was opened, by status."""

    connections: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


class DoorServer(web.Server):
    """Make a connection for each client that comes; ``most`` at once."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.Response]],
        limits: DoorLimits,
        tally: DoorTally,
        most: int,
    ) -> None:
        super().__init__(self._handle, handler_cancellation=True)  # whose client has gone is not run any more
        self.limits = limits
        self.tally = tally
        self.most = most
        self.turned_away = 0
        self._answer = answer

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, DoorConnection)
        connection.begin_request()
        try:
            return await self._answer(request)
        finally:
            connection.end_request()

    def __call__(self) -> DoorConnection:
        """Return what handles a new connection."""
        return DoorConnection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,  # a small body could become a large one
            keepalive_timeout=self.limits.idle_s,
            lingering_time=_LINGER_S,
            read_bufsize=_READ_BYTES,
        )


class DoorConnection(web.RequestHandler):
    """One connection: aiohttp's, with limits of time on a request's head and on reading the answer."""

    def __init__(self, server: DoorServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._answering = False
        self._turned_away = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection; beyond the most, answer 503 and close it."""
        transport = cast(asyncio.Transport, transport)  # uvloop's, under Ray, is derived from nothing
        server = self._server
        if server.tally.connections < server.most:
            server.tally.connections += 1
            super().connection_made(transport)
            return
        self._turned_away = True
        server.turned_away += 1
        server.tally.statuses[503] += 1
        _write_error(transport, 503, f"{server.most} connections are open, no more are taken")
        if server.turned_away > _MOST_TURNED_AWAY:
            transport.abort()
        else:
            self._loop.call_later(_TURNED_AWAY_S, transport.close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let the connection go."""
        if self._turned_away:
            self._server.turned_away -= 1
            return
        self._server.tally.connections -= 1
        self._stop_head_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on. The first bytes of a head start its time limit."""
        if self._turned_away:
            return
        if not self._answering and self._head_timer is None and data:
            limit = self._server.limits.head_s
            self._head_timer = self._loop.call_later(limit, self._head_is_late)
        super().data_received(data)

    def begin_request(self) -> None:
        """Note that a head is complete and its request is answered now."""
        self._answering = True
        self._stop_head_timer()

    def end_request(self) -> None:
        """Note that the answer to a request is there to be written."""
        self._answering = False

    def pause_writing(self) -> None:
        """Wait for the client to read; who does not within the limit is cut off."""
        super().pause_writing()
        self._write_timer = self._loop.call_later(self._server.limits.write_s, self._cut_off)

    def resume_writing(self) -> None:
        """Write on."""
        self._stop_write_timer()
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to what is no HTTP, as JSON; nothing is logged, for it says only what a stranger sent."""
        self._stop_head_timer()
        self._server.tally.statuses[status] += 1
        words = "the request is no HTTP that is understood here"
        if isinstance(exc, web.RequestPayloadError) or status >= 500:
            words = "the request could not be read"
        response = error_response(status, words)
        response.force_close()
        return response

    def _head_is_late(self) -> None:
        self._head_timer = None
        transport = self.transport
        if transport is None or self._answering:
            return
        self._server.tally.statuses[408] += 1
        _write_error(transport, 408, f"the head did not come within {self._server.limits.head_s:g} s")
        self.force_close()

    def _cut_off(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _write_error(transport: asyncio.Transport, status: int, words: str) -> None:
    """Write an answer past aiohttp, for connections on which it reads or makes no request."""
    body = json.dumps({"error": words}).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    transport.write(head.encode() + body)


def json_response(document: NamedValues, *, status: int = 200) -> web.Response:
    """Return ``document`` as an answer."""
    return web.Response(body=json.dumps(document).encode(), status=status, content_type="application/json")


def error_response(status: int, words: str) -> web.Response:
    """Return a refusal: an object with one line in ``error``, as the protocol has it."""
    return json_response({"error": one_line(words)}, status=status)
