"""Deadlines and limits of connections, and a stop that resets none."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stillbox.predicting.predictor import Predictor
from stillbox.serving.app import build_app
from stillbox.serving.connections import Connection, ConnectionLimits, Server
from stillbox.serving.settings import ServeSettings
from stillbox.serving.turns import PacedFlow
from tests.serving.conftest import encoded, make_certificate, running

RED = encoded(204)
LARGE = bytes(range(256)) * (2**15)
POST = b"POST /detect HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECONDS = 0.2
LATEST = 3.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve(backend):
    """The function from limits to a running server, its address and its connections."""
    with contextlib.ExitStack() as stack:
        stack.callback(backend.open.set)

        def start(tls=None, **limits):
            timeout = limits.get("seconds", 30.0)
            settings = ServeSettings(
                batch_sizes=(1,), max_delay_ms=0.0, runs_at_once=1, timeout=timeout
            )
            app = build_app(Predictor(backend), settings)
            app.router.routes.append(Route("/large", lambda request: Response(LARGE)))
            server, address = stack.enter_context(running(app, tls=tls, **limits))
            backend.entered.clear()
            return server, httpx.URL(address)

        yield start


@contextlib.contextmanager
def connected(url, sent=b"", receive_buffer=None):
    with socket.socket() as client:
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(LATEST)
        client.connect((url.host, url.port))
        client.sendall(sent)
        yield client


def read_all(client):
    """Returns what a server sends until it closes the connection."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(2**16):
            got += more
    return got


def until(condition):
    end = time.monotonic() + LATEST
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


SLOW = {
    "nothing": (b"", b""),
    "half a header": (b"POST /detect HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"a"),
    "half a line": (b"GE", b""),
    "a body that stops": (POST + b"Content-Length: 1000\r\n\r\nabc", b""),
    "a slow body": (POST + b"Content-Length: 1000\r\n\r\n", b"a"),
    "a slow body that nobody wants": (
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
        b"a",
    ),
    "chunks that stop": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", b""),
    "slow chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "no second request": (GET, b""),
    "half a second request": (GET + b"GET / HT", b""),
    "a slow second request": (GET + b"GET / HTTP/1.1\r\nX-A: ", b"a"),
    "pipelined requests": (GET * 50, b""),
    "an expected body": (POST + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n", b""),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n", b""),
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_client_that_is_too_slow_is_cut(serve, kind):
    _, url = serve(seconds=SECONDS)
    first, then = SLOW[kind]
    with connected(url, first) as client:
        stopped = threading.Event()

        def trickle():
            with contextlib.suppress(OSError):
                while then and not stopped.wait(SECONDS / 10):
                    client.sendall(then)

        trickling = threading.Thread(target=trickle)
        trickling.start()
        try:
            got = read_all(client)
        finally:
            stopped.set()
            trickling.join()
    assert httpx.get(url.join("/healthz")).status_code == 200
    if "body" in kind and "nobody" not in kind:
        assert b"408 " in got


@pytest.mark.parametrize("kind", ["no handshake", "half a handshake", "no request", "no close"])
def test_an_encrypted_connection_has_the_same_deadline(serve, certificate, kind):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    server, url = serve(tls=tls, seconds=SECONDS)
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    with connected(url) as client:
        if kind == "half a handshake":
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20))
        elif kind == "no request":
            client = trust.wrap_socket(client, server_hostname="127.0.0.1")
            client.sendall(b"GET / HT")
        elif kind == "no close":
            client = trust.wrap_socket(client, server_hostname="127.0.0.1")
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            until(lambda: not server.server_state.connections)
        with contextlib.suppress(ssl.SSLError):
            read_all(client)
        client.close()
    until(lambda: not server.server_state.connections)
    assert httpx.get(url.join("/healthz"), verify=trust).status_code == 200


