"""Servers of a fake model and of a small real one."""

import base64
import contextlib
import io
import shutil
import socket
import subprocess
import threading
import time

import pytest
from PIL import Image
from starlette.testclient import TestClient

from stillbox.checkpoints.trained import TrainedModel
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.records.label_map import LabelMap
from stillbox.serving.app import build_app
from stillbox.serving.connections import ConnectionLimits, Server
from stillbox.serving.settings import ServeSettings
from tests.serving.fake import FakeBackend
from tests.small import small_experiment

LOOPBACK = "http://127.0.0.1"


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def client(backend):
    """The function from settings to a started test client."""
    with contextlib.ExitStack() as stack:

        def start(**settings):
            usual = {"name": "owls", "batch_sizes": (1, 2, 4), "max_delay_ms": 0.0}
            settings = usual | {"runs_at_once": 1} | settings
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


def check_refused(answer, error="", status=400):
    """Checks that a response is an error of one sentence, which contains `error`."""
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert error in answer.json()["error"]
    assert len(answer.text) < 500


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
