"""The Open Inference Protocol, by https://github.com/kserve/open-inference-protocol."""

import json
import tracemalloc

import numpy as np
import pytest

from tests.serving.conftest import b64, check_refused, encoded

INFER = "/v2/models/owls/infer"
RED = encoded(204)
LENGTH = "Inference-Header-Content-Length"


def bytes_tensor(*files, **more):
    data = [b64(file) for file in files]
    return {"name": "input_tensor", "datatype": "BYTES", "shape": [len(data)], "data": data} | more


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
        output["name"]: np.array(output["data"]).reshape(output["shape"])
        for output in answer.json()["outputs"]
    }


def test_server_and_health(client):
    http = client()
    server = http.get("/v2").json()
    assert server["name"] == "stillbox"
    assert server["extensions"] == ["binary_tensor_data"]
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True}
    assert http.get("/v2/models/owls/ready").json() == {"name": "owls", "ready": True}


def test_model(client):
    answer = client().get("/v2/models/owls/versions/1").json()
    assert answer["name"] == "owls"
    assert answer["versions"] == ["1"]
    assert answer["inputs"] == [
        {"name": "input_tensor", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
        {"name": "image_bytes", "datatype": "BYTES", "shape": [-1]},
    ]
    assert {output["name"]: output["shape"] for output in answer["outputs"]} == {
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


def test_a_request_chooses_one_class_for_each_object(client, backend):
    backend.doubts = True
    content = {"inputs": [bytes_tensor(RED)]}
    for settings, parameters, count in (
        ({}, {}, 3),
        ({}, {"classes_per_object": "one"}, 2),
        ({"classes_per_object": "one"}, {}, 2),
        ({"classes_per_object": "one"}, {"classes_per_object": "all"}, 3),
    ):
        answer = client(**settings).post(INFER, json=content | {"parameters": parameters})
        assert arrays(answer)["num_detections"].tolist() == [count]


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
    assert [output["parameters"]["binary_data_size"] for output in outputs] == [64, 16, 16, 4]


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
        ({"inputs": [bytes_tensor(RED, shape=[2])]}, "shape [2], data of 1 image"),
        ({"inputs": [bytes_tensor(RED, parameters=3)]}, "'parameters' must be an object"),
        (
            {"inputs": [bytes_tensor(RED)], "parameters": {"classes_per_object": ["one"]}},
            "parameter 'classes_per_object' must be 'one' or 'all'",
        ),
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
    check_refused(client().post(INFER, json=content), error)


MOST = 2**31 - 1
DEEP = json.loads("[" * 200 + "]" * 200)
SHAPES = [
    [MOST, 0, 0, 3],
    [0, MOST, MOST, 3],
    [MOST, MOST, MOST, 3],
    [16, MOST, MOST, 3],
    [1, 0, 2, 3],
    [1, 2, 2, 4],
    *([1] * 5, [1] * 5000, [MOST] * 2000, [1, 1, 1, 10**4000]),
    *([first, 1, 1, 3] for first in (1.0, True, None, -1, [1])),
    *([], {}, "x" * 10_000, DEEP, None),
]


@pytest.mark.parametrize("kind", ["UINT8", "BYTES"])
@pytest.mark.parametrize("at", range(len(SHAPES)))
def test_a_shape_is_checked_before_anything_is_made_of_it(client, kind, at):
    http, data = client(), [b64(RED)] if kind == "BYTES" else [204] * 3
    tracemalloc.start()
    try:
        for given in (data, []):
            tensor = pixels_tensor(datatype=kind, shape=SHAPES[at], data=given)
            check_refused(http.post(INFER, json={"inputs": [tensor]}))
            tensor["parameters"] = {"binary_data_size": 0}
            check_refused(http.post(INFER, **binary_request(tensor, b"")))
            check_refused(http.post(INFER, **binary_request(tensor, b"abc")))
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1, 17, 1_000_000])
def test_the_elements_of_a_binary_tensor_are_counted_first(client, count):
    tensor, raw = bytes_tensor(RED), bytes(4 * 1_000_000)
    check_refused(client().post(INFER, **binary_request(tensor | {"shape": [count]}, raw)))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "x" * 100_000},
        {"name": DEEP},
        {"name": {"a": 1}},
        {"datatype": "x" * 100_000},
        {"datatype": DEEP},
        {"data": "x" * 100_000},
        {"data": [1] * 100_000},
        {"data": [[204] * 3] * 4},
        {"data": [[[[204] * 3] * 2], [[204] * 3]]},
        {"data": [[[[204] * 3] * 2]] * 3},
        {"data": [[[[204] * 3] * 2], 3]},
        {"data": [[[[204] * 3] * 2], {"b64": ""}]},
        {"data": ["x" * 100_000, *[""] * 5000]},
        {"data": [None] * 12},
        {"data": [{}] * 12},
        {"data": [1.0] * 12},
        {"data": [10**300] * 12},
        {"data": [[]] * 12},
        {"data": DEEP},
        {"parameters": {"binary_data_size": -1}},
        {"parameters": {"binary_data_size": 1e308}},
        {"parameters": {"binary_data_size": 10**4000}},
        {"parameters": {"binary_data_size": False}},
        {"parameters": {"binary_data_size": 0.0}},
        {"parameters": {"binary_data_size": "x" * 100_000}},
        {"parameters": {"binary_data_size": [0]}},
        {"parameters": [0]},
    ],
)
@pytest.mark.parametrize("kind", ["UINT8", "BYTES"])
def test_hostile_tensors_are_refused_in_one_sentence(client, kind, changes):
    shape = [2] if kind == "BYTES" else [2, 1, 2, 3]
    tensor = pixels_tensor(datatype=kind, shape=shape) | changes
    check_refused(client().post(INFER, json={"inputs": [tensor]}))


