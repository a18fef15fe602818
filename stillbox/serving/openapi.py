"""The OpenAPI document: every route, what it takes and every status that it answers with."""

from typing import Any

from stillbox import __version__
from stillbox.serving.detect import FORMATS
from stillbox.serving.security import OPEN
from stillbox.serving.settings import ServeSettings
from stillbox.serving.tensors import INPUTS, OUTPUTS

Described = dict[str, Any]

_TEXT: Described = {"type": "string"}
_NUMBER: Described = {"type": "number"}
_NUMBERS: Described = {"type": "array", "items": _NUMBER}
_FILE: Described = {"type": "string", "format": "binary"}


def describe(settings: ServeSettings) -> Described:
    """Returns the document.

    Args:
        settings: name and version of the model, and whether there is a key.
    """
    paths = {
        **_tensorflow_serving(settings),
        **_open_inference(settings),
        "/detect": {"post": _detect()},
        "/healthz": {"get": _get("The server runs.", _object(status=_TEXT))},
        "/readyz": {"get": _readiness("Takes requests.", _object(ready={"type": "boolean"}))},
        "/metrics": {"get": _get("Prometheus metrics.", _TEXT, kind="text/plain")},
        "/openapi.json": {"get": _get("This document.", {"type": "object"})},
    }
    document: Described = {
        "openapi": "3.1.0",
        "info": {"title": f"stillbox serve {settings.name}", "version": __version__},
        "paths": paths,
    }
    return _with_key(document) if settings.api_key else document


def _with_key(document: Described) -> Described:
    """Adds the key, and its refusal to every route that is not open."""
    document["components"] = {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    }
    for path, methods in document["paths"].items():
        for operation in methods.values() if path not in OPEN else ():
            operation["security"] = [{"bearer": []}, {"header": []}]
            operation["responses"]["401"] = _refused("No key, or another one.")
    return document


def _tensorflow_serving(settings: ServeSettings) -> Described:
    names = {"name": settings.name, "version": str(settings.version)}
    encoded = _object(b64=_TEXT)
    pixels = {"type": "array", "items": {"type": "array"}}
    image: Described = {"anyOf": [encoded, pixels]}
    named = [_object(**{name: image}) for name in INPUTS]
    many = {"type": "array", "minItems": 1, "items": {"anyOf": [image, *named]}}
    column = {"anyOf": [many, *(_object(**{name: many}) for name in INPUTS)]}
    signature = {"signature_name": {"enum": ["serving_default", ""]}}
    asked = {
        "oneOf": [
            {"type": "object", "required": [key], "properties": {key: value, **signature}}
            for key, value in (("instances", many), ("inputs", column))
        ]
    }
    row = _object(**{name: {} for name in OUTPUTS})
    answered = {
        "anyOf": [_object(predictions={"type": "array", "items": row}), _object(outputs=row)]
    }
    status = _object(model_version_status={"type": "array", "items": {"type": "object"}})
    known = _object(model_spec={"type": "object"}, metadata={"type": "object"})
    paths: Described = {}
    for model in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        parameters = _path_parameters(model, names)
        paths |= {
            model: {"get": _get("TensorFlow Serving: the model's state.", status, parameters)},
            f"{model}/metadata": {
                "get": _get("TensorFlow Serving: the signature.", known, parameters)
            },
            f"{model}:predict": {
                "post": _post("TensorFlow Serving: detect.", asked, answered, parameters)
            },
        }
    return paths


