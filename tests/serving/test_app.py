"""The server: health, metrics, key, errors, shutdown, its OpenAPI document, and docs/serving.md."""

import itertools
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from stillbox.cli.main import build_parser
from stillbox.cli.serve import _settings
from stillbox.errors import UserError
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import CLASSES_PER_OBJECT
from stillbox.serving.app import FORMATS, PARAMETERS, build_app
from stillbox.serving.engine import INPUTS, OUTPUTS
from stillbox.serving.middleware import PUBLIC_PATHS
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import LOOPBACK, b64, encoded, running
from tests.serving.fuzzing import fuzz

RED = encoded(204)


def metric(client, name, **labels):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_health(client):
    http = client()
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"ready": True}


def test_before_startup_and_after_shutdown_the_server_is_live_but_not_ready(backend):
    app = build_app(Predictor(backend), ServeSettings(batch_sizes=(1,)))
    client = TestClient(app, base_url=LOOPBACK)  # without its lifespan
    for path in ("/readyz", "/v2/health/ready", "/v2/models/model/ready"):
        assert client.get(path).status_code == 503
        assert client.get(path).json()["ready"] is False
    assert client.get("/healthz").status_code == 200
    app.state.engine.start()
    assert client.get("/readyz").status_code == 200
    app.state.engine.stop()
    assert client.get("/readyz").status_code == 503


class Death(BaseException):
    """Ends the model's thread."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_without_the_thread_of_its_model_is_not_ready_and_answers(client, backend):
    http = client()
    assert http.get("/v1/models/owls").json()["model_version_status"][0]["state"] == "AVAILABLE"
    backend.fails = Death()
    tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "data": [b64(RED)]}
    for _ in range(2):
        for path, sent in (
            ("/detect", {"content": RED}),
            ("/v1/models/owls:predict", {"json": {"instances": [{"b64": b64(RED)}]}}),
            ("/v2/models/owls/infer", {"json": {"inputs": [tensor]}}),
        ):
            answer = http.post(path, **sent)
            assert (answer.status_code, answer.json()) == (503, {"error": "the model has stopped"})
    for path in ("/readyz", "/v2/health/ready", "/v2/models/owls/ready"):
        assert http.get(path).status_code == 503
        assert http.get(path).json()["ready"] is False
    state = http.get("/v1/models/owls").json()["model_version_status"][0]
    assert state["state"] == "END"
    assert state["status"]["error_code"] == "UNAVAILABLE"
    assert http.get("/healthz").status_code == 200


def test_metrics(client):
    http = client()
    http.post("/detect", content=RED)
    http.post("/detect", content=b"no image")
    http.post("/v1/models/owls:predict", json={"instances": [{"b64": b64(RED)}] * 3})
    for path in ("/a", "/b", "/c/d"):
        http.get(path)
    assert metric(http, "stillbox_requests_total", route="/detect", code="200") == 1
    assert metric(http, "stillbox_requests_total", route="/detect", code="400") == 1
    assert metric(http, "stillbox_requests_total", route="none", code="404") == 3
    assert metric(http, "stillbox_request_seconds_count", route="/detect") == 2
    assert metric(http, "stillbox_images_total") == 4
    assert metric(http, "stillbox_batch_images_sum") == 4
    assert metric(http, "stillbox_batch_rows_total") >= 4
    assert metric(http, "stillbox_run_seconds_count") == metric(http, "stillbox_batch_images_count")
    assert metric(http, "stillbox_queue_images") == 0
    assert metric(http, "stillbox_inside_images") == 0


@pytest.mark.parametrize("kind", [RuntimeError, UserError])
def test_an_error_of_the_model_is_500_without_details(client, backend, kind):
    http = client()
    backend.fails = kind("secret path")
    answer = http.post("/detect", content=RED)
    assert (answer.status_code, answer.json()) == (500, {"error": "the server failed"})
    backend.fails = None
    assert http.post("/detect", content=RED).status_code == 200
    assert metric(http, "stillbox_requests_total", route="/detect", code="500") == 1


SHUT = ("/metrics", "/v1/models/owls", "/v2", "/v2/models/owls")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": "sécret".encode("latin-1")}, 401),
        ({"X-API-Key": "secret"}, 200),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer secret"}, 200),
    ],
)
def test_key(client, headers, status):
    http = client(api_key="secret")
    for path in SHUT:
        answer = http.get(path, headers=headers)
        assert answer.status_code == status, path
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json().keys() == {"error"}
    assert http.post("/detect", content=RED, headers=headers).status_code == status


def test_public_paths_need_no_key(client):
    http = client(api_key="secret")
    for path in (*PUBLIC_PATHS, "/", "/page/app.js", "/page/style.css"):
        assert http.get(path).status_code == 200, path
    assert http.get("/page/../metrics").status_code == 401


def test_every_response_has_the_security_headers(client):
    http = client(api_key="secret")
    for path in ("/", "/page/app.js", "/healthz", "/metrics", "/nothing"):
        headers = http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_shutdown_finishes_requests_in_flight_and_refuses_new_ones(backend):
    app = build_app(Predictor(backend), ServeSettings(batch_sizes=(1,)))
    answers = []
    with running(app) as (server, address):
        backend.open.clear()
        backend.entered.clear()
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{address}/detect", content=RED, timeout=30))
        )
        asking.start()
        assert backend.entered.wait(10)
        server.should_exit = True
        while True:
            try:
                httpx.get(f"{address}/healthz")
            except httpx.TransportError:
                break
            time.sleep(0.01)
        assert not answers
        backend.open.set()
        asking.join(30)
    assert answers[0].status_code == 200
    assert answers[0].json()["detections"][0]["class"] == "owl"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/healthz")


SERVER = """
import socket, sys, time
from tests.serving.fake import FakeBackend
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import CLASSES_PER_OBJECT
from stillbox.serving.app import FORMATS, PARAMETERS, build_app
from stillbox.serving.engine import INPUTS, OUTPUTS
from stillbox.serving.connections import ConnectionLimits, Server
from stillbox.serving.settings import ServeSettings

