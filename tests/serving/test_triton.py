"""Triton's extensions of the Open Inference Protocol, as `tritonclient.http` reads them."""

import time

import pytest

from tests.serving.conftest import b64, check_refused, encoded

RED = encoded(204)


def test_tritons_configuration_lists_either_input_which_inference_takes(client):
    http = client()
    for path in "/v2/models/owls/config", "/v2/models/owls/versions/1/config":
        config = http.get(path).json()
        assert (config["name"], config["max_batch_size"]) == ("owls", 0)
    kinds = {tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in config["input"]}
    assert kinds == {
        "input_tensor": ("TYPE_UINT8", [-1, -1, -1, 3]),
        "image_bytes": ("TYPE_STRING", [-1]),
    }
    metadata = http.get("/v2/models/owls").json()
    assert [(t["name"], t["dims"]) for t in config["output"]] == [
        (t["name"], t["shape"]) for t in metadata["outputs"]
    ]
    tensor = {"name": "image_bytes", "datatype": "BYTES", "shape": [1], "data": [b64(encoded())]}
    assert http.post("/v2/models/owls/infer", json={"inputs": [tensor]}).status_code == 200
    check_refused(http.get("/v2/models/cats/config"), "there is no model", 404)


@pytest.mark.parametrize("body", [{"content": b""}, {"json": {"ready": True}}])
def test_tritons_index_has_the_one_model(client, body):
    answer = client().post("/v2/repository/index", **body)
    assert answer.json() == [{"name": "owls", "version": "1", "state": "READY", "reason": ""}]


STATISTICS = (
    "/v2/models/stats",
    "/v2/models/owls/stats",
    "/v2/models/owls/versions/1/stats",
)


def test_tritons_statistics_count_the_requests_of_all_protocols(client):
    http, began = client(), time.time()
    http.post("/detect", content=RED)
    http.post("/detect", content=b"no image")
    http.post("/v1/models/owls:predict", json={"instances": [{"b64": b64(RED)}] * 3})
    http.get("/v2/models/owls")
    for path in STATISTICS:
        (stats,) = http.get(path).json()["model_stats"]
        assert (stats["name"], stats["version"]) == ("owls", "1")
        assert 1000 * began - 1 < stats["last_inference"] < 1000 * time.time() + 1
        assert stats["inference_count"] == 4
        whole = stats["inference_stats"]
        assert {name: whole[name]["count"] for name in ("success", "fail", "queue")} == {
            "success": 2,
            "fail": 1,
            "queue": 0,
        }
        assert whole["success"]["ns"] > whole["compute_infer"]["ns"] > 0
        batches = stats["batch_stats"]
        assert [batch["batch_size"] for batch in batches] == [1, 2, 4]
        runs = [batch["compute_infer"] for batch in batches]
        # Nothing is lost between the sizes.
        assert sum(run["count"] for run in runs) == stats["execution_count"]
        assert sum(run["ns"] for run in runs) == pytest.approx(whole["compute_infer"]["ns"], abs=9)


def test_statistics_of_a_server_that_has_run_nothing_are_zero(client):
    (stats,) = client().get("/v2/models/owls/stats").json()["model_stats"]
    assert stats["inference_count"] == stats["execution_count"] == stats["last_inference"] == 0
    check_refused(client().get("/v2/models/cats/stats"), "there is no model", 404)
