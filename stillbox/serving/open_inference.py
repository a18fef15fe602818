"""The Open Inference Protocol, version 2, with its extension for binary tensors.

https://github.com/kserve/open-inference-protocol
"""

import json
import math
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox import __version__, numerals
from stillbox.predicting.selection import CLASSES_PER_OBJECT, ClassesPerObject
from stillbox.printing import count_text
from stillbox.serving.bodies import AsciiJson, bad_request, check_count, http_error, shown
from stillbox.serving.decoding import ImageInput, PixelText, parse_json
from stillbox.serving.engine import (
    INPUT,
    INPUTS,
    OUTPUTS,
    Engine,
    Outputs,
    decode_base64,
    engine_of,
    image_pixels,
    infer,
    names_model,
    output_shapes,
    respond_ready,
)
from stillbox.serving.foreign_bodies import OPEN_INFERENCE_FORM

HEADER_LENGTH = "Inference-Header-Content-Length"
_LONGEST_ID = 1024


def tensors(engine: Engine) -> dict[str, tuple[str, list[int]]]:
    """Returns type and shape of each input, of which a request has one."""
    pixels = [-1, -1, -1, engine.image_kind.channels]
    return {INPUT: ("UINT8", pixels), "image_bytes": ("BYTES", [-1])}


"""The inputs, of which a request has one: pixels, and image files. Their names are of `INPUTS`."""


class _Options(NamedTuple):
    binary: dict[str, bool]
    """The wanted outputs, and whether as binary data."""
    id: str | None
    """Repeated in the response."""
    classes_per_object: ClassesPerObject | None
    """See `Selection`; None: the request has none."""


async def _server(request: Request) -> Response:
    extensions = ["binary_tensor_data"]
    return AsciiJson({"name": "stillbox", "version": __version__, "extensions": extensions})


async def _live(request: Request) -> Response:
    return AsciiJson({"live": True})


async def _model_ready(request: Request) -> Response:
    check_model(request)
    engine = engine_of(request)
    content = {"name": engine.settings.name, "ready": engine.ready}
    return AsciiJson(content, 200 if engine.ready else 503)


async def _model(request: Request) -> Response:
    check_model(request)
    engine = engine_of(request)
    shapes = output_shapes(engine.most_detections)
    return AsciiJson(
        {
            "name": engine.settings.name,
            "versions": [str(engine.settings.version)],
            "platform": "stillbox",
            "inputs": [
                {"name": name, "datatype": kind, "shape": shape}
                for name, (kind, shape) in tensors(engine).items()
            ],
            "outputs": [
                {"name": name, "datatype": "FP32", "shape": [-1, *shape]}
                for name, shape in shapes.items()
            ],
        }
    )


async def _infer(request: Request) -> Response:
    """Detects in the images of the one input."""
    check_model(request)
    engine, header_length = engine_of(request), request.headers.get(HEADER_LENGTH)
    settings, channels = engine.settings, engine.image_kind.channels
    read = partial(_read_request, header_length=header_length, channels=channels)
    outputs, options = await infer(request, read, lambda options: options.classes_per_object)
    head = {"model_name": settings.name, "model_version": str(settings.version)}
    if options.id is not None:
        head["id"] = options.id
    return _respond(head, outputs, options.binary)


MODELS = ("/v2/models/{name}/versions/{version}", "/v2/models/{name}")
ROUTES = [
    Route("/v2", _server),
    Route("/v2/health/live", _live),
    Route("/v2/health/ready", respond_ready),
    *(Route(f"{model}/infer", _infer, methods=["POST"]) for model in MODELS),
    *(Route(f"{model}/ready", _model_ready) for model in MODELS),
    *(Route(model, _model) for model in MODELS),
]


def check_model(request: Request) -> None:
    """Checks the name of the model in the path of a request, and the version if there is one.

    Raises:
        HTTPException: 404, it is another.
    """
    if not names_model(request):
        name, version = request.path_params["name"], request.path_params.get("version")
        text = f"there is no model {shown(name)}" + f", version {version}" * bool(version)
        raise http_error(404, text)


def _read_request(
    body: bytes, most: int, header_length: str | None, channels: int
) -> tuple[list[ImageInput], _Options]:
    """Reads the body of an inference: JSON of `header_length` bytes, followed by binary tensors."""
    length = len(body)
    if header_length is not None:
        stated = numerals.count(header_length)
        if stated is None or stated > len(body):
            given = shown(header_length)
            raise bad_request(f"{HEADER_LENGTH} is {given}, the body has {length} bytes")
        length = stated
    elif b"\0" in body and body.lstrip().startswith(b"{"):
        raise bad_request(f"bytes follow the JSON: the header {HEADER_LENGTH} says where it ends")
    content = parse_json(body[:length], OPEN_INFERENCE_FORM)
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], Mapping):
        raise bad_request(f"'inputs' must be a list of one tensor, '{INPUT}'")
    request_id = content.get("id")
    if not isinstance(request_id, str | None) or len(request_id or "") > _LONGEST_ID:
        raise bad_request(f"'id' must be a string of at most {_LONGEST_ID} characters")
    options = _Options(_wanted_outputs(content), request_id, _classes_per_object(content))
    return _images(inputs[0], memoryview(body)[length:], most, channels), options


