"""`stillbox serve` from the command line: what it refuses, what it starts, how it ends."""

import errno
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from stillbox.cli import serve
from stillbox.cli.main import build_parser
from stillbox.exporting.manifest import EXPERIMENT, LABEL_MAP, Manifest
from stillbox.exporting.settings import ExportSettings
from stillbox.extras import install_command
from tests.helpers import refused
from tests.serving.conftest import encoded, make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@contextmanager
def serving(model, *words, **environment):
    """Starts a server in a process of its own; yields the process and its address."""
    command = [sys.executable, "-m", "stillbox.cli.main", "serve", str(model), "--port", "0"]
    with subprocess.Popen(
        [*command, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        try:
            lines = []
            while not (match := re.search(r"at (https?://\S+?)/$", lines[-1] if lines else "")):
                lines.append(process.stdout.readline().rstrip())
                assert process.poll() is None, lines
            yield process, match[1], lines
        finally:
            process.kill()


def test_it_serves_until_a_signal_comes(trained_once):
    words = "--batch-sizes", "1,2", "--runs-at-once", "2", "--name", "shapes"
    with serving(trained_once, *words) as (process, at, lines):
        assert [line.split(":")[0] for line in lines[:2]] == ["batch of 1", "batch of 2"]
        assert lines[2] == "2 batches run at a time"
        assert lines[3].startswith("shapes at http://127.0.0.1:")
        with httpx.Client(base_url=at, timeout=60) as client:
            answer = client.post("/detect?min_score=0", content=encoded(200, (90, 60)))
            assert (answer.json()["height"], answer.json()["width"]) == (60, 90)
            assert len(answer.json()["detections"]) > 0
            state = client.get("/v1/models/shapes").json()
            assert state["model_version_status"][0]["state"] == "AVAILABLE"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_with_tls_and_a_key(trained_once, certificate):
    words = ["--batch-sizes", "1", "--tls-cert", certificate[0], "--tls-key", certificate[1]]
    with serving(trained_once, *words, STILLBOX_API_KEY="secret") as (_, at, _):
        assert at.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        with httpx.Client(base_url=at, verify=trust, timeout=60) as client:
            assert client.get("/healthz").status_code == 200
            assert client.get("/v1/models/model").status_code == 401
            known = client.get("/v1/models/model", headers={"X-API-Key": "secret"})
            assert known.status_code == 200


@pytest.mark.parametrize(
    ("words", "error", "fix"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 is open to other machines, and there is no key",
         "API_KEY"),
        (["--host", "::"], "is open to other machines", "--insecure"),
        (["--host", "no.such.host.invalid", "--insecure"], "cannot listen at", "give --host"),
        (["--host", "a..b", "--insecure"], "cannot listen at a..b:8501", "give --host"),
        (["--host", "unix:/run/owls.sock", "--insecure"], "cannot listen at unix:", "give --host"),
        (["--host", "192.0.2.1", "--insecure"], "Cannot assign requested", "give --host"),
        (["--allowed-host", "*"], "'*' is no host", "NAME or NAME:PORT"),
        (["--port", "70000"], "cannot listen at 127.0.0.1:70000", "--port"),
        (["--tls-cert", "cert.pem"], "a certificate and its key belong together", "give both"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], "a.pem and b.pem cannot be used", "PEM"),
        (["--name", "a/b"], "'a/b' is not valid in an address", "letters"),
        (["--api-key", "é"], "a header cannot carry this key", "ASCII"),
        (["--queue", "0"], "--queue: 0 is out of range", "give 1 to 100000"),
        (["--min-score", "3"], "--min-score: 3.0 is out of range", "give 0 to 1"),
        (["--timeout", "inf"], "--timeout: 'inf' is no finite number", "`stillbox serve --help`"),
        (["--max-delay-ms", "1e300"], "--max-delay-ms: 1e+300 is out of range", "0 to 60000"),
        (["--max-memory", "1"], "--max-memory: 1 is out of range", "give 1048576 to"),
        (["--batch-sizes", "0"], "a batch has 1 to 1024 images", "1,2,4,8"),
        (["--batch-sizes", "1,99999999999"], "a batch has 1 to 1024 images", "1,2,4,8"),
    ],
)  # fmt: skip
def test_arguments_are_checked_before_the_model_is_loaded(refused, here, words, error, fix):
    said = refused("serve", "nowhere", *words)
    assert error in said
    assert fix in said.partition("fix:")[2]


def test_ports_that_are_taken_or_of_the_system_are_refused(refused, here, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other_port = other.getsockname()[1]
        said = refused("serve", "nowhere", "--port", other.getsockname()[1])
    assert f"cannot listen at 127.0.0.1:{other_port}: Address already in use" in said
    assert "fix: give another --port; 0 takes any that is free" in said

    def refuse(self, address):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", refuse)
    said = refused("serve", "nowhere", "--port", "80")
    assert "cannot listen at 127.0.0.1:80: Permission denied" in said
    assert "fix: give a --port of 1024 or more" in said


def test_a_port_is_taken_while_another_server_compiles():
    """The socket is bound and does not listen yet."""
    with serve._bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with refused("--host, --port", "127.0.0.1", port):
            serve._bind("127.0.0.1", port)


def test_a_port_with_connections_that_are_still_closing():
    """The connections belong to an earlier server of the same port."""
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        address = earlier.getsockname()
        client = socket.create_connection(address)
        earlier.accept()[0].close()  # which waits for TIME_WAIT after the client's end
        client.close()
    with serve._bind(*address) as bound:
        assert bound.getsockname() == address


def test_names_of_a_server_for_other_machines():
    parser = build_parser("serve")
    for host, names in (
        ("127.0.0.1", ["owls.example"]),
        ("localhost", ["owls.example"]),
        ("0.0.0.0", ["owls.example", "0.0.0.0", socket.gethostname()]),
        ("::", ["owls.example", "[::]", socket.gethostname()]),
    ):
        words = ["serve", "owls", "--host", host, "--allowed-host", "owls.example"]
        settings = serve._settings(parser.parse_args(words))
        assert list(settings.allowed_hosts) == names


def test_no_model(refused, here):
    assert "nowhere" in refused("serve", "nowhere", "--port", "0")


def test_an_export_that_would_compile_for_every_size(refused, trained_once, tmp_path):
    settings = ExportSettings(format="stablehlo")
    manifest = Manifest(settings=settings, files={}, input_size=(64, 64), resizer={}, source="x")
    for name in (EXPERIMENT, LABEL_MAP):
        shutil.copy(trained_once / name, tmp_path)
    manifest.write(tmp_path)
    said = refused("serve", tmp_path, "--port", "0")
    assert "compiles a program for every size of image" in said
    assert "--image-size HEIGHT,WIDTH" in said


def test_sizes_that_are_no_numbers(stillbox):
    _, err = stillbox("serve", "x", "--batch-sizes", "1,b").ended(2)
    assert "no list of sizes" in err


def test_a_missing_extra_is_named_with_its_install_command(refused, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.delitem(sys.modules, "stillbox.serving.app", raising=False)
    for name in [name for name in sys.modules if name.startswith("starlette.")]:
        monkeypatch.setitem(sys.modules, name, None)
    said = refused("serve", "nowhere", "--port", "0")
    assert "is not installed" in said
    assert install_command("serve") in said
