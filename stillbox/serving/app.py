"""The server's ASGI application: the page, `POST /detect`, and all protocols over one engine.

`POST /detect`, the only one that the page uses, takes an image file and returns JSON or a picture.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox import numerals
from stillbox.errors import UserError, nearest
from stillbox.evaluation.pictures import picture_bytes
from stillbox.evaluation.results import RawDetections
from stillbox.predicting.backend import Pixels
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import CLASSES_PER_OBJECT, ClassesPerObject, Selection
from stillbox.predicting.web_page import page_files, render_index
from stillbox.serving import bodies, open_inference, tensorflow_serving, triton
from stillbox.serving.engine import Engine, engine_of, respond_ready
from stillbox.serving.foreign_bodies import refuse_other_than_image
from stillbox.serving.middleware import (
    PUBLIC_PATHS,
    AddHeaders,
    MeasureRequests,
    RefuseForeign,
    RequireKey,
)
from stillbox.serving.openapi import describe
from stillbox.serving.settings import ServeSettings

FORMATS = ("json", "png", "jpeg")
PARAMETERS = ("format", "min_score", "classes_per_object", "iou")


async def _detect(request: Request) -> Response:
    """Detects in one image file: the body, or the one file of a form."""
    engine = engine_of(request)
    kind, selection = _read_query(request, engine.settings)
    form = request.headers.get("content-type", "")

    async def respond(body: bytes) -> Response:
        if form.partition(";")[0].strip().lower() == "multipart/form-data":
            name, file = await engine.read(partial(bodies.read_file, form), body)
        else:
            name, file = "", body
            refuse_other_than_image(body)
        del body
        if kind != "json":
            drawing = partial(_draw, engine.predictor, selection, kind)
            return await engine.draw(file, drawing, selection.min_score)
        raw, size = await engine.detect_upright(file, selection.min_score)
        # The pixels are left out: only their size is needed.
        blank = np.broadcast_to(np.uint8(0), (*size, 3))
        detections = engine.predictor.detections(blank, raw, name)
        return bodies.AsciiJson(selection.of(detections).to_dict())

    return await engine.respond(request, respond)


def _draw(
    predictor: Predictor, selection: Selection, kind: str, pixels: Pixels, raw: RawDetections
) -> Response:
    shown = selection.of(predictor.detections(pixels, raw))
    picture = np.asarray(shown.draw(selection.min_score))
    encoding = cast(Literal["PNG", "JPEG"], kind.upper())
    return Response(picture_bytes(picture, encoding), media_type=f"image/{kind}")


def _read_query(request: Request, settings: ServeSettings) -> tuple[str, Selection]:
    """Returns one of `FORMATS` and what to return, by default as in the settings."""
    query = request.query_params
    unknown = sorted(set(query) - set(PARAMETERS))
    if unknown:
        known = f"{', '.join(PARAMETERS[:-1])} and {PARAMETERS[-1]}"
        raise bodies.bad_request(f"there is no parameter {unknown[0]!r}: there are {known}")
    words = {
        "format": (query.get("format", "json"), FORMATS),
        "classes_per_object": (
            query.get("classes_per_object", settings.classes_per_object or "one"),
            CLASSES_PER_OBJECT,
        ),
    }
    for name, (word, known_words) in words.items():
        if word not in known_words:
            raise bodies.bad_request(f"{name}: there is no {word!r}: {nearest(word, known_words)}")
    selection = Selection(
        min_score=_fraction(query, "min_score", settings.min_score),
        classes_per_object=cast(ClassesPerObject, words["classes_per_object"][0]),
        iou=_fraction(query, "iou", settings.iou),
    )
    return words["format"][0], selection


def _fraction(query: QueryParams, name: str, default: float) -> float:
    text = query.get(name, str(default))
    if 0 <= (value := numerals.number(text)) <= 1:
        return value
    raise bodies.bad_request(f"{name} is a number in 0..1, not {text!r}")


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
        Middleware(bodies.LimitBody, most=settings.max_body),
    ]
    if settings.api_key:
        public = PUBLIC_PATHS | {route.path for route in page}
        middleware.insert(3, Middleware(RequireKey, key=settings.api_key, public=public))
    app = Starlette(
        routes=[
            *tensorflow_serving.ROUTES,
            *triton.ROUTES,
            *open_inference.ROUTES,
            Route("/detect", _detect, methods=["POST"]),
            *page,
            Route("/healthz", _health),
            Route("/readyz", respond_ready),
            Route("/metrics", _metrics),
            Route("/openapi.json", _openapi),
        ],
        middleware=middleware,
        exception_handlers={
            HTTPException: bodies.handle_http_error,
            UserError: bodies.handle_user_error,
            Exception: bodies.handle_failure,
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
    return bodies.AsciiJson({"status": "ok"})


async def _metrics(request: Request) -> Response:
    content = generate_latest(engine_of(request).metrics.registry)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _openapi(request: Request) -> Response:
    return bodies.AsciiJson(describe(engine_of(request).settings))