def _open_inference(settings: ServeSettings) -> Described:
    names = {"name": settings.name, "version": str(settings.version)}
    tensor = _object(
        name={"enum": list(INPUTS)},
        datatype={"enum": ["UINT8", "BYTES"]},
        shape={"type": "array", "items": {"type": "integer", "minimum": 0}},
        data={"type": "array"},
    )
    asked = _object(inputs={"type": "array", "minItems": 1, "maxItems": 1, "items": tensor})
    asked["properties"] |= {
        "id": _TEXT,
        "outputs": {
            "type": "array",
            "minItems": 1,
            "items": _object(name={"enum": list(OUTPUTS)}),
        },
    }
    output = _object(name=_TEXT, datatype=_TEXT, shape=_NUMBERS, data=_NUMBERS)
    answered = _object(model_name=_TEXT, outputs={"type": "array", "items": output})
    ready = _object(ready={"type": "boolean"})
    server = _object(name=_TEXT, version=_TEXT, extensions={"type": "array"})
    model = _object(name=_TEXT, inputs={"type": "array"}, outputs={"type": "array"})
    paths: Described = {
        "/v2": {"get": _get("Open Inference Protocol: what answers here.", server)},
        "/v2/health/live": {"get": _get("The server runs.", _object(live={"type": "boolean"}))},
        "/v2/health/ready": {"get": _readiness("It takes requests.", ready)},
    }
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        parameters = _path_parameters(path, names)
        paths |= {
            path: {"get": _get("Open Inference Protocol: the tensors.", model, parameters)},
            f"{path}/ready": {"get": _readiness("The model takes requests.", ready, parameters)},
            f"{path}/infer": {
                "post": _post("Open Inference Protocol: detect.", asked, answered, parameters)
            },
        }
    return paths


def _detect() -> Described:
    box = _object(**dict.fromkeys(("ymin", "xmin", "ymax", "xmax"), _NUMBER))
    one = _object(**{"class_id": {"type": "integer"}, "class": _TEXT, "score": _NUMBER, "box": box})
    found = _object(
        height={"type": "integer"},
        width={"type": "integer"},
        detections={"type": "array", "items": one},
    )
    operation = _post("Detect in one image file.", {}, found, [])
    operation["parameters"] = [
        {"name": "format", "in": "query", "schema": {"enum": list(FORMATS)}},
        {
            "name": "min_score",
            "in": "query",
            "schema": {"type": "number", "minimum": 0, "maximum": 1},
        },
    ]
    kinds = ("application/octet-stream", "image/jpeg", "image/png")
    raw = {kind: {"schema": _FILE} for kind in kinds}
    form = {"multipart/form-data": {"schema": _object(image=_FILE)}}
    operation["requestBody"] = {"required": True, "content": raw | form}
    content = operation["responses"]["200"]["content"]
    content |= {kind: {"schema": _FILE} for kind in ("image/png", "image/jpeg")}
    return operation


def _path_parameters(path: str, values: dict[str, str]) -> list[Described]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _TEXT, "example": value}
        for name, value in values.items()
        if f"{{{name}}}" in path
    ]


def _object(**properties: Described) -> Described:
    """Describes an object that has to have all these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _content(schema: Described, kind: str = "application/json") -> Described:
    return {"content": {kind: {"schema": schema}}}


def _refused(why: str) -> Described:
    return {"description": why, **_content(_object(error=_TEXT))}


def _get(
    about: str,
    schema: Described,
    parameters: list[Described] | None = None,
    kind: str = "application/json",
) -> Described:
    responses = {"200": {"description": about, **_content(schema, kind)}}
    if parameters:
        responses["404"] = _refused("There is no such model.")
    return {"summary": about, "parameters": parameters or [], "responses": responses}


def _readiness(
    about: str, schema: Described, parameters: list[Described] | None = None
) -> Described:
    operation = _get(about, schema, parameters)
    operation["responses"]["503"] = {"description": "Not yet, or no more.", **_content(schema)}
    return operation


def _post(about: str, asked: Described, answered: Described, parameters: list[Any]) -> Described:
    refused = {
        "400": "The request makes no sense, or holds no image.",
        "408": "The body did not arrive in time.",
        "413": "The body or an image is too large.",
        "504": "There was no answer in time.",
    }
    responses = {
        "200": {"description": "What was found.", **_content(answered)},
        **{status: _refused(why) for status, why in refused.items()},
        "503": {
            **_refused("All places are taken, or the server is stopping."),
            "headers": {"Retry-After": {"schema": _TEXT, "description": "Seconds to wait."}},
        },
    }
    if parameters:
        responses["404"] = _refused("There is no such model.")
    return {
        "summary": about,
        "parameters": parameters,
        "requestBody": {"required": True, **_content(asked)},
        "responses": responses,
    }