def ask(target, version="1.1", more=b""):
    return f"GET {target} HTTP/{version}\r\nHost: localhost\r\n".encode() + more + b"\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        ask("/large"),
        ask("/large", "1.0"),
        ask("/large", more=b"Connection: close\r\n"),
        ask("/large") * 3,
        ask("/page/style.css") * 2000,
    ],
    ids=["1.1", "1.0", "close", "three", "many"],
)
@pytest.mark.parametrize("reads", [False, True], ids=["unread", "a byte at a time"])
def test_a_client_that_does_not_read_is_cut(serve, sent, reads):
    server, url = serve(seconds=SECONDS)
    with connected(url, receive_buffer=4096) as client:
        client.settimeout(0.02)
        # The server reads no further while its responses are not read.
        with contextlib.suppress(TimeoutError):
            client.sendall(sent)
        until(lambda: server.server_state.connections)
        while server.server_state.connections:
            time.sleep(0.01)
            if reads:
                client.recv(1)
        client.settimeout(LATEST)
        with contextlib.suppress(ConnectionResetError):
            assert len(read_all(client)) < len(LARGE)
    assert httpx.get(url.join("/healthz")).status_code == 200


def test_a_client_that_reads_slowly_gets_everything(serve):
    _, url = serve(seconds=5.0)
    with httpx.stream("GET", url.join("/large")) as answer:
        pieces = []
        for piece in answer.iter_raw(2**20):
            pieces.append(piece)
            time.sleep(0.01)
    assert b"".join(pieces) == LARGE


def test_responses_that_nobody_reads_are_bounded(serve):
    server, url = serve(unread=len(LARGE))

    def held():
        connections = server.server_state.connections
        return [connection.unread for connection in connections if connection.unread]

    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(4):
            clients.append(stack.enter_context(connected(url, ask("/large"), 4096)))
            until(held)
            time.sleep(0.02)
            assert sum(held()) <= len(LARGE)
        until(lambda: len(held()) == 1)
        for client in clients[:3]:
            assert len(read_all(client)) < len(LARGE)
        last = clients[3]
        last.settimeout(1.0)
        got = 0
        while got < len(LARGE):
            got += len(last.recv(2**20))


def test_silent_connections_leave_room(serve, backend):
    """The oldest connection without a request in progress is cut."""
    server, url = serve(most=6)
    backend.open.clear()
    length = f"Content-Length: {len(RED)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        asking = stack.enter_context(connected(url, POST + length + RED))
        assert backend.entered.wait(10)
        silent = [stack.enter_context(connected(url, b"GET / HT")) for _ in range(30)]
        for _ in range(3):
            assert httpx.get(url.join("/healthz")).status_code == 200
        assert len(server.server_state.connections) <= 6
        assert read_all(silent[0]) == b""
        backend.open.set()
        assert asking.recv(12) == b"HTTP/1.1 200"


def test_health_checks_are_answered_when_all_connections_have_requests(serve, backend):
    server, url = serve(most=6)
    backend.open.clear()
    body = POST + b"Content-Length: %d\r\n\r\n" % len(RED)
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(connected(url, body + RED[:-1]))
        for _ in range(2):
            stack.enter_context(connected(url, body + RED))
        until(
            lambda: sum(connection.working for connection in server.server_state.connections) == 2
        )
        refused = stack.enter_context(connected(url, POST + b"Content-Length: 0\r\n\r\n"))
        slow.sendall(RED[-1:])
        for connection in (refused, slow):
            got = connection.recv(2**16)
            assert b" 503 " in got
            assert b"retry-after: 1" in got
        for path in ("/healthz", "/readyz", "/v2/health/ready"):
            assert httpx.get(url.join(path)).status_code == 200
        backend.open.set()


def test_slow_bodies_leave_room(serve):
    """A connection with a body that still arrives gives way to later ones."""
    server, url = serve(most=6)
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connected(url, POST + b"Content-Length: 1000\r\n\r\nabc"))
        until(lambda: len(server.server_state.connections) == 6)
        for path in ("/healthz", "/large"):
            assert httpx.get(url.join(path)).status_code == 200
        assert httpx.post(url.join("/detect"), content=RED).status_code == 200


