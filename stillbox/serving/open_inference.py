"""The Open Inference Protocol, version 2, with its extension for binary tensors.

https://github.com/kserve/open-inference-protocol
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox import __version__
from stillbox.serving.engine import engine_of, respond_ready
from stillbox.serving.images import ImageInput
from stillbox.serving.responses import AsciiJson, bad_request, http_error
from stillbox.serving.tensors import (
    INPUT,
    INPUTS,
    OUTPUTS,
    Outputs,
    decode_base64,
    infer,
    names_model,
    output_shapes,
    parse_json,
    pixels_from,
)

HEADER_LENGTH = "Inference-Header-Content-Length"


class _Options(NamedTuple):
    """Options of a request."""

    binary: dict[str, bool]
    """The wanted outputs, and whether as binary data."""
    id: str | None
    """Repeated in the response."""


async def _server(request: Request) -> Response:
    extensions = ["binary_tensor_data"]
    return AsciiJson({"name": "stillbox", "version": __version__, "extensions": extensions})


async def _live(request: Request) -> Response:
    return AsciiJson({"live": True})


async def _model_ready(request: Request) -> Response:
    _check_model(request)
    engine = engine_of(request)
    content = {"name": engine.settings.name, "ready": engine.ready}
    return AsciiJson(content, 200 if engine.ready else 503)


async def _model(request: Request) -> Response:
    _check_model(request)
    engine = engine_of(request)
    shapes = output_shapes(engine.predictor.backend.max_detections)
    return AsciiJson(
        {
            "name": engine.settings.name,
            "versions": [str(engine.settings.version)],
            "platform": "stillbox",
            "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, -1, -1, 3]}],
            "outputs": [
                {"name": name, "datatype": "FP32", "shape": [-1, *shape]}
                for name, shape in shapes.items()
            ],
        }
    )


async def _infer(request: Request) -> Response:
    """Detects in the images of the one input."""
    _check_model(request)
    settings, header_length = engine_of(request).settings, request.headers.get(HEADER_LENGTH)
    read = partial(_read_request, header_length=header_length)
    outputs, options = await infer(request, read)
    head = {"model_name": settings.name, "model_version": str(settings.version)}
    if options.id is not None:
        head["id"] = options.id
    return _respond(head, outputs, options.binary)


_MODELS = ("/v2/models/{name}/versions/{version}", "/v2/models/{name}")
ROUTES = [
    Route("/v2", _server),
    Route("/v2/health/live", _live),
    Route("/v2/health/ready", respond_ready),
    *(Route(f"{model}/infer", _infer, methods=["POST"]) for model in _MODELS),
    *(Route(f"{model}/ready", _model_ready) for model in _MODELS),
    *(Route(model, _model) for model in _MODELS),
]


def _check_model(request: Request) -> None:
    if not names_model(request):
        name, version = request.path_params["name"], request.path_params.get("version")
        text = f"there is no model {name!r}" + f", version {version}" * bool(version)
        raise http_error(404, text)


def _read_request(body: bytes, header_length: str | None) -> tuple[list[ImageInput], _Options]:
    """Reads the body of an inference.

    Args:
        body: JSON, followed by binary tensors.
        header_length: bytes of the JSON; None: all of them.

    Raises:
        HTTPException: 400, the body is invalid.
    """
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or not int(header_length[:10]) <= len(body):
            raise bad_request(f"{HEADER_LENGTH} is {header_length!r}, the body has {length} bytes")
        length = int(header_length)
    content = parse_json(body[:length])
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], Mapping):
        raise bad_request(f"'inputs' must be a list of one tensor, '{INPUT}'")
    request_id = content.get("id")
    if not isinstance(request_id, str | None):
        raise bad_request("'id' must be a string")
    images = _images(inputs[0], body[length:])
    return images, _Options(_wanted_outputs(content), request_id)


def _images(tensor: Mapping[str, Any], binary: bytes) -> list[ImageInput]:
    name, kind, shape = (tensor.get(key) for key in ("name", "datatype", "shape"))
    where = f"input '{name}'"
    if name not in INPUTS:
        raise bad_request(f"there is no input {name!r}; the only one is '{INPUT}'")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise bad_request(f"{where}: 'shape' must be a list of whole numbers")
    size = _parameters(tensor).get("binary_data_size")
    if size is not None and size != len(binary):
        raise bad_request(f"{where}: {size!r} bytes were announced, {len(binary)} were received")
    if size is None and not isinstance(tensor.get("data"), list):
        raise bad_request(f"{where}: 'data' must be a list")
    if kind == "BYTES":
        elements = _split(binary) if size is not None else _decode_files(tensor["data"])
        files: list[ImageInput] = list(elements)
        if len(shape) not in (1, 2) or np.prod(shape, dtype=object) != len(files):
            raise bad_request(f"{where}: shape {shape}, data of {len(files)} images")
        return files
    if kind != "UINT8":
        raise bad_request(f"{where}: datatype {kind!r}; wanted UINT8 or BYTES")
    values = tensor["data"] if size is None else np.frombuffer(binary, np.uint8)
    pixels = pixels_from(values, where, shape)
    if pixels.ndim != 4 or pixels.shape[3] != 3:
        raise bad_request(f"{where}: shape {list(pixels.shape)}, wanted [B, h, w, 3]")
    return list(pixels)


def _decode_files(data: list[Any]) -> Iterator[bytes]:
    flat = [one for row in data for one in (row if isinstance(row, list) else [row])]
    return (decode_base64(one, f"image {at}") for at, one in enumerate(flat))


def _split(binary: bytes) -> Iterator[bytes]:
    """Yields the elements of a binary BYTES tensor, each after four bytes of its length."""
    at = 0
    while at < len(binary):
        begins = at + 4
        at = begins + int.from_bytes(binary[at:begins], "little")
        if at > len(binary):
            raise bad_request("a binary BYTES tensor ends inside an element")
        yield binary[begins:at]


def _wanted_outputs(content: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the names of the wanted outputs, and which of them as binary data."""
    binary = _flag(content, "binary_data_output", default=False)
    wanted = content.get("outputs")
    if wanted is None:
        return dict.fromkeys(OUTPUTS, binary)
    is_list = isinstance(wanted, list) and all(isinstance(one, Mapping) for one in wanted)
    if not is_list or not wanted:
        raise bad_request("'outputs' must be a list of tensors with names")
    for output in wanted:
        if output.get("name") not in OUTPUTS:
            known = ", ".join(OUTPUTS)
            raise bad_request(f"there is no output {output.get('name')!r}; there are {known}")
    return {output["name"]: _flag(output, "binary_data", default=binary) for output in wanted}


def _parameters(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = holder.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise bad_request("'parameters' must be an object")
    return parameters


def _flag(holder: Mapping[str, Any], name: str, *, default: bool) -> bool:
    flag = _parameters(holder).get(name, default)
    if not isinstance(flag, bool):
        raise bad_request(f"parameter '{name}' must be true or false")
    return flag


def _respond(head: Mapping[str, Any], outputs: Outputs, binary: Mapping[str, bool]) -> Response:
    tensors, parts = [], []
    for name, is_binary in binary.items():
        array = outputs[name]
        tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
        if is_binary:
            parts.append(array.astype("<f4").tobytes())
            tensors.append(tensor | {"parameters": {"binary_data_size": len(parts[-1])}})
        else:
            tensors.append(tensor | {"data": array.ravel().tolist()})
    content = {**head, "outputs": tensors}
    if not parts:
        return AsciiJson(content)
    header = json.dumps(content).encode("ascii")
    return Response(
        b"".join([header, *parts]),
        headers={HEADER_LENGTH: str(len(header))},
        media_type="application/octet-stream",
    )
