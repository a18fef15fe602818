"""Requests that pages of other servers make in a browser."""

import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from stillbox.errors import UserError
from stillbox.predicting.predictor import Predictor
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.browser import chromium, needs_chromium
from tests.serving.conftest import b64, check_refused, encoded, running
from tests.serving.fake import FakeBackend
from tests.serving.test_app import metric

RED = encoded(204)
SANDBOX = {"Content-Security-Policy": "sandbox allow-scripts"}
GETS = ("/", "/page/app.js", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v2", "/nothing")
POSTS = ("/detect?format=png", "/v1/models/owls:predict", "/v2/models/owls/infer", "/nothing")
CALLS = [*(("GET", path) for path in GETS), *(("POST", path) for path in POSTS)]


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8501", "localhost.", "127.0.0.1:9000", "127.9.9.9", "[::1]:8501"],
)
def test_names_of_loopback_are_served(client, host):
    assert client().post("/detect", content=RED, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8501", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("evil-localhost", "owls.example@localhost", "localhost@evil.example", "localhost/", ""),
        *("192.0.2.1", "0.0.0.0", "[2001:db8::1]:8501", "2130706433", "0x7f.1", "[::1", "::1"),
        *("localhost:", "localhost:x", "localhost, evil.example", "localh\xf6st", "testserver"),
    ],
)
def test_other_hosts_are_refused_at_every_path(client, backend, host):
    """DNS rebinding: the name of a page resolves to the address of this server."""
    http = client()
    for method, path in CALLS:
        headers = {"Host": host.encode("latin-1"), "Sec-Fetch-Site": "same-origin"}
        answer = http.request(method, path, content=RED, headers=headers)
        check_refused(answer, "allowed_hosts", 403)
    assert backend.runs == []
    assert metric(http, "stillbox_requests_total", code="403") == len(CALLS)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},  # another server of the same machine
        {"Origin": "http://localhost"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "file://"},
        {"Origin": ""},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "unknown"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
def test_pages_of_other_servers_are_refused_at_every_path(client, backend, headers):
    http = client()
    for method, path in CALLS:
        answer = http.request(method, path, content=RED, headers=headers)
        assert answer.status_code == 403, path
        assert "access-control-allow-origin" not in answer.headers
    asked = {**headers, "Access-Control-Request-Method": "POST"}
    assert http.options("/detect", headers=asked).status_code == 403
    assert backend.runs == []


