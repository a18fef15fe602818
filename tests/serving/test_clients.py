"""The clients of Triton and KServe, which send what they sent to Triton's TensorFlow backend."""

import asyncio

import httpx
import numpy as np
import pytest

from stillbox.predicting.predictor import Predictor
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import encoded, running

IMAGE = np.full((1, 10, 20, 3), 204, np.uint8)
OUTPUTS = ["detection_boxes", "detection_classes", "detection_scores", "num_detections"]


@pytest.fixture
def address(backend):
    settings = ServeSettings(name="owls", batch_sizes=(1,), max_delay_ms=0.0, runs_at_once=1)
    backend.open.set()
    with running(build_app(Predictor(backend), settings)) as (_, url):
        yield str(url)


@pytest.fixture
def plain(address):
    """The outputs by name, by a request without a client."""
    tensor = {"name": "input_tensor", "datatype": "UINT8", "shape": IMAGE.shape}
    content = {"inputs": [tensor | {"data": IMAGE.ravel().tolist()}]}
    answer = httpx.post(f"{address}/v2/models/owls/infer", json=content)
    return {
        output["name"]: np.reshape(output["data"], output["shape"])
        for output in answer.json()["outputs"]
    }


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["UINT8", "BYTES"])
def test_tritons_client_detects(address, plain, kind, binary):
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(httpx.URL(address).netloc.decode())
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("owls")
    listed = client.get_model_metadata("owls")["outputs"]
    assert {tensor["name"] for tensor in listed} == {*OUTPUTS}
    pixels = kind == "UINT8"
    data = IMAGE if pixels else np.array([encoded()], np.object_)
    given = triton.InferInput("input_tensor" if pixels else "image_bytes", data.shape, kind)
    given.set_data_from_numpy(data, binary_data=binary or not pixels)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS]
    result = client.infer("owls", [given], outputs=wanted)
    for name in OUTPUTS:
        assert result.as_numpy(name).dtype == np.float32
        np.testing.assert_allclose(result.as_numpy(name), plain[name], rtol=1e-6)
    client.close()


def test_kserves_client_detects(address, plain):
    kserve = pytest.importorskip("kserve")
    given = kserve.InferInput("input_tensor", list(IMAGE.shape), "UINT8")
    given.set_data_from_numpy(IMAGE, binary_data=False)
    request = kserve.InferRequest(model_name="owls", infer_inputs=[given])

    async def ask():
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
        try:
            assert await client.is_server_ready(address)
            assert await client.is_model_ready(address, "owls")
            return await client.infer(address, request, model_name="owls")
        finally:
            await client.close()

    outputs = {output.name: output.as_numpy() for output in asyncio.run(ask()).outputs}
    for name in OUTPUTS:
        np.testing.assert_allclose(outputs[name], plain[name], rtol=1e-6)
