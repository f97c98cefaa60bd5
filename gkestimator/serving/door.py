"""The door to the network: the V2 inference protocol over HTTP, in front of a backend.

Strangers are on the other side. Everything that they could hold on to has a limit of size, number and time
(:class:`DoorLimits`); what they get wrong is answered by a 4xx and a line of JSON, and nobody else notices. This module
imports aiohttp: docs/decisions/serving.md says why it is aiohttp. :mod:`gkestimator.serving.access` does not.
"""

from __future__ import annotations

import asyncio
import hmac
import logging

from aiohttp import HttpVersion10, HttpVersion11, web

from gkestimator import __version__
from gkestimator.core.errors import one_line
from gkestimator.core.records import NamedValues
from gkestimator.serving import protocol
from gkestimator.serving.access import DEFAULT_LIMITS, DoorLimits, allowed_files, check_address
from gkestimator.serving.backend import Backend, RefusedError, ServedSignature
from gkestimator.serving.connections import DoorServer, DoorTally, error_response, json_response

_LOG = logging.getLogger(__name__)
_MODELS = "/v2/models/"
_JSON = "application/json"
_FILES_LEFT = 256  # files that a process needs besides its connections


async def open_door(
    backend: Backend,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: DoorLimits = DEFAULT_LIMITS,
) -> Door:
    """Return a door that is open, in the running event loop; ``port`` 0 takes any that is free.

    Raises UsageError where it would let strangers in without a token, and OSError where the port is taken.
    """
    check_address(host, token)
    door = Door(backend, token=token, limits=limits)
    most = min(limits.connections, allowed_files() - _FILES_LEFT)
    door.clients = DoorServer(door.answer, limits, door.tally, most)
    door.server = await asyncio.get_running_loop().create_server(door.clients, host, port, backlog=4096)
    _, number, *_ = door.server.sockets[0].getsockname()
    shown_host = f"[{host}]" if ":" in host else host
    door.url = f"http://{shown_host}:{number}"
    return door


