"""Prometheus metrics of `/metrics`."""

import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.serving.batching import BatchRun

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server, whose batches have these `sizes`."""

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
            ["route"],
            buckets=_SECONDS,
        )
        self.waiting = gauge("stillbox_queue_images", "Images that wait for the model.")
        self.in_flight = gauge(
            "stillbox_inside_images", "Images from the body of a request to its response."
        )
        self.images = counter("stillbox_images", "Images that the model processed.")
        self.batches = histogram("stillbox_batch_images", "Images of a batch.", buckets=sizes)
        self.rows = counter("stillbox_batch_rows", "Rows of all batches, padding included.")
        self.run_seconds = histogram("stillbox_run_seconds", "Runs of the model.", buckets=_SECONDS)

    def observe_run(self, run: BatchRun) -> None:
        """Counts a run of the model."""
        self.images.inc(run.images)
        self.batches.observe(run.images)
        self.rows.inc(run.size)
        self.run_seconds.observe(run.seconds)


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
            found = scope.get("route")
            route = found.path if isinstance(found, Route) else "none"
            self._metrics.requests.labels(route, str(code)).inc()
            self._metrics.latency.labels(route).observe(time.perf_counter() - began)
