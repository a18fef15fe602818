"""The shapes are those of https://github.com/kserve/open-inference-protocol."""

import json

import numpy as np
import pytest

from tests.serving.conftest import b64, encoded

INFER = "/v2/models/owls/infer"
RED = encoded(204)
LENGTH = "Inference-Header-Content-Length"


def bytes_tensor(*files, **more):
    data = [b64(file) for file in files]
    return {
        "name": "input_tensor",
        "datatype": "BYTES",
        "shape": [len(data)],
        "data": data,
    } | more


def pixels_tensor(**more):
    return {
        "name": "input_tensor",
        "datatype": "UINT8",
        "shape": [2, 1, 2, 3],
        "data": [204] * 6 + [51] * 6,
    } | more


def arrays(answer):
    assert answer.status_code == 200, answer.text
    return {
        one["name"]: np.array(one["data"]).reshape(one["shape"]) for one in answer.json()["outputs"]
    }


def test_server_and_health(client):
    one = client()
    server = one.get("/v2").json()
    assert server["name"] == "stillbox"
    assert server["extensions"] == ["binary_tensor_data"]
    assert one.get("/v2/health/live").json() == {"live": True}
    assert one.get("/v2/health/ready").json() == {"ready": True}
    assert one.get("/v2/models/owls/ready").json() == {"name": "owls", "ready": True}


def test_model(client):
    answer = client().get("/v2/models/owls/versions/1").json()
    assert answer["name"] == "owls"
    assert answer["versions"] == ["1"]
    assert answer["inputs"] == [
        {"name": "input_tensor", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}
    ]
    assert {one["name"]: one["shape"] for one in answer["outputs"]} == {
        "detection_boxes": [-1, 4, 4],
        "detection_classes": [-1, 4],
        "detection_scores": [-1, 4],
        "num_detections": [-1],
    }


@pytest.mark.parametrize("nested", [False, True])
def test_pixels(client, nested):
    tensor = pixels_tensor()
    if nested:
        tensor["data"] = np.reshape(tensor["data"], tensor["shape"]).tolist()
    answer = client().post(INFER, json={"id": "seven", "inputs": [tensor]})
    outputs = arrays(answer)
    assert answer.json()["model_name"] == "owls"
    assert answer.json()["id"] == "seven"
    np.testing.assert_allclose(outputs["detection_scores"][:, 0], [0.8, 0.2], atol=1e-6)
    np.testing.assert_allclose(outputs["detection_boxes"][0, :2], [[0, 0, 0.5, 0.5], [0, 0, 1, 1]])
    np.testing.assert_allclose(outputs["num_detections"], [2, 2])


def test_files(client):
    content = {"inputs": [bytes_tensor(RED, encoded(51, (8, 90)))]}
    outputs = arrays(client().post("/v2/models/owls/versions/1/infer", json=content))
    np.testing.assert_allclose(outputs["detection_scores"][:, 0], [0.8, 0.2], atol=1e-6)


def test_only_the_wanted_outputs_are_returned(client):
    content = {"inputs": [bytes_tensor(RED)], "outputs": [{"name": "num_detections"}]}
    assert arrays(client().post(INFER, json=content)).keys() == {"num_detections"}


def binary_request(tensor, raw, **more):
    tensor = {key: value for key, value in tensor.items() if key != "data"}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    header = json.dumps({"inputs": [tensor]} | more).encode()
    return {"content": header + raw, "headers": {LENGTH: str(len(header))}}


@pytest.mark.parametrize("kind", ["UINT8", "BYTES"])
def test_binary_tensors(client, kind):
    if kind == "UINT8":
        tensor = pixels_tensor()
        raw = bytes(tensor["data"])
    else:
        files = (RED, encoded(51))
        tensor = bytes_tensor(*files)
        raw = b"".join(len(file).to_bytes(4, "little") + file for file in files)
    asked = [{"name": "detection_scores", "parameters": {"binary_data": True}}]
    asked.append({"name": "num_detections"})
    answer = client().post(INFER, **binary_request(tensor, raw, outputs=asked))
    assert answer.status_code == 200, answer.text
    length = int(answer.headers[LENGTH])
    scores, counts = json.loads(answer.content[:length])["outputs"]
    assert scores["parameters"] == {"binary_data_size": 2 * 4 * 4}
    values = np.frombuffer(answer.content[length:], "<f4").reshape(scores["shape"])
    np.testing.assert_allclose(values[:, 0], [0.8, 0.2], atol=1e-6)
    assert counts["data"] == [2.0, 2.0]