def test_a_foreign_origin_beside_an_own_one_is_refused(client):
    for origins in (("http://127.0.0.1", "http://evil.example"), ("null", "http://127.0.0.1")):
        headers = [("Origin", origin) for origin in origins]
        assert client().post("/detect", content=RED, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_the_page_itself_and_other_programs_are_served(client, headers):
    assert client().post("/detect", content=RED, headers=headers).status_code == 200


def test_a_link_on_another_page_opens_the_page_and_nothing_else(client):
    http = client()
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert http.get("/", headers=headers).status_code == 200
    assert http.post("/", headers=headers).status_code == 403
    assert http.get("/", headers={**headers, "Host": "evil.example"}).status_code == 403
    for path in set(GETS) - {"/"}:
        assert http.get(path, headers=headers).status_code == 403, path


def test_allowed_hosts(client):
    http = client(allowed_hosts=("Owls.example", "birds.example:8443"))
    for host, origin, status in (
        ("owls.example", "https://owls.example", 200),
        ("owls.example:80", "http://owls.example:80", 200),
        ("127.0.0.1:8501", "https://owls.example", 200),  # a proxy that changes Host alone
        ("127.0.0.1:8501", "https://birds.example:8443", 200),
        ("birds.example", None, 200),
        ("127.0.0.1:8501", "https://birds.example", 403),
        ("owls.example", "http://owls.example:3000", 403),
        ("sub.owls.example", None, 403),
    ):
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        answer = http.post("/detect", content=RED, headers=headers)
        assert answer.status_code == status, (host, origin)


def test_a_page_without_encryption_is_foreign_to_a_server_with_it(client):
    http = client()
    http.base_url = "https://127.0.0.1"
    for origin, status in (("https://127.0.0.1", 200), ("http://127.0.0.1", 403)):
        answer = http.post("/detect", content=RED, headers={"Origin": origin})
        assert answer.status_code == status


def test_over_another_interface_every_address_is_served(client):
    """No page can give another address to this server; containers have no access to their outer
    one."""
    http = client()
    http.base_url = "http://172.17.0.2"  # as the connection's own address
    for host, status in (("192.0.2.7:80", 200), ("[2001:db8::1]", 200), ("evil.example", 403)):
        assert http.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("host", ["*", "https://owls.example", "owls.example/", "", "a b", "[x]"])
def test_names_that_are_no_hosts(host):
    with pytest.raises(UserError, match="is no host"):
        ServeSettings(allowed_hosts=(host,)).checked()


def test_programs_without_a_host_are_served():
    """HTTP/1.0 needs none, and no browser uses it."""
    app = build_app(Predictor(FakeBackend()), ServeSettings(batch_sizes=(1,)))
    with running(app) as (_, address):
        url = httpx.URL(address)
        for request, code in (
            (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
            (b"GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n", b"403"),
            (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
            (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        ):
            with socket.create_connection((url.host, url.port)) as connection:
                connection.sendall(request)
                assert connection.recv(12)[9:] == code, request


ATTACK = """
const [url, content] = arguments;
const image = Uint8Array.from(atob(content), c => c.charCodeAt(0));
const send = (path, options) => fetch(url + path, options).then(r => r.status, () => "failed");
const post = (options) => send("/detect", {method: "POST", body: image, ...options});
const picture = new Promise(resolve => {
  const one = new Image();
  one.onload = () => resolve("loaded");
  one.onerror = () => resolve("failed");
  one.src = url + "/page/icon.svg";
});
navigator.sendBeacon(url + "/detect", image);
window.answers = null;
Promise.all([
  post({mode: "no-cors", headers: {"Content-Type": "text/plain"}}),
  post({mode: "no-cors", keepalive: true}),
  post({mode: "cors"}),
  send("/metrics", {mode: "no-cors"}),
  picture,
]).then(answers => { window.answers = answers; });
"""
FORM = """
const form = document.createElement("form");
Object.assign(form, {method: "post", action: arguments[0] + "/detect", enctype: "text/plain"});
document.body.append(form);
form.submit();
"""


@needs_chromium
@pytest.mark.xdist_group("chromium")
def test_pages_of_other_servers_in_chromium(tmp_path):
    """On another port, under another name of this machine, in a sandbox and by DNS rebinding."""
    backend = FakeBackend()
    app = build_app(Predictor(backend), ServeSettings(batch_sizes=(1,)))
    elsewhere = Starlette(
        routes=[
            Route("/", lambda request: HTMLResponse("<body>elsewhere")),
            Route("/sandbox", lambda request: HTMLResponse("<body>", headers=SANDBOX)),
        ]
    )
    with (
        running(app) as (_, url),
        running(elsewhere) as (_, other),
        httpx.Client(base_url=url) as client,
        chromium(tmp_path, "--host-resolver-rules=MAP evil.example 127.0.0.1") as browser,
    ):
        backend.runs.clear()
        refused = 0

        def attack(page):
            browser.open(page)
            browser.run(ATTACK, url, b64(RED))
            return browser.wait("return window.answers")

        for page in (other, other.replace("127.0.0.1", "localhost"), f"{other}/sandbox"):
            # The page may not read any answer; 403 means that nothing was done.
            assert attack(page) == ["failed"] * 5, page
            before, refused = refused, metric(client, "stillbox_requests_total", code="403")
            assert refused - before >= 5, page
            browser.open(page)
            browser.run(FORM, url)
            if "sandbox" not in page:  # it may send no forms
                browser.wait("return document.body.innerText.includes('another server')")
        browser.open(url.replace("127.0.0.1", "evil.example"))
        assert "there is no host 'evil.example'" in browser.run("return document.body.innerText")
        browser.run(ATTACK, url.replace("127.0.0.1", "evil.example"), b64(RED))
        assert browser.wait("return window.answers") == [403, 403, 403, 403, "failed"]
        assert backend.runs == []
        assert attack(url) == [200, 200, 200, 200, "loaded"]
        assert len(backend.runs) >= 3
