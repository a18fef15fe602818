"""The REST protocol of TensorFlow Serving, by https://www.tensorflow.org/tfx/serving/api_rest."""

import io
import json
import re
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from tests.serving.conftest import b64, check_refused, encoded

PREDICT = "/v1/models/owls:predict"
RED = encoded(204)  # score 204 / 255 = 0.8


def close(values, wanted):
    np.testing.assert_allclose(values, wanted, atol=1e-6)


def check_one(row, score=0.8):
    """The two objects of the fake model, padded to four rows as the original does."""
    close(row["detection_boxes"], [[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    close(row["detection_classes"], [1, 3, 1, 1])
    close(row["detection_scores"], [score, 0.1, 0, 0])
    assert row["num_detections"] == 2.0


def test_state(client):
    status = {"error_code": "OK", "error_message": ""}
    state = {"version": "1", "state": "AVAILABLE", "status": status}
    states = {"model_version_status": [state]}
    assert client().get("/v1/models/owls/versions/1").json() == states
    # What `InferenceRESTClient.is_model_ready` of kserve reads in version 1 of its protocol.
    kserve = {"name": "owls", "ready": True}
    assert client().get("/v1/models/owls").json() == states | kserve


def test_metadata(client):
    answer = client().get("/v1/models/owls/metadata").json()
    assert answer["model_spec"] == {"name": "owls", "signature_name": "", "version": "1"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    (image,) = signature["inputs"].values()
    assert image["dtype"] == "DT_UINT8"
    sizes = {
        name: [dim["size"] for dim in tensor["tensor_shape"]["dim"]]
        for name, tensor in (signature["inputs"] | signature["outputs"]).items()
    }
    assert sizes == {
        "input_tensor": ["-1", "-1", "-1", "3"],
        "detection_boxes": ["-1", "4", "4"],
        "detection_classes": ["-1", "4"],
        "detection_scores": ["-1", "4"],
        "num_detections": ["-1"],
    }


PIXELS = np.full((2, 3, 3), 204, np.uint8).tolist()


@pytest.mark.parametrize(
    "instance",
    [
        {"b64": b64(RED)},
        {"input_tensor": {"b64": b64(RED)}},
        {"image_bytes": {"b64": b64(RED)}},
        PIXELS,
        {"inputs": PIXELS},
    ],
)
def test_rows(client, instance):
    answer = client().post(PREDICT, json={"instances": [instance, instance]})
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["predictions"]
    check_one(first)
    check_one(second)


@pytest.mark.parametrize(
    "column",
    [
        [{"b64": b64(RED)}, PIXELS],
        {"input_tensor": [PIXELS, PIXELS]},
        {"encoded_image_string_tensor": [{"b64": b64(RED)}] * 2},
    ],
)
def test_columns(client, column):
    content = {"signature_name": "serving_default", "inputs": column}
    answer = client().post("/v1/models/owls/versions/1:predict", json=content)
    assert answer.status_code == 200, answer.text
    outputs = answer.json()["outputs"]
    for at in range(2):
        check_one({name: values[at] for name, values in outputs.items()})


def test_objects_have_several_classes_by_default(client, backend):
    backend.doubts = True
    content = {"instances": [{"b64": b64(RED)}]}
    for settings, count in (({}, 3), ({"classes_per_object": "one"}, 2)):
        (row,) = client(**settings).post(PREDICT, json=content).json()["predictions"]
        assert row["num_detections"] == count


def test_images_of_different_sizes_and_contents_keep_their_order(client):
    images = [encoded(red, size) for red, size in ((51, (9, 9)), (255, (40, 8)), (102, (5, 50)))]
    content = {"instances": [{"b64": b64(image)} for image in images]}
    rows = client().post(PREDICT, json=content).json()["predictions"]
    for row, score in zip(rows, (0.2, 1.0, 0.4), strict=True):
        check_one(row, score)


def test_the_exif_orientation_is_ignored(client, backend):
    image = Image.new("RGB", (40, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    sizes = []
    prepare = backend.prepare
    backend.prepare = lambda pixels, where=None: (sizes.append(pixels.shape), prepare(pixels))[1]
    client().post(PREDICT, json={"instances": [{"b64": b64(buffer.getvalue())}]})
    assert sizes[-1] == (20, 40, 3)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({}, "one of the keys 'instances' and 'inputs'"),
        ({"instances": [], "inputs": []}, "one of the keys 'instances' and 'inputs'"),
        ({"instances": []}, "must be a list of images"),
        ({"instances": {}}, "must be a list of images"),
        ({"inputs": {"pictures": []}}, "the only input is 'input_tensor'"),
        ({"instances": [3]}, "image 0: give"),
        ({"instances": [PIXELS, [[1, 2], [3]]]}, "image 1: no array"),
        ({"instances": [[[1, 2, 3]]]}, r"shape \[1, 3\], wanted \[h, w, 3\]"),
        ({"instances": [[[[1.5, 2, 3]]]]}, "whole numbers in 0..255"),
        ({"instances": [[[[1, 2, 256]]]]}, "whole numbers in 0..255"),
        ({"instances": [[[[1, 2, 10**30]]]]}, "whole numbers in 0..255"),
        ({"instances": [[[["a", "b", "c"]]]]}, "whole numbers in 0..255"),
        ({"instances": [[[[True, True, True]]]]}, "whole numbers in 0..255"),
        ({"instances": [{"b64": "no base64!"}]}, "image 0: not base64"),
        ({"instances": [{"b64": "é"}]}, "image 0: not base64"),
        ({"instances": [{"input": {"input": []}}]}, "image 0: base64 must be a string"),
        ({"instances": [{"b64": 7}]}, "image 0: base64 must be a string"),
        ({"instances": [{"b64": b64(b"no image")}]}, "8 bytes and no image"),
        ({"instances": [{"b64": b64(RED[:45])}]}, "cannot be decoded|no image"),
        ({"instances": [PIXELS] * 17}, "1 to 16 images; this one has 17"),
        ({"instances": [PIXELS], "signature_name": "other"}, '"other" not found in signature def'),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(client, content, error):
    answer = client().post(PREDICT, json=content)
    check_refused(answer)
    assert re.search(error, answer.json()["error"])


DEEP = json.loads("[" * 200 + "]" * 200)


@pytest.mark.parametrize(
    "content",
    [
        {"instances": [["x" * 160_000, *[""] * 9000]]},
        {"instances": [["x" * 160_000] + [""] * 50_000]},
        {"instances": [[[[None, {}, 10**300]]]]},
        {"instances": [[[[{"b64": b64(RED)}, 2, 3]]]]},
        {"instances": [[[[1e308, 2, 3]] * 1000] * 10]},
        {"instances": [[[[1, 2, 3]] * 1000, [[1, 2, 3]] * 999]]},
        {"instances": [[[[1, 2, 3]] * 100] * 10, [[[1, 2, -3]] * 100] * 9]},
        {"instances": [[[[1, 2, 3]] * 1000] * 10, {"b64": "x"}]},
        {"instances": [[[[1, 2, 300]] * 1000] * 10]},
        {"instances": [[[[1, 2, 3, 4]] * 1000]]},
        {"instances": [[[1, 2, 3]] * 1000]},
        {"instances": [[]] * 5000},
        {"instances": [{}] * 5000},
        {"instances": [{"b64": b64(RED)}] * 3000},
        {"instances": [{"b64": b64(RED), "x": 1}]},
        {"instances": [{"x" * 100_000: 1}]},
        {"instances": [dict.fromkeys(map(str, range(5000)))]},
        {"instances": [{"b64": DEEP}]},
        {"instances": [DEEP]},
        {"instances": DEEP},
        {"inputs": dict.fromkeys(map(str, range(5000)))},
        {"inputs": {"input": {"input": [PIXELS]}}},
        {"instances": [PIXELS], "signature_name": "x" * 100_000},
        {"instances": [PIXELS], "signature_name": DEEP},
        {str(key): 0 for key in range(50_000)},
    ],
)
def test_hostile_requests_are_refused_in_one_sentence(client, content):
    http = client()
    tracemalloc.start()
    try:
        answer = http.post(PREDICT, json=content)
        assert tracemalloc.get_traced_memory()[1] < 3e7
    finally:
        tracemalloc.stop()
    check_refused(answer)


def test_many_pixels(client):
    image = [[[204, 7, 9]] * 200] * 100
    for content in ({"instances": [image, {"b64": b64(RED)}, PIXELS]}, {"inputs": [image] * 2}):
        answer = client().post(PREDICT, json=content)
        assert answer.status_code == 200, answer.text
        rows = answer.json().get("predictions")
        check_one(rows[0] if rows else {k: v[1] for k, v in answer.json()["outputs"].items()})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_a_body_that_is_no_json_object_is_refused(client, body):
    answer = client().post(PREDICT, content=body)
    check_refused(answer)
    assert "JSON" in answer.json()["error"] or "keys" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v1/models/cats", 404, "Could not find any versions of model cats"),
        ("GET", "/v1/models/owls/versions/2", 404, "Could not find any versions of model owls"),
        ("GET", "/v1/models/cats/metadata", 404, "Servable not found for request: Latest(cats)"),
        ("POST", "/v1/models/cats:predict", 404, "Servable not found for request: Latest(cats)"),
        (
            "POST",
            "/v1/models/owls/versions/7:predict",
            404,
            "Servable not found for request: Specific(owls, 7)",
        ),
        ("POST", "/v1/models/owls:classify", 400, "Malformed request"),
        ("GET", "/v1/models", 404, "Not Found"),
        ("DELETE", "/v1/models/owls", 405, "Method Not Allowed"),
    ],
)
def test_other_models_and_routes_are_refused(client, method, path, status, error):
    content = {"instances": [PIXELS]} if "P" in method else None
    check_refused(client().request(method, path, json=content), error, status)
