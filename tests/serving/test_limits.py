"""Limits of requests and decoding, and the release of memory and places by refused requests."""

import io
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse

import httpx
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.inputs.decode import decode_image
from stillbox.predicting.predictor import Predictor
from stillbox.references import Parameter
from stillbox.serving import decoding
from stillbox.serving import engine as engine_module
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.helpers import refused
from tests.serving.conftest import b64, check_refused, encoded, running

RED = encoded(204)


def png(width, height, data, *chunks, kind=0):
    """A PNG file of these uncompressed pixels behind other chunks; kind 0 is gray, 2 RGB."""
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    number = struct.Struct(">I").pack
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        number(len(content)) + name + content + number(zlib.crc32(name + content))
        for name, content in parts
    )


@pytest.mark.parametrize("size", [(101, 100), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_images_too_large_by_their_header_are_not_decoded(client, monkeypatch, size):
    monkeypatch.setattr(decoding, "decode_image", lambda *_, **__: pytest.fail("decoded"))
    answer = client(max_pixels=10_000).post("/detect", content=png(*size, bytes(1000), kind=2))
    check_refused(answer, "pixels", 413)


def test_an_image_at_the_limit_is_accepted(client):
    http = client(max_pixels=200)
    assert http.post("/detect", content=encoded(1, (20, 10))).status_code == 200
    assert http.post("/detect", content=encoded(1, (20, 11))).status_code == 413


def test_the_limit_is_at_most_that_of_pillow():
    most = 2 * Image.MAX_IMAGE_PIXELS
    ServeSettings(max_pixels=most).checked()
    with refused(Parameter("max_pixels"), most + 1):
        ServeSettings(max_pixels=most + 1).checked()


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "JPEG2000"])
def test_other_formats_are_refused(client, kind):
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, kind)
    answer = client().post("/detect", content=buffer.getvalue())
    check_refused(answer, "no image (JPEG, PNG, WEBP, GIF, BMP)")


@pytest.mark.parametrize("kind", decoding.IMAGE_FORMATS)
def test_supported_formats_are_decoded(client, kind):
    answer = client().post("/detect", content=encoded(204, (33, 21), kind))
    assert answer.status_code == 200
    assert (answer.json()["height"], answer.json()["width"]) == (21, 33)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/detect", "/v1/models/owls:predict", "/v2/models/owls/infer"])
def test_a_body_ends_at_its_limit_whatever_its_header_says(client, path, chunked):
    http = client(max_body=1000)
    body = (b" " * 100 for _ in range(11)) if chunked else b" " * 1001
    check_refused(http.post(path, content=body), "at most 1000 bytes", 413)
    assert http.app.state.engine.admission.in_flight == 0


def test_the_images_of_a_request_are_limited(client):
    content = {"instances": [{"b64": b64(RED)}] * 3}
    assert client(max_images=3).post("/v1/models/owls:predict", json=content).status_code == 200
    check_refused(client(max_images=2).post("/v1/models/owls:predict", json=content))


@pytest.fixture
def server(backend):
    """The function from settings to a server on loopback."""
    with ExitStack() as stack:
        stack.callback(backend.open.set)

        def start(**settings):
            settings = {"name": "owls", "batch_sizes": (1, 2), "runs_at_once": 1} | settings
            app = build_app(Predictor(backend), ServeSettings(**settings))
            _, address = stack.enter_context(running(app))
            backend.runs.clear()
            backend.entered.clear()
            client = stack.enter_context(httpx.Client(base_url=address, timeout=30))
            return app.state.engine, client

        yield start


def test_a_full_queue_responds_503_with_retry_after_until_there_is_room(server, backend):
    engine, client = server(queue=3)
    backend.open.clear()
    with ThreadPoolExecutor(3) as pool:
        inside = [pool.submit(client.post, "/detect", content=RED) for _ in range(3)]
        wait_until(lambda: engine.admission.in_flight == 3)
        for path, sent in (
            ("/detect", {"content": RED}),
            ("/v1/models/owls:predict", {"json": {"instances": [{"b64": b64(RED)}]}}),
        ):
            refused = client.post(path, **sent)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json() == {"error": "all 3 places are taken; try again"}
        assert client.get("/healthz").status_code == 200
        backend.open.set()
        assert [future.result().status_code for future in inside] == [200, 200, 200]
    assert client.post("/detect", content=RED).status_code == 200
    assert engine.admission.in_flight == 0


def predict(client, images):
    content = {"instances": [{"b64": b64(RED)}] * images}
    return client.post("/v1/models/owls:predict", json=content)


def test_every_image_of_a_request_counts_as_in_flight(server, backend):
    engine, client = server(queue=2)
    backend.open.clear()
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(client.post, "/detect", content=RED)
        wait_until(lambda: engine.admission.in_flight == 1)
        check_refused(predict(client, 2), status=503)
        backend.open.set()
        assert inside.result().status_code == 200
    assert predict(client, 2).status_code == 200
    assert engine.admission.in_flight == 0


