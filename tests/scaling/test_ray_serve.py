"""Ray Serve on a local Ray: two replicas, over HTTP and by handle."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.predicting.selection import Selection
from stillbox.scaling.ray_serve import deployment

httpx = pytest.importorskip("httpx")
pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    # Ray Serve 2.60 declares its settings as pydantic no longer wants it.
    pytest.mark.filterwarnings(
        "ignore:Using extra keyword arguments on .Field.:DeprecationWarning"
    ),
]


@pytest.fixture
def served(ray_cluster, predictor):
    """Serves the predictor on a free port and returns its address and its handle."""
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    application = deployment(
        predictor,
        selection=Selection(min_score=0),
        batch_sizes=(1, 4),
        wait=0.05,
        num_replicas=2,
        ray_actor_options={"num_cpus": 0.5},
    )
    yield f"http://127.0.0.1:{port}/", serve.run(application)
    serve.shutdown()


def same(answer, detections):
    """The answer says what the predictor found; batches of another size round otherwise."""
    expected = detections.to_dict()
    assert len(detections) > 0
    assert answer["image"] == ""
    assert (answer["height"], answer["width"]) == (expected["height"], expected["width"])
    assert [entry["class"] for entry in answer["detections"]] == detections.names
    for said, entry in zip(answer["detections"], expected["detections"], strict=True):
        assert said["score"] == pytest.approx(entry["score"], abs=1e-4)
        assert said["box"] == pytest.approx(entry["box"], abs=0.05)


def test_detections_over_http_and_by_handle(served, predictor, photos):
    address, handle = served
    files = sorted(map(str, photos.glob("deep/*")))
    expected = predictor.predict(files, min_score=0)
    contents = [Path(file).read_bytes() for file in files]
    # All at once: batches of four, and what is left over.
    with ThreadPoolExecutor(len(files)) as pool:
        answers = list(
            pool.map(lambda content: httpx.post(address, content=content, timeout=60), contents)
        )
    for answer, detections in zip(answers, expected, strict=True):
        assert answer.status_code == 200
        same(answer.json(), detections)
    same(handle.remote(contents[0]).result(), expected[0])

    for content, said in ((b"no image", "8 bytes that are no known"), (b"", "has no bytes")):
        answer = httpx.post(address, content=content)
        assert answer.status_code == 400
        assert said in answer.json()["error"]
    with pytest.raises(UserError, match="no known image format"):
        handle.remote(b"no image").result()
