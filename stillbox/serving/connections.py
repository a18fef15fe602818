"""The server's connections: deadlines, a limit of their number, and a stop that resets none.

uvicorn has no deadline for the header of a request and for a response that its client does not
read, and no limit of connections that still answers health checks. docs/dependencies.md compares
servers.
"""

import asyncio
import math
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from stillbox.serving.bodies import AsciiJson, http_error
from stillbox.serving.middleware import HEALTH_PATHS
from stillbox.serving.turns import PacedConnection, PacedFlow, Turn, Turns
from stillbox.system import TERMINAL_CLOSED, open_files_left

# Connections that the socket keeps until they are accepted, and those accepted in a round of the
# event loop. The limit counts a connection three rounds later: all that come meanwhile have spare
# descriptors.
BACKLOG, _ACCEPTED_AT_ONCE = 2048, 4
# Connections that only health checks use, and descriptors that no connection uses.
_SPARE_CONNECTIONS, _SPARE_DESCRIPTORS = 4, 24
_MOST = 1000
_PIECE = 2**16


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of all connections."""

    seconds: float
    """For a handshake and a header, for a response to be read, and without a request."""
    most: int
    """Connections at a time, 2 or more; a further one replaces the one that has waited longest for
    its client."""
    unread: int = 64 * 2**20
    """Most bytes of unread responses; beyond it the oldest connection is cut."""
    grace: float = 1.0
    """Seconds for a request to arrive on an open connection while the server stops."""
    body: float = 5.0
    """Seconds for the rest of a body to arrive while the server stops."""

    @classmethod
    def of_process(cls, seconds: float) -> "ConnectionLimits":
        """Returns limits that leave some descriptors of the process for files."""
        left = open_files_left()
        most = _MOST if left is None else min(max(left - _SPARE_DESCRIPTORS, 2), _MOST)
        return cls(seconds=seconds, most=most)


class Connection(H11Protocol):
    """A connection that is cut when its client is too slow, or when others need its place."""

    def __init__(
        self,
        *,
        limits: ConnectionLimits,
        turns: Turns,
        tls: ssl.SSLContext | None,
        **of_uvicorn: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**of_uvicorn)
        self.app = cast(Any, self._respond)
        self.conn = self._paced = PacedConnection()
        self._turns, self._turn = turns, Turn(self._take_turn)
        self._limits, self._tls = limits, tls
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._since = 0.0
        self._ends_at = math.inf
        self.working = False
        """Whether the server works for it; otherwise the server waits for the client."""
        self.unread = 0
        """Bytes of its response that are not sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection, and begins the handshake or waits for a request."""
        transport = self.transport = cast(asyncio.Transport, transport)
        self.connections.add(self)
        self._wait_for_client()
        self._make_room()
        if self._tls is None:
            self._begin(transport)
        elif not transport.is_closing():
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._encrypt(transport, self._tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            encrypted = await self.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=self._limits.seconds
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are some
            return self.connection_lost(error)
        if encrypted is None:  # it was cut meanwhile
            return self.connection_lost(None)
        self._begin(encrypted)
        for data in self._early:
            self.data_received(data)

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.flow = self._paced_flow = PacedFlow(transport)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests; the first may come together with the end of the handshake."""
        if self.flow is None:
            self._early.append(data)
        else:
            super().data_received(data)

    def handle_events(self) -> None:
        """Waits for a turn to parse what has arrived."""
        self._paced_flow.wait(waits=True)
        self._turns.ask(self._turn)

    def _take_turn(self) -> bool:
        """Parses some events. Returns whether more are left; none are of a connection that ends."""
        if self.transport.is_closing():
            return False
        self._paced.begin_turn()
        try:
            super().handle_events()
        except BaseException:
            self._cut()
            raise
        self._paced_flow.wait(waits=self._paced.more)
        return self._paced.more

    def send_400_response(self, msg: str) -> None:
        """Refuses an invalid request, and cuts a connection that has an answer to it."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(self._paced.fault or msg)
        else:
            self._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer of a connection that has ended."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        # The wait begins before uvicorn's own code, which may begin with the next request.
        self._wait_for_client()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Ends the connection after the response in progress or to a request under way."""
        self._ends_at = self.loop.time() + self._limits.seconds
        if self.cycle is None or self.cycle.response_complete:
            self._cut_in(self._limits.grace)
        else:
            super().shutdown()
            if self.cycle.more_body:
                self._cut_in(self._limits.body)

    def _wait_for_client(self) -> None:
        self._since, self.working = self.loop.time(), False
        self._cut_in(self._limits.seconds)

    def _cut_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self in self.connections:  # otherwise it is lost
            at = min(self.loop.time() + seconds, self._ends_at)
            self._timer = self.loop.call_at(at, self._cut)

    def _cut(self) -> None:
        self.connections.discard(self)
        responding = self.cycle is not None and not self.cycle.response_complete
        if responding or self.transport.get_write_buffer_size():
            # The system would keep unread bytes for minutes.
            linger = struct.pack("ii", 1, 0)
            opened: socket.socket = self.transport.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.unread = 0
        self.transport.abort()

    def _all(self) -> set["Connection"]:
        return cast("set[Connection]", self.connections)

    def _make_room(self) -> None:
        if len(self._all()) > self._limits.most:
            waiting = [other for other in self._all() if not other.working]
            min(waiting, key=lambda other: other._since)._cut()

    def _count_unread(self, size: int) -> None:
        self.unread = size
        unread = [connection for connection in self._all() if connection.unread]
        for other in sorted(unread, key=lambda connection: connection._since):
            if sum(connection.unread for connection in unread) <= self._limits.unread:
                break
            if other is not self:
                other._cut()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this connection: the server's, with a deadline for responses."""
        # While a body arrives the connection waits for its client, and can be cut for another one.
        self.working = not self.cycle.more_body
        # The application has its own deadlines for the body and for the answer.
        self._cut_in(3 * self._limits.seconds)

        async def deliver(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._wait_for_client()
                if self._ends_at < math.inf or _frames_twice(scope):
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
                await send(message)
            else:
                await self._deliver_body(message, send)

        async def work_at_end() -> Message:
            message = await receive()
            whole = message["type"] == "http.request" and not message.get("more_body")
            if whole and not self.working:
                if full := self._full(scope):
                    raise http_error(503, full, _LATER)
                self.working = True
                self._cut_in(3 * self._limits.seconds)
            return message

        try:
            full = self._full(scope)
            refusal = AsciiJson({"error": full}, 503, _LATER) if full else None
            app = refusal or cast(ASGIApp, self.config.loaded_app)
            await app(scope, work_at_end, deliver)
        finally:
            self.working, self.unread = False, 0

    def _full(self, scope: Scope) -> str:
        """Returns the reason to refuse a request while others are in progress, or an empty text."""
        most = max(self._limits.most - _SPARE_CONNECTIONS, 1)
        working = sum(connection.working for connection in self._all()) - self.working
        spared = scope["path"] in HEALTH_PATHS or working < most
        return "" if spared else f"all {most} connections are taken; try again"

    async def _deliver_body(self, message: Message, send: Send) -> None:
        """Sends a body in pieces: each waits until the client has read most of the earlier ones."""
        body, more = message.get("body", b""), message.get("more_body", False)
        self._count_unread(len(body))
        for end in range(_PIECE, max(len(body), 1) + _PIECE, _PIECE):
            self.unread = max(len(body) - end, 0)
            last = not more and not self.unread
            await send({**message, "body": body[end - _PIECE : end], "more_body": not last})


_LATER = {"Retry-After": "1"}
_CLOSE = (b"connection", b"close")


def _frames_twice(scope: Scope) -> bool:
    """Whether a proxy may have taken another end of the body (RFC 9112, section 6.1)."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


class Server(uvicorn.Server):
    """uvicorn's server of `Connection`s; its stop resets none of them.

    `access_log` prints a line for each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        *,
        tls: ssl.SSLContext | None = None,
        access_log: bool = False,
    ) -> None:
        self._protocol = partial(Connection, limits=limits, turns=Turns(), tls=tls)
        config = uvicorn.Config(
            app,
            # Clients could fill the log with warnings about invalid requests.
            log_level="info" if access_log else "error",
            use_colors=False,
            access_log=access_log,
            server_header=False,
            lifespan="on",
            # Other loops and protocols, which uvicorn would choose where they are installed, accept
            # and buffer in another way.
            loop="asyncio",
            http=cast(Any, self._protocol),
            ws="none",
            # The socket listens with BACKLOG; so many are accepted before their limit is checked.
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=cast(int, limits.seconds),
            timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGHUP, unless ignored as under nohup, like SIGTERM; uvicorn has the others."""
        with super().capture_signals():
            main = threading.current_thread() is threading.main_thread()
            if main and signal.getsignal(TERMINAL_CLOSED) != signal.SIG_IGN:
                signal.signal(TERMINAL_CLOSED, lambda *_: self.handle_exit(signal.SIGTERM, None))
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the application, and accepts connections."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)
            # Connections inherit it. Without it a response's body waits 40 ms for its header.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more connections, finishes requests in flight, and stops the application."""
        # Closing the socket resets those that it keeps.
        kept = list(_accept_kept(sockets or ()))
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for accepted in kept:
            with suppress(OSError):
                await loop.connect_accepted_socket(self._connect, accepted)
        await super().shutdown(sockets)

    def _connect(self) -> asyncio.Protocol:
        return self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def _accept_kept(sockets: Sequence[socket.socket]) -> Iterator[socket.socket]:
    for listening in sockets:
        with suppress(OSError):  # BlockingIOError: there are no more
            while True:
                yield listening.accept()[0]