def test_connections_leave_descriptors_for_files(monkeypatch):
    used = len(list(Path("/dev/fd").iterdir()))
    for allowed, most in (
        (resource.RLIM_INFINITY, 1000),
        (1_000_000, 1000),
        (used + 1000, 1000 - 24),
        (used, 2),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=allowed: (soft, soft))
        assert abs(ConnectionLimits.of_process(1.0).most - most) <= 2


def test_a_stop_resets_no_request(serve):
    """Clients send as fast as they can, over new connections and over open ones."""
    server, url = serve(grace=5.0)
    faults, answered = [], []

    def send(keep_alive):
        with httpx.Client(timeout=10) as client:
            while True:
                try:
                    close = {} if keep_alive else {"Connection": "close"}
                    answer = client.post(url.join("/detect"), content=RED, headers=close)
                    answered.append(answer.status_code)
                except httpx.ConnectError:
                    return
                except httpx.TransportError as error:
                    faults.append(error)
                    return

    with ThreadPoolExecutor(12) as pool:
        for index in range(12):
            pool.submit(send, index % 2)
        until(lambda: len(answered) > 24)
        server.should_exit = True
    assert faults == []
    assert set(answered) == {200}


def test_a_stop_answers_connections_that_are_not_accepted_yet(serve):
    server, url = serve()
    loop = server.servers[0].get_loop()
    shut, stops = threading.Event(), server.shutdown
    with contextlib.ExitStack() as stack:
        clients = []

        async def shutdown(sockets=None):
            # No connection is accepted while this runs.
            clients.extend(stack.enter_context(connected(url, GET)) for _ in range(20))
            await stops(sockets)
            shut.set()

        server.shutdown = shutdown
        loop.call_soon_threadsafe(setattr, server, "should_exit", True)
        assert shut.wait(10)
        for client in clients:
            assert read_all(client).startswith(b"HTTP/1.1 200")


def test_a_stop_ends_in_time_whatever_clients_do(serve):
    server, url = serve(seconds=0.5, grace=0.1)
    with contextlib.ExitStack() as stack:
        for first, _ in SLOW.values():
            stack.enter_context(connected(url, first))
        stack.enter_context(connected(url, ask("/large"), 4096))
        until(lambda: len(server.server_state.connections) >= len(SLOW))
        began = time.monotonic()
        server.should_exit = True
        until(lambda: not server.server_state.connections)
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("ignored", [False, True], ids=["closed", "nohup"])
def test_a_closed_terminal_stops_the_server_like_sigterm(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        server = Server(lambda *_: None, ConnectionLimits(seconds=1.0, most=10))
        with server.capture_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert server.should_exit is not ignored
            caught = list(server._captured_signals)
            server._captured_signals.clear()  # uvicorn raises them again
        assert caught == ([] if ignored else [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGHUP, before)


def test_uvicorn_has_the_private_names_that_connections_use():
    """Another version may move them; pyproject.toml has its upper bound."""

    async def objects():
        config = uvicorn.Config(lambda *_: None, lifespan="off")
        server = uvicorn.Server(config)
        protocol = H11Protocol(config=config, server_state=server.server_state, app_state={})
        unused = dict.fromkeys(list(signature(RequestResponseCycle).parameters))
        cycle = RequestResponseCycle(**unused | {"conn": protocol.conn})
        return server, protocol, cycle, FlowControl(asyncio.Transport())

    names = (
        "config server_state handle_exit _captured_signals",
        "app conn flow cycle connections loop transport config",
        "more_body response_complete",
        "_transport read_paused",
    )
    for holder, its_names in zip(asyncio.run(objects()), names, strict=True):
        assert set(its_names.split()) <= {*vars(holder), *dir(type(holder))}
    overridden = {
        Server: "capture_signals startup shutdown",
        Connection: "connection_made connection_lost data_received handle_events send_400_response "
        "on_response_complete shutdown",
        PacedFlow: "pause_reading resume_reading",
    }
    for derived, methods in overridden.items():
        (base,) = derived.__bases__
        for method in methods.split():
            mine, theirs = getattr(derived, method), getattr(base, method)
            assert mine is not theirs
            assert signature(mine).parameters.keys() == signature(theirs).parameters.keys()