def _images(
    tensor: Mapping[str, object], binary: memoryview, most: int, channels: int
) -> list[ImageInput]:
    name, kind = tensor.get("name"), tensor.get("datatype")
    where = "input " + shown(name)
    if name not in INPUTS:
        raise bad_request(f"there is no input {shown(name)}; the only one is '{INPUT}'")
    size = _parameters(tensor).get("binary_data_size")
    if size is not None and (type(size) is not int or size != len(binary)):
        given = shown(size)
        raise bad_request(f"{where}: {given} bytes were announced, {len(binary)} were received")
    data = tensor.get("data") if size is None else binary
    if not isinstance(data, list | PixelText | memoryview):
        raise bad_request(f"{where}: 'data' must be a list")
    if kind == "BYTES":
        shape = _shape(tensor, where, (1, 2), most, "[B]")
        return _files(data, where, shape)
    if kind != "UINT8":
        raise bad_request(f"{where}: datatype {shown(kind)}; wanted UINT8 or BYTES")
    wanted = f"[B, h, w, {channels}]"
    shape = _shape(tensor, where, (4,), most, wanted)
    if shape[3] != channels:
        raise bad_request(f"{where}: shape {shape}, wanted {wanted}")
    return _pixels(data, where, shape)


def _shape(
    tensor: Mapping[str, object], where: str, ranks: tuple[int, ...], most: int, wanted: str
) -> list[int]:
    """Returns the shape of a tensor, checked before an array of that shape exists."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise bad_request(f"{where}: 'shape' must be a list of whole numbers")
    if len(shape) not in ranks:
        raise bad_request(f"{where}: shape {shown(shape)}, wanted {wanted}")
    check_count(shape[0] if 4 in ranks else math.prod(shape), most)
    return shape


def _files(
    data: list[object] | PixelText | memoryview, where: str, shape: list[int]
) -> list[ImageInput]:
    count = math.prod(shape)
    if isinstance(data, memoryview):
        return _split(data, where, count)
    rows = data if isinstance(data, list) else []
    flat = list(chain.from_iterable(row if isinstance(row, list) else [row] for row in rows))
    if len(flat) != count:
        raise bad_request(f"{where}: shape {shape}, data of {count_text(len(flat), 'image')}")
    return [decode_base64(string, f"image {at}") for at, string in enumerate(flat)]


def _split(binary: memoryview, where: str, count: int) -> list[ImageInput]:
    """Returns the elements of a binary BYTES tensor, each after four bytes of its length."""
    files: list[ImageInput] = []
    at = 0
    while at < len(binary) and len(files) <= count:
        begins = at + 4
        at = begins + int.from_bytes(binary[at:begins], "little")
        if at > len(binary):
            raise bad_request("a binary BYTES tensor ends inside an element")
        files.append(bytes(binary[begins:at]))
    if len(files) != count:
        images = count_text(count, "image")
        raise bad_request(f"{where}: the shape is of {images}, the data are of others")
    return files


def _pixels(
    data: list[object] | PixelText | memoryview, where: str, shape: list[int]
) -> list[ImageInput]:
    """Returns the images of a tensor `[B, h, w, C]`: binary, flat or nested."""
    if isinstance(data, list) and any(isinstance(element, list | PixelText) for element in data):
        images = [_nested(element, where, shape) for element in data[: shape[0] + 1]]
    else:
        if isinstance(data, memoryview):
            flat = np.frombuffer(data, np.uint8)
        else:
            flat = (data if isinstance(data, PixelText) else PixelText.of(data)).pixels(where)
        if flat.shape != (math.prod(shape),):
            numbers = count_text(flat.size, "number")
            raise bad_request(f"{where}: no array of shape {shape}: {numbers}")
        images = list(flat.reshape(shape))
    if len(images) != shape[0]:
        count = count_text(shape[0], "image")
        raise bad_request(f"{where}: no array of shape {shape}: it has not {count}")
    return list(images)


def _nested(image: object, where: str, shape: list[int]) -> NDArray[np.uint8]:
    pixels = image_pixels(image, where, shape[3]) if isinstance(image, list | PixelText) else None
    if pixels is None or list(pixels.shape) != shape[1:]:
        raise bad_request(f"{where}: no array of shape {shape}: an image differs from it")
    return pixels


def _wanted_outputs(content: Mapping[str, object]) -> dict[str, bool]:
    """Returns the names of the wanted outputs, and which of them as binary data."""
    binary = _flag(content, "binary_data_output", default=False)
    wanted = content.get("outputs")
    if wanted is None:
        return dict.fromkeys(OUTPUTS, binary)
    if (
        not isinstance(wanted, list)
        or not 0 < len(wanted) <= len(OUTPUTS)
        or not all(isinstance(output, Mapping) for output in wanted)
    ):
        raise bad_request(f"'outputs' must be a list of 1 to {len(OUTPUTS)} tensors with names")
    for output in wanted:
        if output.get("name") not in OUTPUTS:
            known = ", ".join(OUTPUTS)
            raise bad_request(f"there is no output {shown(output.get('name'))}; there are {known}")
    return {output["name"]: _flag(output, "binary_data", default=binary) for output in wanted}


def _parameters(holder: Mapping[str, object]) -> Mapping[str, object]:
    parameters = holder.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise bad_request("'parameters' must be an object")
    return parameters


def _classes_per_object(content: Mapping[str, object]) -> ClassesPerObject | None:
    given = _parameters(content).get("classes_per_object")
    if given is None or given in CLASSES_PER_OBJECT:
        return given
    words = " or ".join(map(repr, CLASSES_PER_OBJECT))
    raise bad_request(f"parameter 'classes_per_object' must be {words}")


def _flag(holder: Mapping[str, object], name: str, *, default: bool) -> bool:
    flag = _parameters(holder).get(name, default)
    if not isinstance(flag, bool):
        raise bad_request(f"parameter '{name}' must be true or false")
    return flag


def _respond(head: Mapping[str, object], outputs: Outputs, binary: Mapping[str, bool]) -> Response:
    tensors, parts = [], []
    for name, is_binary in binary.items():
        array = outputs[name]
        tensor: dict[str, object] = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
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