def test_a_request_with_more_images_than_the_queue_holds_is_refused_with_400(server):
    engine, client = server(queue=2)
    answer = predict(client, 3)
    assert answer.status_code == 400
    assert answer.json() == {"error": "a request has 1 to 2 images; this one has 3"}
    assert engine.admission.in_flight == 0


def test_a_request_that_times_out_does_not_run(server, backend):
    engine, client = server(timeout=0.3)
    backend.open.clear()
    blocked = threading.Thread(target=client.post, args=("/detect",), kwargs={"content": RED})
    blocked.start()
    assert backend.entered.wait(10)
    late = client.post("/detect", content=encoded(51))
    assert (late.status_code, late.json()) == (504, {"error": "there was no answer in 0.3 s"})
    backend.open.set()
    blocked.join(10)
    assert client.post("/detect", content=encoded(255)).status_code == 200
    assert [51] not in backend.runs
    assert engine.admission.in_flight == 0


def test_a_slow_body_is_refused(server):
    engine, client = server(timeout=0.3)

    def slow():
        yield RED[:10]
        time.sleep(1)
        yield RED[10:]

    check_refused(client.post("/detect", content=slow()), status=408)
    assert engine.admission.in_flight == 0


@contextmanager
def trickling(address, count, sent=1, body=1000):
    """Yields connections with requests that lack the end of their bodies."""
    head = f"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: {body}\r\n\r\n"
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection((address.host, address.port), 10))
            for _ in range(count)
        ]
        for connection in opened:
            connection.sendall(head.encode() + bytes(sent))
        yield opened


def test_requests_are_answered_while_others_send_slowly(server):
    engine, client = server(queue=2, timeout=1)
    with trickling(client.base_url, 20) as slow:
        for _ in range(3):
            for connection in slow:
                connection.sendall(b"x")
            assert client.post("/detect", content=RED).status_code == 200
            assert engine.admission.in_flight == 0
        assert all(b" 408 " in connection.recv(2**16) for connection in slow)


def test_bodies_that_arrive_share_a_budget_and_the_first_is_given_up(server):
    engine, client = server(max_memory=2**20, max_body=2**17, timeout=20)
    with trickling(client.base_url, 2, sent=2**17 - 1, body=2**17) as (first, second):
        wait_until(lambda: engine.arrivals.held == 2**18 - 2)
        assert client.post("/detect", content=RED).status_code == 200
        got = HTTPResponse(first)
        got.begin()
        assert (got.status, got.getheader("retry-after")) == (503, "1")
        assert b"later bodies" in got.read()
        second.sendall(b"x")
        assert b" 400 " in second.recv(2**16)  # zeros are no image
    wait_until(lambda: engine.arrivals.held == 0)


def test_a_disconnected_client_is_no_longer_in_flight(server, backend):
    engine, client = server()
    backend.open.clear()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/detect", content=RED, timeout=0.2)
    backend.open.set()
    wait_until(lambda: not engine.admission.in_flight)
    assert client.post("/detect", content=RED).status_code == 200


BIG = encoded(1, (150, 150))  # of 270 kB, with a budget of 1 MB a large one


@pytest.fixture
def decoder(monkeypatch):
    """Blocks the decoding of `BIG` until `open` is set; counts what is decoded."""

    class Decoder:
        open = threading.Event()
        decoded, running, most = 0, 0, 0

        def decode(self, data, **options):
            if data != BIG:
                return decode_image(data, **options)
            self.decoded, self.running = self.decoded + 1, self.running + 1
            self.most = max(self.most, self.running)
            assert self.open.wait(10)
            self.running -= 1
            return decode_image(data, **options)

    made = Decoder()
    made.open = threading.Event()
    monkeypatch.setattr(decoding, "decode_image", made.decode)
    monkeypatch.setattr(engine_module, "own_processors", lambda: 4)
    yield made
    made.open.set()


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("query", ["", "?format=png"])
def test_the_pixels_in_memory_are_bounded_and_small_images_pass(server, decoder, query):
    engine, client = server(max_memory=2**20, queue=12)
    # A quarter of the budget is for small images. A picture is drawn in 420 x 420 pixels or more.
    fit = 1 if query else 2
    with ThreadPoolExecutor(6) as pool:
        large = [pool.submit(client.post, "/detect" + query, content=BIG) for _ in range(6)]
        wait_until(lambda: decoder.running == fit and engine.large_admission.in_flight == 6)
        for _ in range(3):
            assert client.post("/detect", content=RED).status_code == 200
            small = {"instances": [{"b64": b64(RED)}] * 3}
            assert client.post("/v1/models/owls:predict", json=small).status_code == 200
        refused = client.post("/detect", content=BIG)
        check_refused(refused, "all 6 places for large images are taken", 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert decoder.decoded == fit
        decoder.open.set()
        assert [future.result().status_code for future in large] == [200] * 6
    assert decoder.most == fit
    assert engine.large_admission.in_flight == engine.admission.in_flight == 0


def test_a_single_request_may_fill_the_places_for_large_images(server, decoder):
    decoder.open.set()
    _, client = server(max_memory=2**20, queue=4)
    content = {"instances": [{"b64": b64(BIG)}] * 4}
    assert client.post("/v1/models/owls:predict", json=content).status_code == 200


def test_a_request_that_has_ended_is_not_decoded(server, decoder):
    engine, client = server(max_memory=2**20, timeout=0.4)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(client.post, "/detect", content=BIG) for _ in range(2)]
        wait_until(lambda: decoder.running == 2)
        gone = pool.submit(client.post, "/detect", content=BIG, timeout=0.1)
        late = pool.submit(client.post, "/detect", content=BIG)
        with pytest.raises(httpx.ReadTimeout):
            gone.result()
        assert [future.result().status_code for future in (*running, late)] == [504] * 3
    wait_until(lambda: engine.admission.in_flight == 0)
    # The threads have not ended: their memory is not given to others.
    assert client.post("/detect", content=BIG).status_code == 504
    decoder.open.set()
    assert client.post("/detect", content=RED).status_code == 200
    assert client.post("/detect", content=BIG).status_code == 200
    assert decoder.decoded == 3