class Slow(FakeBackend):
    def run(self, images):
        time.sleep(0.5)
        return super().run(images)

app = build_app(Predictor(Slow()), ServeSettings(batch_sizes=(1,), runs_at_once=1))
app.state.engine.start()
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
Server(app, ConnectionLimits(seconds=30.0, most=100, grace=0.2)).run(sockets=[listening])
"""


def test_sigterm_finishes_requests_in_flight():
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER)], stdout=subprocess.PIPE, text=True
    ) as process:
        address = f"http://127.0.0.1:{int(process.stdout.readline())}"
        answers = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(httpx.post(f"{address}/detect", content=RED))
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        while "stillbox_inside_images 3.0" not in httpx.get(f"{address}/metrics").text:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert process.wait(30) == -signal.SIGTERM


# Schemas cannot describe an image, so a request that fits may contain none.
NOT_ASKED = "positive_data_acceptance"


def test_every_route_is_described(client):
    http = client()
    described = {
        (path, method.upper())
        for path, methods in http.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    real = {
        (route.path.replace("{action}", "predict"), method)
        for route in http.app.routes
        for method in route.methods - {"HEAD"}
        if route.path != "/" and not route.path.startswith("/page/")
    }
    assert described == real


def asked(client, path, method):
    """Returns the answer to a plain request of a route: an image of each protocol for `POST`."""
    tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "data": [b64(RED)]}
    wanted = {
        "predict": {"json": {"instances": [{"b64": b64(RED)}]}},
        "infer": {"json": {"inputs": [tensor]}},
        "detect": {"content": RED},
    }
    address = path.format(name="owls", version=1)
    return client.request(method, address, **wanted.get(re.split("[/:]", path)[-1], {}))


def described(document, answer, path, method):
    """Returns the media types that the document has for the status of an answer."""
    response = document["paths"][path][method]["responses"][str(answer.status_code)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return response["content"]


def test_answers_are_as_described(client):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    http = client(api_key="secret")
    document = http.get("/openapi.json").json()
    statuses = set()
    routes = [(path, method) for path, methods in document["paths"].items() for method in methods]
    for key, (path, method) in itertools.product(["wrong", "secret"], routes):
        http.headers["x-api-key"] = key
        for answer in (asked(http, path, method), http.request(method, path, content=b"no image")):
            kind = answer.headers["content-type"].partition(";")[0]
            schema = described(document, answer, path, method)[kind]["schema"]
            if kind == "application/json":
                validator(schema | {"components": document["components"]}).validate(answer.json())
            statuses.add(answer.status_code)
    assert statuses == {200, 400, 401, 404}


def test_the_document_names_what_the_server_takes(client):
    document = client().get("/openapi.json").json()
    assert document["info"]["title"] == "stillbox serve owls"
    assert document["components"]["parameters"]["name"]["example"] == "owls"
    query = document["paths"]["/detect"]["post"]["parameters"]
    words = {parameter["name"]: parameter["schema"].get("enum") for parameter in query}
    choices = {"format": list(FORMATS), "classes_per_object": list(CLASSES_PER_OBJECT)}
    assert words == dict.fromkeys(PARAMETERS) | choices
    schemas = document["components"]["schemas"]
    infer = schemas["InferRequest"]["properties"]
    assert infer["inputs"]["items"]["properties"]["name"]["enum"] == list(INPUTS)
    assert infer["outputs"]["items"]["properties"]["name"]["enum"] == list(OUTPUTS)
    assert schemas["Row"]["required"] == list(OUTPUTS)
    named = schemas["Images"]["items"]["anyOf"][1:]
    assert [name for part in named for name in part["required"]] == list(INPUTS)


def test_every_route_describes_its_key(client):
    paths = client(api_key="secret").get("/openapi.json").json()["paths"]
    guarded = {
        path for path in paths if any("security" in operation for operation in paths[path].values())
    }
    public = {"/healthz", "/readyz", "/openapi.json", "/v2/health/live", "/v2/health/ready"}
    assert paths.keys() - guarded == public


@pytest.mark.slow
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_no_fault(backend, tmp_path):
    app = build_app(Predictor(backend), ServeSettings(name="owls", batch_sizes=(1, 2)))
    with running(app) as (_, address):
        words = ["run", f"{address}/openapi.json", "--max-examples", "5", "--seed", "1"]
        words += ["--checks", "all", "--exclude-checks", NOT_ASKED, "--no-color"]
        words += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
        fuzzing = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *words],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
        )
    assert fuzzing.returncode == 0, fuzzing.stdout[-4000:] + fuzzing.stderr[-2000:]


def test_broken_images_cause_no_server_error(backend):
    app = build_app(Predictor(backend), ServeSettings(name="owls", batch_sizes=(1, 2)))
    with running(app) as (_, address):
        statuses = fuzz(address, "owls", seconds=2)
    assert statuses[200] > 5
    assert statuses[400] > 20


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8501"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands():
    """Returns every command of the shell blocks."""
    return [
        line
        for block in blocks("sh")
        for line in re.sub(r"\\\n", " ", re.sub(r"\[1\],\n", "[1], ", block)).splitlines()
        if line
    ]


CALLS = [line for line in commands() if "curl" in line]


@pytest.fixture(scope="module")
def served(small_backend, tmp_path_factory):
    """Address of a server for the tiny model, and a folder with photographs."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    image.save(folder / "photos" / "owl_1.jpg")
    settings = ServeSettings(name="owls", batch_sizes=(1,), min_score=0.0)
    with running(build_app(Predictor(small_backend), settings)) as (_, address):
        yield address, folder