def test_all_outputs_as_binary(client):
    content = {"inputs": [bytes_tensor(RED)], "parameters": {"binary_data_output": True}}
    answer = client().post(INFER, json=content)
    outputs = json.loads(answer.content[: int(answer.headers[LENGTH])])["outputs"]
    assert [one["parameters"]["binary_data_size"] for one in outputs] == [64, 16, 16, 4]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({}, "'inputs' must be a list of one tensor"),
        ({"inputs": [pixels_tensor()] * 2}, "'inputs' must be a list of one tensor"),
        ({"inputs": [pixels_tensor(name="image")]}, "there is no input 'image'"),
        ({"inputs": [pixels_tensor(datatype="FP32")]}, "datatype 'FP32'; wanted UINT8 or BYTES"),
        ({"inputs": [pixels_tensor(shape=[2, -1, 2, 3])]}, "'shape' must be a list of whole"),
        ({"inputs": [pixels_tensor(shape="2")]}, "'shape' must be a list of whole"),
        ({"inputs": [pixels_tensor(shape=[2, 2, 2, 3])]}, "no array"),
        ({"inputs": [pixels_tensor(shape=[12])]}, "wanted [B, h, w, 3]"),
        ({"inputs": [pixels_tensor(shape=[0, 1, 1, 3], data=[])]}, "1 to 16 images"),
        ({"inputs": [pixels_tensor(data="AAAA")]}, "'data' must be a list"),
        ({"inputs": [bytes_tensor(RED, shape=[2])]}, "shape [2], data of 1 images"),
        ({"inputs": [bytes_tensor(RED, parameters=3)]}, "'parameters' must be an object"),
        (
            {"inputs": [bytes_tensor(RED, parameters={"binary_data_size": 5})]},
            "5 bytes were announced, 0 were received",
        ),
        ({"inputs": [bytes_tensor(RED)], "id": 3}, "'id' must be a string"),
        ({"inputs": [bytes_tensor(RED)], "outputs": []}, "'outputs' must be a list"),
        ({"inputs": [bytes_tensor(RED)], "outputs": [{"name": "masks"}]}, "no output 'masks'"),
        (
            {"inputs": [bytes_tensor(RED)], "parameters": {"binary_data_output": 1}},
            "'binary_data_output' must be true or false",
        ),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(client, content, error):
    answer = client().post(INFER, json=content)
    assert answer.status_code == 400
    assert error in answer.json()["error"]


@pytest.mark.parametrize("length", ["-1", "x", "99999999", "9" * 30])
def test_an_invalid_header_length_is_refused(client, length):
    answer = client().post(INFER, content=b"{}", headers={LENGTH: length})
    assert answer.status_code == 400
    assert LENGTH in answer.json()["error"]


@pytest.mark.parametrize("raw", [b"\x01", b"\xff\xff\xff\xff", b"\x05\0\0\0abcd"])
def test_a_truncated_binary_tensor_is_refused(client, raw):
    answer = client().post(INFER, **binary_request(bytes_tensor(RED), raw))
    assert answer.status_code == 400
    assert "ends inside an element" in answer.json()["error"]


def test_a_surrogate_in_the_id_is_repeated(client):
    body = json.dumps({"id": "\ud800", "inputs": [bytes_tensor(RED)]})
    answer = client().post(INFER, content=body.encode("ascii"))
    assert answer.status_code == 200
    assert answer.json()["id"] == "\ud800"


@pytest.mark.parametrize("path", ["/v2/models/cats", "/v2/models/owls/versions/2/ready"])
def test_other_models_and_routes_are_refused(client, path):
    answer = client().get(path)
    assert answer.status_code == 404
    assert "there is no model" in answer.json()["error"]
