"""The server's ASGI application: the page, `POST /detect`, and all protocols over one engine.

`POST /detect`, the only one that the page uses, takes an image file and returns JSON or a picture.
The OpenAPI document has every route, its input and every status of its responses.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

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

from stillbox import __version__, numerals
from stillbox.errors import UserError, nearest
from stillbox.evaluation.pictures import picture_bytes
from stillbox.predicting.backend import Pixels, RawDetections
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import CLASSES_PER_OBJECT, ClassesPerObject, Selection
from stillbox.predicting.web_page import page_files, render_index
from stillbox.serving import bodies, open_inference, tensorflow_serving
from stillbox.serving.engine import INPUTS, OUTPUTS, Engine, engine_of, respond_ready
from stillbox.serving.foreign_bodies import refuse_other_than_image
from stillbox.serving.middleware import (
    PUBLIC_PATHS,
    AddHeaders,
    MeasureRequests,
    RefuseForeign,
    RequireKey,
)
from stillbox.serving.settings import ServeSettings

_FORMATS = ("json", "png", "jpeg")
_PARAMETERS = ("format", "min_score", "classes_per_object", "iou")


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
            return await engine.draw(file, partial(_draw, engine.predictor, selection, kind))
        found, size = await engine.detect_upright(file)
        # The pixels are left out: only their size is needed.
        blank = np.broadcast_to(np.uint8(0), (*size, 3))
        detections = engine.predictor.detections(blank, found, name)
        return bodies.AsciiJson(selection.of(detections).to_dict())

    return await engine.respond(request, respond)


def _draw(
    predictor: Predictor, selection: Selection, kind: str, pixels: Pixels, found: RawDetections
) -> Response:
    shown = selection.of(predictor.detections(pixels, found))
    picture = np.asarray(shown.draw(selection.min_score))
    encoding = cast(Literal["PNG", "JPEG"], kind.upper())
    return Response(picture_bytes(picture, encoding), media_type=f"image/{kind}")


def _read_query(request: Request, settings: ServeSettings) -> tuple[str, Selection]:
    """Returns one of `_FORMATS` and what to return, by default as in the settings."""
    query = request.query_params
    unknown = sorted(set(query) - set(_PARAMETERS))
    if unknown:
        known = f"{', '.join(_PARAMETERS[:-1])} and {_PARAMETERS[-1]}"
        raise bodies.bad_request(f"there is no parameter {unknown[0]!r}: there are {known}")
    words = {
        "format": (query.get("format", "json"), _FORMATS),
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


Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_INTEGER: Schema = {"type": "integer"}
_OBJECT: Schema = {"type": "object"}
_BOOLEAN: Schema = {"type": "boolean"}
_FILE: Schema = {"type": "string", "format": "binary"}


def _describe(settings: ServeSettings) -> Schema:
    ready = _object(ready=_BOOLEAN)
    paths = {
        **_model_paths("/v1", settings, _tensorflow_serving()),
        **_model_paths("/v2", settings, _open_inference(ready)),
        "/v2": {
            "get": _get(
                "Open Inference Protocol: the server.",
                _object(name=_TEXT, version=_TEXT, extensions=_array({})),
            )
        },
        "/v2/repository/index": {
            "post": _get("Triton: the models, here one.", _array(_OBJECT)),
        },
        "/v2/health/live": {"get": _get("The server runs.", _object(live=_BOOLEAN))},
        "/v2/health/ready": {"get": _readiness("The server takes requests.", ready)},
        "/detect": {"post": _describe_detect()},
        "/healthz": {"get": _get("The server runs.", _object(status=_TEXT))},
        "/readyz": {"get": _readiness("The server takes requests.", ready)},
        "/metrics": {"get": _get("Prometheus metrics.", _TEXT, kind="text/plain")},
        "/openapi.json": {"get": _get("This document.", _OBJECT)},
    }
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": f"stillbox serve {settings.name}", "version": __version__},
        "paths": paths,
    }
    if settings.api_key:
        _add_key(document)
    return document


def _add_key(document: Schema) -> None:
    """Adds the key to the document, and status 401 to every route that needs it."""
    document["components"] = {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    }
    for path, methods in document["paths"].items():
        for operation in methods.values() if path not in PUBLIC_PATHS else ():
            operation["security"] = [{"bearer": []}, {"header": []}]
            operation["responses"]["401"] = _error("No key, or a wrong one.")


def _model_paths(prefix: str, settings: ServeSettings, operations: Schema) -> Schema:
    """Returns the operations on a model by path; `operations` are by the end of the path."""
    model = f"{prefix}/models/{{name}}"
    name, version = (
        {"name": name, "in": "path", "required": True, "schema": _TEXT, "example": example}
        for name, example in (("name", settings.name), ("version", str(settings.version)))
    )
    paths: Schema = {}
    missing = {"404": _error("There is no such model.")}
    for path, parameters in (model, [name]), (f"{model}/versions/{{version}}", [name, version]):
        for suffix, methods in operations.items():
            paths[path + suffix] = {
                method: operation
                | {"parameters": parameters, "responses": operation["responses"] | missing}
                for method, operation in methods.items()
            }
    return paths


def _tensorflow_serving() -> Schema:
    image: Schema = {"anyOf": [_object(b64=_TEXT), _array({"type": "array"})]}
    named = [_object(**{name: image}) for name in INPUTS]
    rows = _array({"anyOf": [image, *named]}, minItems=1)
    columns = {"anyOf": [rows, *(_object(**{name: rows}) for name in INPUTS)]}
    signature = {"signature_name": {"enum": ["serving_default", ""]}}
    wanted = {
        "oneOf": [
            {"type": "object", "required": [key], "properties": {key: value, **signature}}
            for key, value in (("instances", rows), ("inputs", columns))
        ]
    }
    row = _object(**{name: {} for name in OUTPUTS})
    found = {"anyOf": [_object(predictions=_array(row)), _object(outputs=row)]}
    state = _object(model_version_status=_array(_OBJECT))
    signatures = _object(model_spec=_OBJECT, metadata=_OBJECT)
    return {
        "": {"get": _get("TensorFlow Serving: the model's state.", state)},
        "/metadata": {"get": _get("TensorFlow Serving: the signature.", signatures)},
        ":predict": {"post": _post("TensorFlow Serving: detect.", wanted, found)},
    }


def _open_inference(ready: Schema) -> Schema:
    tensor = _object(
        name={"enum": list(INPUTS)},
        datatype={"enum": ["UINT8", "BYTES"]},
        shape=_array({"type": "integer", "minimum": 0}),
        data={"type": "array"},
    )
    wanted = _object(inputs=_array(tensor, minItems=1, maxItems=1))
    wanted["properties"] |= {
        "id": _TEXT,
        "parameters": {
            "type": "object",
            "properties": {"classes_per_object": {"enum": list(CLASSES_PER_OBJECT)}},
        },
        "outputs": _array(_object(name={"enum": list(OUTPUTS)}), minItems=1),
    }
    output = _object(name=_TEXT, datatype=_TEXT, shape=_array(_NUMBER), data=_array(_NUMBER))
    found = _object(model_name=_TEXT, outputs=_array(output))
    model = _object(name=_TEXT, inputs={"type": "array"}, outputs={"type": "array"})
    return {
        "": {"get": _get("Open Inference Protocol: the tensors.", model)},
        "/config": {"get": _get("Triton: the model's configuration.", _OBJECT)},
        "/ready": {"get": _readiness("The model takes requests.", ready)},
        "/infer": {"post": _post("Open Inference Protocol: detect.", wanted, found)},
    }


def _describe_detect() -> Schema:
    box = _object(**dict.fromkeys(("ymin", "xmin", "ymax", "xmax"), _NUMBER))
    one = _object(**{"class_id": _INTEGER, "class": _TEXT, "score": _NUMBER, "box": box})
    found = _object(height=_INTEGER, width=_INTEGER, detections=_array(one))
    operation = _post("Detect in one image file.", {}, found)
    share = {"type": "number", "minimum": 0, "maximum": 1}
    schemas = {
        "format": {"enum": list(_FORMATS)},
        "min_score": share,
        "classes_per_object": {"enum": list(CLASSES_PER_OBJECT)},
        "iou": share,
    }
    operation["parameters"] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()
    ]
    kinds = ("application/octet-stream", "image/jpeg", "image/png")
    raw = {kind: {"schema": _FILE} for kind in kinds}
    form = {"multipart/form-data": {"schema": _object(image=_FILE)}}
    operation["requestBody"] = {"required": True, "content": raw | form}
    content = operation["responses"]["200"]["content"]
    content |= {kind: {"schema": _FILE} for kind in ("image/png", "image/jpeg")}
    return operation


def _object(**properties: Schema) -> Schema:
    """Describes an object of which all properties are required."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def _response(description: str, schema: Schema, kind: str = "application/json") -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _error(description: str) -> Schema:
    return _response(description, _object(error=_TEXT))


def _get(summary: str, schema: Schema, kind: str = "application/json") -> Schema:
    responses = {"200": _response(summary, schema, kind)}
    return {"summary": summary, "parameters": [], "responses": responses}


def _readiness(summary: str, schema: Schema) -> Schema:
    operation = _get(summary, schema)
    operation["responses"]["503"] = _response("Not yet, or no more.", schema)
    return operation


def _post(summary: str, wanted: Schema, found: Schema) -> Schema:
    wait = {"Retry-After": {"schema": _TEXT, "description": "Seconds to wait."}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": wanted}}},
        "responses": {
            "200": _response("The detections.", found),
            "400": _error("The request is invalid, or holds no image."),
            "408": _error("The body did not arrive in time."),
            "413": _error("The body or an image is too large."),
            "415": _error("The body is compressed."),
            "503": _error("All places are taken, or a slow body gave way.") | {"headers": wait},
            "504": _error("There was no response in time."),
        },
    }


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
    return bodies.AsciiJson(_describe(engine_of(request).settings))
