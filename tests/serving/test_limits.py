"""Limits of requests and images, and what refused requests release."""

import io
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.predicting.predictor import Predictor
from stillbox.serving import images
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import b64, encoded, running

RED = encoded(204)


def bomb(width, height):
    """A small PNG file with this size in its header."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(101, 100), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_images_too_large_by_their_header_are_not_decoded(client, monkeypatch, size):
    monkeypatch.setattr(images, "decode_image", lambda *_, **__: pytest.fail("decoded"))
    answer = client(max_pixels=10_000).post("/detect", content=bomb(*size))
    assert answer.status_code == 413
    assert "pixels" in answer.json()["error"]


def test_an_image_at_the_limit_is_accepted(client):
    one = client(max_pixels=200)
    assert one.post("/detect", content=encoded(1, (20, 10))).status_code == 200
    assert one.post("/detect", content=encoded(1, (20, 11))).status_code == 413


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "JPEG2000"])
def test_other_formats_are_refused(client, kind):
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, kind)
    answer = client().post("/detect", content=buffer.getvalue())
    assert answer.status_code == 400
    assert "no image (JPEG, PNG, WEBP, GIF, BMP)" in answer.json()["error"]


@pytest.mark.parametrize("kind", images.FORMATS)
def test_supported_formats_are_decoded(client, kind):
    answer = client().post("/detect", content=encoded(204, (33, 21), kind))
    assert answer.status_code == 200
    assert (answer.json()["height"], answer.json()["width"]) == (21, 33)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/detect", "/v1/models/owls:predict", "/v2/models/owls/infer"])
def test_a_body_ends_at_its_limit_whatever_its_header_says(client, path, chunked):
    one = client(max_body=1000)
    body = (b" " * 100 for _ in range(11)) if chunked else b" " * 1001
    answer = one.post(path, content=body)
    assert answer.status_code == 413
    assert "at most 1000 bytes" in answer.json()["error"]
    assert one.app.state.engine.admission.in_flight == 0


def test_the_images_of_a_request_are_limited(client):
    content = {"instances": [{"b64": b64(RED)}] * 3}
    assert client(max_images=3).post("/v1/models/owls:predict", json=content).status_code == 200
    answer = client(max_images=2).post("/v1/models/owls:predict", json=content)
    assert answer.status_code == 400


@pytest.fixture
def server(backend):
    """The function from settings to a server on loopback."""
    with ExitStack() as stack:
        stack.callback(backend.open.set)

        def start(**settings):
            settings = {"name": "owls", "batch_sizes": (1, 2)} | settings
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
        while engine.admission.in_flight < 3:
            time.sleep(0.01)
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
        assert [one.result().status_code for one in inside] == [200, 200, 200]
    assert client.post("/detect", content=RED).status_code == 200
    assert engine.admission.in_flight == 0


def test_every_image_of_a_request_counts_as_in_flight(server):
    engine, client = server(queue=2)
    content = {"instances": [{"b64": b64(RED)}] * 3}
    refused = client.post("/v1/models/owls:predict", json=content)
    assert refused.status_code == 503
    assert engine.admission.in_flight == 0


def test_a_request_that_times_out_does_not_run(server, backend):
    engine, client = server(timeout=0.3)
    backend.open.clear()
    blocked = threading.Thread(target=client.post, args=("/detect",), kwargs={"content": RED})
    blocked.start()
    assert backend.entered.wait(10)
    late = client.post("/detect", content=encoded(51))
    assert late.status_code == 504
    assert late.json() == {"error": "there was no answer in 0.3 s"}
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

    answer = client.post("/detect", content=slow())
    assert answer.status_code == 408
    assert engine.admission.in_flight == 0


def test_a_disconnected_client_is_no_longer_in_flight(server, backend):
    engine, client = server()
    backend.open.clear()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/detect", content=RED, timeout=0.2)
    backend.open.set()
    while engine.admission.in_flight:
        time.sleep(0.01)
    assert client.post("/detect", content=RED).status_code == 200


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": "a/b"}, "is not valid in an address"),
        ({"name": ""}, "is not valid in an address"),
        ({"queue": 0}, "--queue: 0 is too small"),
        ({"max_pixels": 0}, "--max-pixels: 0 is too small"),
        ({"timeout": 0.0}, "times are positive"),
        ({"timeout": float("nan")}, "times are positive"),
        ({"max_delay_ms": -1.0}, "times are positive"),
        ({"batch_sizes": (0, 1)}, "at least one image"),
        ({"batch_sizes": ()}, "at least one image"),
    ],
)
def test_invalid_settings_are_refused(backend, settings, error):
    with pytest.raises(UserError, match=error):
        build_app(Predictor(backend), ServeSettings(**settings))
