"""The status of the responses of Ray Serve's deployment, in this process and without Ray."""

import asyncio
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from stillbox.evaluation.results import NotFiniteError
from stillbox.evaluation.tiling import Tiling
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import Selection
from stillbox.references import Parameter
from stillbox.scaling.ray_serve import deployment
from tests.helpers import refused
from tests.predicting.blobs import Blobs, scene
from tests.serving.conftest import FakeBackend

pytest.importorskip("starlette")


def batch(**options):
    """As `serve.batch`, with batches of one."""

    def decorate(run):
        async def run_one(self, image):
            return (await run(self, [image]))[0]

        return run_one

    return decorate


@pytest.fixture
def replica(monkeypatch):
    """The function from a predictor to the object that a replica holds."""
    serve = SimpleNamespace(batch=batch, deployment=lambda: lambda kind: SimpleNamespace(bind=kind))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=serve))
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    return lambda predictor: deployment(predictor, batch_sizes=(1,))


@pytest.fixture
def detector(replica):
    return replica(Predictor(FakeBackend()))


def post(detector, content):
    async def body():
        return content

    answer = asyncio.run(detector(SimpleNamespace(body=body)))
    return answer if isinstance(answer, dict) else (answer.status_code, json.loads(answer.body))


def photo(pixels=np.full((4, 6, 3), 200, np.uint8)):  # noqa: B008
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_what_is_no_image_is_the_client_s_fault(detector):
    # Two classes in one box: the likelier one is answered.
    assert len(post(detector, photo())["detections"]) == 1
    status, answer = post(detector, b"no image")
    assert status == 400
    assert "no known image format" in answer["error"]


def test_predictions_that_are_not_finite_are_a_fault_of_the_server(detector, monkeypatch):
    detect = FakeBackend._found
    monkeypatch.setattr(
        FakeBackend, "_found", lambda self, image: detect(self, image)._replace(finite=False)
    )
    status, answer = post(detector, photo())
    assert status == 500
    assert "not finite" in answer["error"]
    with refused("image", kind=NotFiniteError):
        asyncio.run(detector(photo()))


def test_a_deployment_detects_in_the_tiles_of_its_predictor(replica):
    boxes, backend = [(10, 20, 30, 40), (60, 90, 80, 120)], Blobs()
    detector = replica(Predictor(backend, tiling=Tiling(tile=64, full_image=False)))
    answer = post(detector, photo(scene(*boxes, size=(100, 150))))
    # Two rows of three tiles, after the image that warms up.
    assert backend.batches[-6:] == [[(64, 64)]] * 6
    seen = sorted(tuple(each["box"].values()) for each in answer["detections"])
    assert seen == boxes


def test_unknown_classes_are_refused():
    with refused(Parameter("classes"), "eagle"):
        deployment(Predictor(FakeBackend()), selection=Selection(classes=["eagle"]))