@pytest.mark.parametrize(
    "more",
    [
        {"outputs": [{"name": "detection_boxes"}] * 5000},
        {"outputs": [{"name": "x" * 100_000}]},
        {"outputs": [{"name": DEEP}]},
        {"outputs": [[]]},
        {"outputs": [{"name": "detection_boxes", "parameters": DEEP}]},
        {"id": "x" * 100_000},
        {"id": "\ud800" * 5000},
        {"inputs": [bytes_tensor(RED)] * 3000},
        {"parameters": {"binary_data_output": DEEP}},
    ],
)
def test_hostile_requests_are_refused_in_one_sentence(client, more):
    body = json.dumps({"inputs": [bytes_tensor(RED)]} | more)
    check_refused(client().post(INFER, content=body.encode("ascii")))


@pytest.mark.parametrize(
    "length",
    [
        *("-1", "x", "99999999", "0" * 10 + "99"),
        *("9" * 30, "9" * 4400, "0" * 10 + "9" * 5000, "0" * 5000),
    ],
)
def test_an_invalid_header_length_is_refused(client, length):
    check_refused(client().post(INFER, content=b"{}", headers={LENGTH: length}), LENGTH)


@pytest.mark.parametrize("raw", [b"\x01", b"\xff\xff\xff\xff", b"\x05\0\0\0abcd"])
def test_a_truncated_binary_tensor_is_refused(client, raw):
    answer = client().post(INFER, **binary_request(bytes_tensor(RED), raw))
    check_refused(answer, "ends inside an element")


def test_a_surrogate_in_the_id_is_repeated(client):
    body = json.dumps({"id": "\ud800", "inputs": [bytes_tensor(RED)]})
    answer = client().post(INFER, content=body.encode("ascii"))
    assert answer.status_code == 200
    assert answer.json()["id"] == "\ud800"


@pytest.mark.parametrize("path", ["/v2/models/cats", "/v2/models/owls/versions/2/ready"])
def test_other_models_and_routes_are_refused(client, path):
    check_refused(client().get(path), "there is no model", 404)
