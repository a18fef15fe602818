"""Middleware: metrics of requests, security headers, refused hosts and pages, and the key."""

import hmac
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from ipaddress import ip_address

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.serving.batching import BatchRun
from stillbox.serving.bodies import AsciiJson
from stillbox.serving.settings import HOST

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
PUBLIC_PATHS = HEALTH_PATHS | {"/openapi.json"}
"""Paths that need no key, beside the page's."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RefuseForeign:
    """Middleware that responds 403 to requests that pages of other servers make in a browser.

    Browsers send `Host` as the page's author wrote it, and that name may resolve to the address of
    this server (DNS rebinding). They send the true `Origin` and `Sec-Fetch-Site`. Other clients
    send only `Host`.

    Args:
        hosts: names of the server as `NAME` or `NAME:PORT`, beside `localhost` and the addresses
            of the loopback interface. A connection by another interface may name any address.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._names = {"localhost", *(_name_of(host) for host in self._hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request."""
        fault = self._find_fault(scope) if scope["type"] == "http" else None
        app = AsciiJson({"error": fault}, 403) if fault else self._app
        await app(scope, receive, send)

    def _find_fault(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        # Programs of HTTP/1.0 may send none.
        host = headers.get("host", "localhost").lower()
        name = _name_of(host)
        if name not in self._names and not _is_served_address(name, scope):
            return f"there is no host {name[:253]!r} here; the server's allowed_hosts add names"
        if _opens_page(scope, headers):
            return None
        schemes = ("https",) if scope["scheme"] == "https" else ("http", "https")
        origins = {
            f"{scheme}://{allowed}" for allowed in {host, *self._hosts} for scheme in schemes
        }
        foreign = {origin.lower() for origin in headers.getlist("origin")} - origins
        if foreign or set(headers.getlist("sec-fetch-site")) - {"same-origin", "none"}:
            return "a page of another server made this request; allowed_hosts add its name"
        return None


def _name_of(host: str) -> str:
    """Returns the name or address in `NAME:PORT`, or "" where it has none."""
    address = HOST.fullmatch(host)
    return (address["name"] or address["address"]).removesuffix(".") if address else ""


def _is_served_address(name: str, scope: Scope) -> bool:
    """Whether a name is an address: DNS cannot redirect an address to this server."""
    try:
        address = ip_address(name)
        return address.is_loopback or not ip_address((scope.get("server") or [""])[0]).is_loopback
    except ValueError:
        return False


def _opens_page(scope: Scope, headers: Headers) -> bool:
    """Whether a link on another page opens the server's page."""
    mode, kind = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return (scope["method"], scope["path"], mode, kind) == ("GET", "/", "navigate", "document")


class RequireKey:
    """Middleware that responds 401 to requests without the key; `public` paths need none.

    The key is expected as `Authorization: Bearer KEY` or `X-API-Key: KEY`.
    """

    def __init__(self, app: ASGIApp, key: str, public: Collection[str]) -> None:
        self._app, self._key, self._public = app, key.encode("ascii"), public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request."""
        if scope["type"] != "http" or scope["path"] in self._public or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        refused = AsciiJson(
            {"error": "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"},
            401,
            {"WWW-Authenticate": "Bearer"},
        )
        await refused(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Headers are decoded as latin-1.
        return hmac.compare_digest(given.encode("latin-1"), self._key)


class AddHeaders:
    """Middleware that adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


Labels = Mapping[str, str]
Where = Callable[[Labels], bool]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server with batches of these `sizes`."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "stillbox_requests", "Requests by route and status.", ["route", "code"]
        )
        self.latency = histogram(
            "stillbox_request_seconds",
            "From the header of a request to the end of its response.",
            ["route", "code"],
            buckets=_SECONDS,
        )
        self.waiting = gauge("stillbox_queue_images", "Images that wait for the model.")
        self.in_flight = gauge(
            "stillbox_inside_images", "Images from the body of a request to its response."
        )
        self.images = counter("stillbox_images", "Images that the model processed.")
        self.batches = histogram("stillbox_batch_images", "Images of a batch.", buckets=sizes)
        self.rows = counter("stillbox_batch_rows", "Rows of all batches, padding included.")
        self.run_seconds = histogram(
            "stillbox_run_seconds", "Runs of the model.", ["rows"], buckets=_SECONDS
        )
        self.last_run = gauge(
            "stillbox_last_run_timestamp_seconds", "End of the last run of the model."
        )

    def observe_run(self, run: BatchRun) -> None:
        """Counts a run of the model."""
        self.images.inc(run.images)
        self.batches.observe(run.images)
        self.rows.inc(run.size)
        self.run_seconds.labels(str(run.size)).observe(run.seconds)
        self.last_run.set_to_current_time()

    def total(self, name: str, where: Where = lambda labels: True) -> float:
        """Returns the sum of the samples of a name that have fitting labels."""
        families = self.registry.restricted_registry([name]).collect()
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value for sample in samples if sample.name == name and where(sample.labels)
        )


class MeasureRequests:
    """Middleware that counts and times requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, code = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal code
            code = message.get("status", code)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # The route's pattern: clients could send any number of different paths.
            matched = scope.get("route")
            route = matched.path if isinstance(matched, Route) else "none"
            self._metrics.requests.labels(route, str(code)).inc()
            self._metrics.latency.labels(route, str(code)).observe(time.perf_counter() - began)