class Door:
    """Answer HTTP requests by a backend. ``url`` is where; ``tally`` counts what is there and what was answered."""

    def __init__(self, backend: Backend, *, token: str | None, limits: DoorLimits) -> None:
        self.url = ""
        self.limits = limits
        self.tally = DoorTally()
        self.server: asyncio.Server | None = None
        self.clients: DoorServer | None = None
        self._backend = backend
        self._token = None if token is None else token.encode()
        self._waiting_bytes = 0

    async def close(self, *, wait_s: float = 5.0) -> None:
        """Take no new connections, let requests under way be answered for ``wait_s``, and close what is left."""
        if self.server is not None and self.clients is not None:
            self.server.close()
            self.clients.pre_shutdown()  # idle connections end now, others after their answer
            await self.clients.shutdown(wait_s)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Return the answer to ``request``, which is never an exception but that the client has gone."""
        try:
            response = await self._answer(request)
        except RefusedError as e:
            response = error_response(e.status, e.words)
            if e.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            if not request.content.is_eof():
                response.force_close()  # what is left of its body is nothing to read as a next request
        except Exception as e:  # noqa: BLE001  # whatever a model raises must not end the door
            _LOG.error("a request failed: %s", shown_error(e))
            response = error_response(500, f"the model failed: {type(e).__name__}")
        self.tally.statuses[response.status] += 1
        return response

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if request.version not in (HttpVersion10, HttpVersion11):
            protocol.refuse("found another version of HTTP, expected 1.1", 505)
        if path == "/v2/health/live":
            _only(request, "GET")
            return json_response({"live": True})
        if path == "/v2/health/ready":
            _only(request, "GET")
            return self._readiness(self._backend.ready())
        self._check_token(request)  # whoever probes health need not have one
        if path == "/metrics":
            _only(request, "GET")
            return self._metrics()
        if path in ("/v2", "/v2/"):
            _only(request, "GET")
            return json_response(_server_metadata())
        if path.startswith(_MODELS):
            return await self._model(request, path.removeprefix(_MODELS))
        protocol.refuse(
            f"found no {protocol.shown(path)}, expected /v2, /v2/models/NAME/infer, /metrics", 404
        )

    def _check_token(self, request: web.BaseRequest) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # In constant time: how long it takes says nothing of how much of a guess was right.
        right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        if scheme.lower() != "bearer" or not right:
            protocol.refuse("expected the header Authorization: Bearer TOKEN, with the server's token", 401)

    def _readiness(self, ready: bool) -> web.Response:
        return json_response({"ready": ready}, status=200 if ready else 503)

    async def _model(self, request: web.BaseRequest, rest: str) -> web.Response:
        """Answer what is asked of a model: its description, whether it is ready, an inference."""
        name, action = rest, ""
        for suffix in ("ready", "infer"):
            if rest.endswith(f"/{suffix}"):
                name, action = rest.removesuffix(f"/{suffix}"), suffix
        name = name.removesuffix(f"/versions/{protocol.VERSION}")
        signature = self._backend.signatures().get(name)
        if signature is None:
            protocol.refuse(f"found no model {protocol.shown(name)}", 404)
        if action == "infer":
            _only(request, "POST")
            return await self._infer(request, name, signature)
        _only(request, "GET")
        if action == "ready":
            return self._readiness(self._backend.ready())
        return json_response(protocol.model_metadata(name, signature))

    async def _infer(self, request: web.BaseRequest, name: str, signature: ServedSignature) -> web.Response:
        header = request.headers.get(protocol.HEADER_LENGTH)
        limit = protocol.body_limit(signature, binary=header is not None, most_bytes=self.limits.body_bytes)
        body = await self._body(request, limit)
        asked = protocol.parse_request(body, protocol.header_length(header, len(body)), signature)
        answers = await self._backend.infer(name, asked.samples, asked.timeout_ms)
        parts, json_bytes = protocol.write_response(name, asked, answers, signature)
        if json_bytes is None:
            return web.Response(body=parts[0], content_type=_JSON)
        return web.Response(
            body=b"".join(parts),
            content_type="application/octet-stream",
            headers={protocol.HEADER_LENGTH: str(json_bytes)},
        )

    async def _body(self, request: web.BaseRequest, limit: int) -> bytes:
        """Return the body of ``request``. Raises RefusedError: it is larger than ``limit`` (what it says of itself is
        believed at once), comes too slowly, or is compressed."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            protocol.refuse("Content-Encoding: expected none, a compressed body is not read", 415)
        too_large = f"the body is too large: expected at most {limit} bytes for this model"
        if (request.content_length or 0) > limit:
            protocol.refuse(too_large, 413)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_s):
                async for part in request.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    self._waiting_bytes += len(part)
                    if size > limit:
                        protocol.refuse(too_large, 413)
                    if self._waiting_bytes > self.limits.waiting_bytes:
                        protocol.refuse("too many requests are being read", 503)
        except TimeoutError:
            protocol.refuse(f"the body did not come within {self.limits.body_s:g} s", 408)
        except (ConnectionError, web.RequestPayloadError):
            protocol.refuse("the body was cut short")
        finally:
            self._waiting_bytes -= size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _metrics(self) -> web.Response:
        lines = [
            "# HELP gkest_door_answers_total Answers over HTTP by status.",
            "# TYPE gkest_door_answers_total counter",
            *(
                f'gkest_door_answers_total{{status="{s}"}} {n}'
                for s, n in sorted(self.tally.statuses.items())
            ),
            "# HELP gkest_door_connections Connections that are open.",
            "# TYPE gkest_door_connections gauge",
            f"gkest_door_connections {self.tally.connections}",
        ]
        own = "\n".join(lines).encode() + b"\n"
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._backend.metrics() + own, headers=headers)


def _only(request: web.BaseRequest, method: str) -> None:
    if request.method != method:
        protocol.refuse(f"found the method {protocol.shown(request.method)}, expected {method}", 405)


def _server_metadata() -> NamedValues:
    return {"name": "gkestimator", "version": __version__, "extensions": ["binary_tensor_data"]}


def shown_error(error: BaseException) -> str:
    """Return an error for the log: one line of ASCII, because it may hold what a stranger sent."""
    return ascii(one_line(f"{type(error).__name__}: {error}"))[1:-1]
