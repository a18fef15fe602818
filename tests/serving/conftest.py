"""Servers of a fake model and of a small real one."""

import base64
import contextlib
import io
import shutil
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from stillbox.checkpoints.trained import TrainedModel
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.predicting.backend import Prepared, RawDetections
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.records.label_map import LabelMap
from stillbox.serving.app import build_app
from stillbox.serving.connections import ConnectionLimits, Server
from stillbox.serving.settings import ServeSettings
from tests.small import small_experiment

LOOPBACK = "http://127.0.0.1"


class FakeBackend:
    """Finds two objects in every image: an owl with the score of the upper left pixel's red, in
    255ths, in the upper left quarter, and a hawk of score 0.1 in all of it. If `doubts`, a hawk of
    half the score is found in the owl's place too."""

    class_names = {1: "owl", 3: "hawk"}  # noqa: RUF012
    source = "fake"
    max_detections = 4

    def __init__(self, batch_sizes=None):
        self.batch_sizes = batch_sizes
        self.runs = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.fails = None
        self.doubts = False

    def prepare(self, image, where=None):
        assert image.dtype == np.uint8
        assert image.ndim == 3
        return Prepared(image[:1, :1].copy(), (1, 1), image.shape[:2])

    def run(self, images):
        self.entered.set()
        assert self.open.wait(30)
        self.runs.append([int(one.pixels[0, 0, 0]) for one in images])
        if self.fails:
            raise self.fails
        return [self._found(one) for one in images]

    def _found(self, one):
        height, width = one.size
        boxes = np.array([[0, 0, height / 2, width / 2], [0, 0, height, width]], np.float64)
        scores = np.array([one.pixels[0, 0, 0] / 255, 0.1])
        found = RawDetections(boxes, scores, np.array([1, 3]))
        if not self.doubts:
            return found
        rows, scores = [0, 0, 1], np.array([scores[0], scores[0] / 2, scores[1]])
        return RawDetections(boxes[rows], scores, np.array([1, 3, 3]))


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def client(backend):
    """The function from settings to a started test client."""
    with contextlib.ExitStack() as stack:

        def start(**settings):
            settings = {"name": "owls", "batch_sizes": (1, 2, 4), "max_delay_ms": 0.0} | settings
            app = build_app(Predictor(backend), ServeSettings(**settings))
            made = stack.enter_context(
                TestClient(app, base_url=LOOPBACK, raise_server_exceptions=False)
            )
            backend.runs.clear()
            backend.entered.clear()
            return made

        yield start


def encoded(red=204, size=(20, 10), kind="PNG", **options):
    """Returns an image file of one colour, `size` being width and height."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (red, 7, 9)).save(buffer, kind, **options)
    return buffer.getvalue()


def b64(content):
    return base64.b64encode(content).decode()


@pytest.fixture(scope="session")
def small_backend(scenes):
    """The small detector with random weights."""
    experiment = small_experiment(scenes, "model.postprocessing.nms.score_threshold=0.001")
    _, params, stats = split_detector(build_detector(experiment.model))
    label_map = LabelMap.from_file(str(scenes / "label_map.pbtxt"))
    return CheckpointBackend(
        TrainedModel(experiment, label_map, params, stats, source="random weights")
    )


@contextlib.contextmanager
def running(app, *, tls=None, **limits):
    """Serves an application on a free port of loopback; yields server and address."""
    limits = ConnectionLimits(**{"seconds": 30.0, "most": 100, "grace": 0.05} | limits)
    server = Server(app, limits, tls=tls)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            scheme = "https" if tls else "http"
            yield server, f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


def make_certificate(folder):
    """Writes certificate and key of this machine's loopback address; skips without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here"
    words = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run([*words, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files
