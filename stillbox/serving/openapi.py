"""The OpenAPI document: every route, its input and every status of its responses."""

from typing import Any

from stillbox import __version__
from stillbox.predicting.selection import CLASSES_PER_OBJECT
from stillbox.serving.detect import RESPONSE_FORMATS
from stillbox.serving.security import PUBLIC_PATHS
from stillbox.serving.settings import ServeSettings
from stillbox.serving.tensors import INPUTS, OUTPUTS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_INTEGER: Schema = {"type": "integer"}
_OBJECT: Schema = {"type": "object"}
_BOOLEAN: Schema = {"type": "boolean"}
_FILE: Schema = {"type": "string", "format": "binary"}


def describe(settings: ServeSettings) -> Schema:
    """Returns the document of a server with these settings."""
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
        "/v2/health/live": {"get": _get("The server runs.", _object(live=_BOOLEAN))},
        "/v2/health/ready": {"get": _readiness("The server takes requests.", ready)},
        "/detect": {"post": _detect()},
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
    """Adds the key, and its refusal to every route that needs it."""
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
    """Returns the operations on a model by path; `operations` are by what follows the model."""
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
        "/ready": {"get": _readiness("The model takes requests.", ready)},
        "/infer": {"post": _post("Open Inference Protocol: detect.", wanted, found)},
    }


def _detect() -> Schema:
    box = _object(**dict.fromkeys(("ymin", "xmin", "ymax", "xmax"), _NUMBER))
    one = _object(**{"class_id": _INTEGER, "class": _TEXT, "score": _NUMBER, "box": box})
    found = _object(height=_INTEGER, width=_INTEGER, detections=_array(one))
    operation = _post("Detect in one image file.", {}, found)
    share = {"type": "number", "minimum": 0, "maximum": 1}
    schemas = {
        "format": {"enum": list(RESPONSE_FORMATS)},
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
            "503": _error("All places are taken, or a slow body gave way.") | {"headers": wait},
            "504": _error("There was no response in time."),
        },
    }