def test_every_command_is_run_or_parsed():
    assert len(CALLS) == 14
    others = [line for line in commands() if line not in CALLS]
    assert others[0] == "pip install -e '.[serve]'"
    for line in others[1:]:
        words = [word for word in shlex.split(line) if not word.startswith("STILLBOX_API_KEY=")]
        assert words[0] == "stillbox"
        _settings(build_parser().parse_args(words[1:]))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("line", CALLS)
def test_requests_are_answered(served, line):
    address, folder = served
    line = line.replace(ADDRESS, address).replace("curl", "curl --silent --fail-with-body", 1)
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 0, done
    if "--output" in line:
        with Image.open(folder / "owl_1.png") as picture:
            assert picture.size == (480, 360)  # small ones are enlarged
    elif "metrics" not in line:
        assert isinstance(json.loads(done.stdout), dict)


def test_the_client_in_python(served, monkeypatch, capsys):
    address, folder = served
    monkeypatch.chdir(folder)
    (program,) = blocks("python")
    exec(program.replace(ADDRESS, address), {})
    assert float(capsys.readouterr().out.split()[0]) > 0


def test_the_shown_response_has_the_form_of_a_real_one(served):
    address, folder = served
    content = (folder / "photos" / "owl_1.jpg").read_bytes()
    real = httpx.post(f"{address}/detect", content=content).json()
    (shown,) = map(json.loads, blocks("json"))
    assert shown.keys() == real.keys()
    assert shown["detections"][0].keys() == real["detections"][0].keys()
    assert shown["detections"][0]["box"].keys() == real["detections"][0]["box"].keys()


def rows(heading):
    """Returns the rows of the table with this heading, cell by cell."""
    table = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0]
    cells = (line.split("|")[1:-1] for line in table.split("\n")[2:])
    return [[cell.strip().strip("`") for cell in row] for row in cells]


def test_the_defaults_are_those_of_the_program():
    for option, shown, _ in rows("option"):
        default = getattr(ServeSettings(), option.removeprefix("--").replace("-", "_"))
        if option == "--batch-sizes":
            assert default is None
            assert shown == "1,2,4,8"
        else:
            assert float(shown) == default, option


def test_every_metric_is_in_the_table(served):
    text = httpx.get(f"{served[0]}/metrics").text
    real = {
        family.name + "_total" * (family.type == "counter")
        for family in text_string_to_metric_families(text)
        if family.name.startswith("stillbox_") and not family.name.endswith("_created")
    }
    assert {name for name, _ in rows("metric")} == real
