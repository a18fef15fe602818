"""TensorFlow Serving's REST protocol: state, metadata and `:predict`.

https://www.tensorflow.org/tfx/serving/api_rest

Version 1 of KServe has the same `:predict`, and asks the state of a model for `ready`.
"""

from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.serving.bodies import AsciiJson, bad_request, check_count, http_error, shown
from stillbox.serving.decoding import ImageInput, PixelText, parse_json
from stillbox.serving.engine import (
    INPUT,
    INPUTS,
    decode_base64,
    engine_of,
    image_pixels,
    infer,
    names_model,
    output_shapes,
)
from stillbox.serving.foreign_bodies import TENSORFLOW_SERVING_FORM

SIGNATURE = "serving_default"


async def _status(request: Request) -> Response:
    name = request.path_params["name"]
    if not names_model(request):
        raise http_error(404, f"Could not find any versions of model {name}")
    engine = engine_of(request)
    status = {"error_code": "OK", "error_message": ""}
    if not engine.ready:
        status = {"error_code": "UNAVAILABLE", "error_message": "the model does not run"}
    state = {
        "version": str(engine.settings.version),
        "state": "AVAILABLE" if engine.ready else "END",
        "status": status,
    }
    content: dict[str, object] = {"model_version_status": [state]}
    if "version" not in request.path_params:
        # Clients of KServe's version 1 ask here, and clients of TensorFlow Serving read by name.
        content |= {"name": name, "ready": engine.ready}
    return AsciiJson(content)


async def _metadata(request: Request) -> Response:
    _check_model(request)
    engine = engine_of(request)
    settings, shapes = engine.settings, output_shapes(engine.most_detections)
    pixels = -1, -1, engine.image_kind.channels
    signature = {
        "inputs": {INPUT: _tensor("DT_UINT8", pixels, f"{SIGNATURE}_{INPUT}:0")},
        "outputs": {
            name: _tensor("DT_FLOAT", shape, f"StatefulPartitionedCall:{number}")
            for number, (name, shape) in enumerate(shapes.items())
        },
        "method_name": "tensorflow/serving/predict",
    }
    spec = {"name": settings.name, "signature_name": "", "version": str(settings.version)}
    signatures = {"signature_def": {SIGNATURE: signature}}
    return AsciiJson({"model_spec": spec, "metadata": {"signature_def": signatures}})


def _tensor(dtype: str, shape: tuple[int, ...], name: str) -> dict[str, object]:
    sizes = [{"size": str(size), "name": ""} for size in (-1, *shape)]
    return {"dtype": dtype, "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": name}


async def _predict(request: Request) -> Response:
    """Detects in the images of `instances` or `inputs`."""
    action = request.path_params["action"]
    if action != "predict":
        raise bad_request(f"Malformed request: POST {request.url.path}: only :predict is here")
    _check_model(request)
    outputs, by_row = await infer(
        request, partial(_read_request, channels=engine_of(request).image_kind.channels)
    )
    columns = {name: array.tolist() for name, array in outputs.items()}
    if not by_row:
        return AsciiJson({"outputs": columns})
    rows = zip(*columns.values(), strict=True)
    return AsciiJson({"predictions": [dict(zip(columns, row, strict=True)) for row in rows]})


_MODELS = ("/v1/models/{name}/versions/{version}", "/v1/models/{name}")
# Actions first, because `{name}` and `{version}` would match them too.
ROUTES = [
    *(Route(f"{model}:{{action}}", _predict, methods=["POST"]) for model in _MODELS),
    *(Route(f"{model}/metadata", _metadata) for model in _MODELS),
    *(Route(model, _status) for model in _MODELS),
]


def _check_model(request: Request) -> None:
    if not names_model(request):
        name, version = request.path_params["name"], request.path_params.get("version")
        which = f"Specific({name}, {version})" if version else f"Latest({name})"
        raise http_error(404, f"Servable not found for request: {which}")


def _read_request(body: bytes, most: int, channels: int) -> tuple[list[ImageInput], bool]:
    """Returns at most `most` images, and whether they are `instances`, with an object for each."""
    content = parse_json(body, TENSORFLOW_SERVING_FORM)
    signature = content.get("signature_name") or SIGNATURE
    if signature != SIGNATURE:
        raise bad_request(
            f'Serving signature name: "{str(signature)[:80]}" not found in signature def'
        )
    if ("instances" in content) == ("inputs" in content):
        raise bad_request("Request body must have one of the keys 'instances' and 'inputs'")
    by_row = "instances" in content
    values = content["instances"] if by_row else _without_name(content["inputs"])
    if not isinstance(values, list) or not values:
        raise bad_request(f"'{'instances' if by_row else 'inputs'}' must be a list of images")
    check_count(len(values), most)
    return [
        _image(_without_name(v), f"image {at}", channels) for at, v in enumerate(values)
    ], by_row


def _without_name(value: object) -> object:
    """Returns the value of the input, with or without the input's name."""
    if not isinstance(value, Mapping) or "b64" in value:
        return value
    names = list(value)
    if len(names) != 1 or names[0] not in INPUTS:
        raise bad_request(f"the only input is '{INPUT}'; the request has {shown(names)}")
    return value[names[0]]


def _image(value: object, where: str, channels: int) -> ImageInput:
    if isinstance(value, Mapping) and len(value) == 1:
        return decode_base64(value.get("b64"), where)
    if not isinstance(value, list | PixelText):
        raise bad_request(f'{where}: give {{"b64": FILE}} or pixels [h, w, {channels}]')
    return image_pixels(value, where, channels)
