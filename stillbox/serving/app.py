"""The server's ASGI application: the page at `/`, and all protocols over one engine.

The page uses only `POST /detect`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.errors import UserError
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.web_page import page_files, render_index
from stillbox.serving import detect, open_inference, tensorflow_serving
from stillbox.serving.bodies import (
    AsciiJson,
    LimitBody,
    handle_failure,
    handle_http_error,
    handle_user_error,
)
from stillbox.serving.engine import Engine, engine_of, respond_ready
from stillbox.serving.metrics import MeasureRequests
from stillbox.serving.openapi import describe
from stillbox.serving.security import PUBLIC_PATHS, AddHeaders, RefuseForeign, RequireKey
from stillbox.serving.settings import ServeSettings

_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def page_routes(settings: ServeSettings) -> list[Route]:
    """Returns a route for each file; `index.html` gets values of the settings."""
    values = {name: getattr(settings, name) for name in ("name", "min_score", "max_body", "iou")}
    values["classes_per_object"] = settings.classes_per_object or "one"
    dialog = (_FOLDER / "key-dialog.html").read_text(encoding="utf-8")
    return [_route("/", render_index(values, {"dialog": dialog}).encode(), ".html")] + [
        _route(f"/page/{name}", content, Path(name).suffix)
        for name, content in page_files(_FOLDER).items()
    ]


def _route(path: str, content: bytes, suffix: str) -> Route:
    async def send(request: Request) -> Response:
        headers = {"Cache-Control": "no-cache"}
        return Response(content, media_type=_MEDIA_TYPES[suffix], headers=headers)

    return Route(path, send, methods=["GET"])


def build_app(predictor: Predictor, settings: ServeSettings) -> Starlette:
    """Returns the application that serves a model; `app.state.engine` runs the model.

    Its startup compiles every batch size, unless `engine.start()` did so before. Its shutdown
    finishes the requests in flight.

    Raises:
        UserError: the settings are invalid, or the model does not take such batches.
    """
    engine = Engine(predictor, settings)
    page = page_routes(settings)
    middleware = [
        Middleware(MeasureRequests, metrics=engine.metrics),
        Middleware(AddHeaders),
        Middleware(RefuseForeign, hosts=settings.allowed_hosts),
        Middleware(LimitBody, most=settings.max_body),
    ]
    if settings.api_key:
        public = PUBLIC_PATHS | {route.path for route in page}
        middleware.insert(3, Middleware(RequireKey, key=settings.api_key, public=public))
    app = Starlette(
        routes=[
            *tensorflow_serving.ROUTES,
            *open_inference.ROUTES,
            detect.ROUTE,
            *page,
            Route("/healthz", _health),
            Route("/readyz", respond_ready),
            Route("/metrics", _metrics),
            Route("/openapi.json", _openapi),
        ],
        middleware=middleware,
        exception_handlers={
            HTTPException: handle_http_error,
            UserError: handle_user_error,
            Exception: handle_failure,
        },
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False
    app.state.engine = engine
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    engine: Engine = app.state.engine
    await run_in_threadpool(engine.start)
    yield
    await run_in_threadpool(engine.stop)


async def _health(request: Request) -> Response:
    return AsciiJson({"status": "ok"})


async def _metrics(request: Request) -> Response:
    content = generate_latest(engine_of(request).metrics.registry)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _openapi(request: Request) -> Response:
    return AsciiJson(describe(engine_of(request).settings))