def test_an_invalid_image_ends_the_others_of_its_request(server, decoder):
    engine, client = server(max_memory=2**20)
    content = {"instances": [{"b64": b64(file)} for file in (BIG, BIG, RED[:60])]}
    assert client.post("/v1/models/owls:predict", json=content).status_code == 400
    assert engine.admission.in_flight == 0
    decoder.open.set()
    wait_until(lambda: decoder.running == 0)
    assert [1] not in engine.predictor.backend.runs


def test_a_disconnected_client_has_its_own_status(server, backend):
    engine, client = server()
    backend.open.clear()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/detect", content=RED, timeout=0.1)
    # A slow server receives the request only after its client has disconnected.
    wait_until(lambda: 'code="499",route="/detect"' in client.get("/metrics").text)
    assert engine.admission.in_flight == 0
    backend.open.set()


PARTS = 40_000
JPEG = encoded(204, (8, 8), "JPEG")
GIF = encoded(204, (8, 8), "GIF")


@pytest.mark.parametrize(
    ("file", "status", "error"),
    [
        (png(8, 8, bytes(72)), 200, ""),
        (png(8, 8, bytes(72), *[(b"tEXt", b"a\0b")] * 100), 200, ""),
        (png(8, 8, bytes(72), *[(b"tEXt", b"a\0b")] * PARTS), 400, "no image"),
        (png(8, 8, bytes(72), *[(b"IDAT", b"")] * PARTS), 400, "cannot be decoded"),
        (JPEG[:2] + b"\xff\xe1\0\x02" * PARTS + JPEG[2:], 400, "no image"),
        (JPEG[:-2] + b"\xff\xfe\0\x02" * PARTS + JPEG[-2:], 400, "10,000 segments"),
        (JPEG[:2] + b"\xff" * PARTS + JPEG[2:], 400, "no image"),
        (GIF[:-1].replace(b"\x2c", b"!\xfe\x01a\0" * PARTS + b"\x2c", 1), 400, "no image"),
        (png(70_000, 1, bytes(70_001)), 413, "at most 65535 on a side"),
        (png(1, 70_000, bytes(140_000)), 413, "at most 65535 on a side"),
    ],
)
def test_images_that_are_more_work_than_pixels_are_refused(client, file, status, error):
    answer = client().post("/detect", content=file)
    assert answer.status_code == status
    assert error in answer.text


@pytest.mark.parametrize("name", ["queue", "max_images", "max_body", "max_pixels", "max_memory"])
@pytest.mark.parametrize("value", [-1, 0, 10**30])
def test_numbers_out_of_range_are_refused(name, value):
    with refused(Parameter(name), value):
        ServeSettings(**{name: value}).checked()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", -1),
        ("version", 2**63),
        ("timeout", 0.0),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("max_delay_ms", -1.0),
        ("max_delay_ms", 1e300),
        ("max_delay_ms", float("nan")),
        ("min_score", float("nan")),
    ],
)
def test_other_numbers_out_of_range_are_refused(backend, name, value):
    with refused(Parameter(name), value):
        build_app(Predictor(backend), ServeSettings(**{name: value}))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": "a/b"}, "is not valid in an address"),
        ({"name": ""}, "is not valid in an address"),
        ({"batch_sizes": (0, 1)}, "a batch has 1 to 1024 images"),
        ({"batch_sizes": ()}, "a batch has 1 to 1024 images"),
        ({"batch_sizes": (1, 99_999_999_999)}, "a batch has 1 to 1024 images"),
        ({"batch_sizes": tuple(range(1, 34))}, "there are 1 to 32 sizes"),
    ],
)
def test_invalid_settings_are_refused(backend, settings, error):
    with pytest.raises(UserError, match=error):
        build_app(Predictor(backend), ServeSettings(**settings))
