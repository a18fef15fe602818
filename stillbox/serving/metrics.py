"""What Prometheus reads at `/metrics`."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.serving.batching import BatchRun

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one server.

    Args:
        sizes: of its batches.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "stillbox_requests",
            "Requests by route and status.",
            ["route", "code"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "stillbox_request_seconds",
            "From the header of a request to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "stillbox_queue_images", "Images that wait for the model.", registry=self.registry
        )
        self.inside = Gauge(
            "stillbox_inside_images",
            "Images from the body of a request to its answer.",
            registry=self.registry,
        )
        self.images = Counter(
            "stillbox_images", "Images that the model has seen.", registry=self.registry
        )
        self.batches = Histogram(
            "stillbox_batch_images", "Images of a batch.", buckets=sizes, registry=self.registry
        )
        self.rows = Counter(
            "stillbox_batch_rows",
            "Rows of all batches, those included that fill up.",
            registry=self.registry,
        )
        self.run_seconds = Histogram(
            "stillbox_run_seconds", "Runs of the model.", buckets=_SECONDS, registry=self.registry
        )

    def observe_run(self, run: BatchRun) -> None:
        """Counts a run of the model."""
        self.images.inc(run.images)
        self.batches.observe(run.images)
        self.rows.inc(run.size)
        self.run_seconds.observe(run.seconds)


class MeasureRequests:
    """Middleware that counts requests and measures them.

    Args:
        app: what it stands before.
        metrics: where they are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
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
            # Not the path itself, of which there are as many as a client likes.
            found = scope.get("route")
            route = found.path if isinstance(found, Route) else "none"
            self._metrics.requests.labels(route, str(code)).inc()
            self._metrics.latency.labels(route).observe(time.perf_counter() - began)
