"""The OpenAPI document agrees with the routes."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from stillbox.predicting.predictor import Predictor
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import running
from tests.serving.fuzzing import fuzz

# Schemas cannot say what an image is, so that a request which fits may hold none.
NOT_ASKED = "positive_data_acceptance"


def test_every_route_is_described(client):
    one = client()
    described = {
        (path, method.upper())
        for path, methods in one.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    real = {
        (route.path.replace("{action}", "predict"), method)
        for route in one.app.routes
        for method in route.methods - {"HEAD"}
        if route.path != "/" and not route.path.startswith("/page/")
    }
    assert described == real


def test_every_route_says_that_it_needs_the_key(client):
    paths = client(api_key="secret").get("/openapi.json").json()["paths"]
    open_paths = {
        path
        for path, methods in paths.items()
        if not any("security" in m for m in methods.values())
    }
    assert open_paths == {
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/v2/health/live",
        "/v2/health/ready",
    }


@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_no_fault(backend, tmp_path):
    app = build_app(Predictor(backend), ServeSettings(name="owls", batch_sizes=(1, 2)))
    with running(app) as (_, address):
        words = ["run", f"{address}/openapi.json", "--max-examples", "5", "--seed", "1"]
        words += ["--checks", "all", "--exclude-checks", NOT_ASKED, "--no-color"]
        words += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
        found = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *words],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
        )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]


def test_broken_images_cause_no_server_error(backend):
    app = build_app(Predictor(backend), ServeSettings(name="owls", batch_sizes=(1, 2)))
    with running(app) as (_, address):
        statuses = fuzz(address, "owls", seconds=2)
    assert statuses[200] > 5
    assert statuses[400] > 20
