"""Work for one connection between two looks at the others, and what is refused before it costs."""

import asyncio
import contextlib
import threading
import time

import h11
import httpx
import pytest

from stillbox.serving.turns import PacedConnection, Turn, Turns
from tests.serving.test_connections import (  # noqa: F401
    GET,
    LATEST,
    POST,
    RED,
    connected,
    read_all,
    serve,
    until,
)

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
ONES = b"1\r\na\r\n" * 20_000


def chunk(size):
    return b"%x\r\n" % size + bytes(size) + b"\r\n"


@pytest.mark.parametrize(
    "block",
    [ONES, b"1;e=f\r\na\r\n" * 20_000, chunk(130) * 2000],
    ids=["one byte", "extensions", "as small as allowed"],
)
@pytest.mark.parametrize("path", [b"/detect", b"/nothing"], ids=["wanted", "refused"])
def test_health_checks_are_answered_while_clients_send_tiny_chunks(serve, block, path):  # noqa: F811
    _, url = serve()
    stopped = threading.Event()

    def attack():
        while not stopped.is_set():
            with contextlib.suppress(OSError), connected(url) as client:
                client.sendall(CHUNKED.replace(b"/detect", path))
                while not stopped.is_set():
                    client.sendall(block)

    attackers = [threading.Thread(target=attack) for _ in range(16)]
    for attacker in attackers:
        attacker.start()
    try:
        slowest = 0.0
        for _ in range(5):
            began = time.monotonic()
            assert httpx.get(url.join("/healthz"), timeout=LATEST).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.05)
    finally:
        stopped.set()
        for attacker in attackers:
            attacker.join()
    # Without turns the first of these takes seconds.
    assert slowest < 1.0
    assert httpx.get(url.join("/healthz"), timeout=1.0).status_code == 200


def test_a_stop_does_not_wait_for_bodies_that_arrive_in_chunks(serve):  # noqa: F811
    server, url = serve(body=0.2)
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(url, CHUNKED + chunk(140) * 2000))
        until(lambda: len(server.server_state.connections) == 8)
        server.should_exit = True
        until(lambda: not server.server_state.connections)


REFUSED = {
    "tiny chunks": (CHUNKED + ONES, b"chunks of less than 128 bytes"),
    "chunks of 127 bytes": (CHUNKED + chunk(127) * 140_000, b"chunks of less than 128 bytes"),
    "many lines": (GET[:-2] + b"a:\r\n" * 200 + b"\r\n", b"at most 128 lines"),
    "many lines without an end": (GET[:-2] + b"a:\r\n" * 200, b"at most 128 lines"),
    "a long header": (GET[:-2] + b"a: " + b"b" * 60_000 + b"\r\n\r\n", b"Invalid"),
    "a long trailer": (CHUNKED + b"0\r\n" + b"a: b\r\n" * 9000 + b"\r\n", b"Invalid"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_request_that_costs_more_than_its_size_is_refused(serve, kind):  # noqa: F811
    _, url = serve()
    sent, why = REFUSED[kind]
    with connected(url) as client:
        with contextlib.suppress(OSError):
            client.sendall(sent)
        got = read_all(client)
    # A reset may overtake the answer.
    assert not got or (got.startswith(b"HTTP/1.1 400") and why in got)


def test_chunks_of_usual_sizes_arrive(serve, backend):  # noqa: F811
    """A thousand of any size are free: programs may send a file line by line."""
    _, url = serve()
    by_byte = (RED[at : at + 1] for at in range(len(RED)))
    answer = httpx.post(url.join("/detect"), content=by_byte)
    assert (answer.status_code, answer.json()["detections"][0]["class"]) == (200, "owl")
    lines = (bytes(130) for _ in range(20_000))
    assert "no image" in httpx.post(url.join("/detect"), content=lines).json()["error"]


def test_a_turn_has_few_events_whatever_has_arrived():
    paced = PacedConnection()
    paced.receive_data(CHUNKED + ONES[:6000] + b"0\r\n\r\n" + GET)
    counts, ended = [], False
    while not ended:
        paced.begin_turn()
        events = []
        while (event := paced.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            events.append(event)
        counts.append(len(events))
        ended = event is h11.PAUSED
    assert max(counts) <= 32
    # A request, a thousand chunks and the end.
    assert sum(counts) == 1002


def test_the_next_turn_is_of_the_one_with_the_least_time(monkeypatch):
    class Loop:
        calls = []  # noqa: RUF012
        call_soon = calls.append

    clock = [0.0]
    monkeypatch.setattr("asyncio.get_running_loop", lambda: Loop)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    took, turns = [], Turns()

    def turn(name, seconds, rounds):
        def run():
            clock[0] += seconds
            took.append(name)
            return took.count(name) < rounds

        return Turn(run)

    turns.ask(turn("heavy", 0.004, 3))
    turns.ask(turn("light", 0.0002, 9))
    for at in range(50):
        if at == 2:
            turns.ask(turn("new", 0.0002, 1))
        if Loop.calls:
            Loop.calls.pop()()
    # A round ends after a millisecond; the heavy one waits until others had as much time.
    assert took[:2] == ["heavy", "light"]
    assert took.index("new") < [at for at, name in enumerate(took) if name == "heavy"][1]
    assert sorted(took) == ["heavy"] * 3 + ["light"] * 9 + ["new"]


def test_a_failure_of_one_turn_stops_no_other():
    """The queue goes on, although the failed connection does not."""

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        turns, done = Turns(), asyncio.Event()
        turns.ask(Turn(lambda: 1 // 0 > 0))
        turns.ask(Turn(lambda: bool(done.set())))
        await asyncio.wait_for(done.wait(), LATEST)

    asyncio.run(run())


@pytest.mark.parametrize("first", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_two_lengths_of_a_body_close_the_connection(serve, first):  # noqa: F811
    """A proxy may take the other length: what follows may be of another client."""
    _, url = serve()
    both = {"Content-Length: 5", "Transfer-Encoding: chunked"}
    header = "\r\n".join([first, *(both - {first})]).encode()
    with connected(url, POST + header + b"\r\n\r\n0\r\n\r\n" + GET) as client:
        got = read_all(client)
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in got
