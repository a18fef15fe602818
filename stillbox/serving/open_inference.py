"""The Open Inference Protocol, version 2, with its extension for binary tensors.

https://github.com/kserve/open-inference-protocol
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox import __version__
from stillbox.serving.answers import Json, bad_request, refusal
from stillbox.serving.engine import Engine
from stillbox.serving.images import Given
from stillbox.serving.tensors import (
    INPUT,
    INPUTS,
    OUTPUTS,
    decode_base64,
    images_of,
    padded_outputs,
    parse_json,
    pixels_from,
)

HEADER_LENGTH = "Inference-Header-Content-Length"


class Asked(NamedTuple):
    """What a request asks for."""

    images: list[Given]
    """Files or pixels."""
    outputs: dict[str, bool]
    """The outputs to return, and whether as binary data."""
    id: str | None
    """What the answer repeats."""


class OpenInference:
    """The routes of the protocol.

    Args:
        engine: runs the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._settings = engine, engine.settings

    def routes(self) -> list[Route]:
        """Returns them."""
        models = ("/v2/models/{name}/versions/{version}", "/v2/models/{name}")
        return [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            *(Route(f"{model}/infer", self.infer, methods=["POST"]) for model in models),
            *(Route(f"{model}/ready", self.model_ready) for model in models),
            *(Route(model, self.model) for model in models),
        ]

    async def server(self, request: Request) -> Json:
        """Says what answers here."""
        extensions = ["binary_tensor_data"]
        return Json({"name": "stillbox", "version": __version__, "extensions": extensions})

    async def live(self, request: Request) -> Json:
        """Says that the server runs."""
        return Json({"live": True})

    async def ready(self, request: Request) -> Json:
        """Says whether it takes requests."""
        return Json({"ready": self._engine.ready}, 200 if self._engine.ready else 503)

    async def model_ready(self, request: Request) -> Json:
        """Says the same of the model."""
        self._check_model(request)
        status = 200 if self._engine.ready else 503
        return Json({"name": self._settings.name, "ready": self._engine.ready}, status)

    async def model(self, request: Request) -> Json:
        """Describes the tensors."""
        self._check_model(request)
        most = self._engine.predictor.backend.max_detections
        shapes = {"detection_boxes": [-1, most, 4], "num_detections": [-1]}
        outputs = [
            {"name": name, "datatype": "FP32", "shape": shapes.get(name, [-1, most])}
            for name in OUTPUTS
        ]
        return Json(
            {
                "name": self._settings.name,
                "versions": [str(self._settings.version)],
                "platform": "stillbox",
                "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, -1, -1, 3]}],
                "outputs": outputs,
            }
        )

    async def infer(self, request: Request) -> Response:
        """Detects in the images of the one input."""
        self._check_model(request)
        engine = self._engine
        async with engine.body(request) as body:
            asked = await engine.work(read_request, body, request.headers.get(HEADER_LENGTH))
            answers = await engine.detect(asked.images)
        outputs = padded_outputs(answers, engine.predictor.backend.max_detections)
        head = {"model_name": self._settings.name, "model_version": str(self._settings.version)}
        if asked.id is not None:
            head["id"] = asked.id
        return _answer(head, {name: (outputs[name], raw) for name, raw in asked.outputs.items()})

    def _check_model(self, request: Request) -> None:
        name, version = request.path_params["name"], request.path_params.get("version")
        if name != self._settings.name or version not in (None, str(self._settings.version)):
            raise refusal(
                404, f"there is no model {name!r}" + f", version {version}" * bool(version)
            )


def read_request(body: bytes, header_length: str | None) -> Asked:
    """Reads the body of an inference.

    Args:
        body: JSON, and binary tensors behind it.
        header_length: bytes of the JSON; None: all of them.

    Raises:
        HTTPException: 400, it makes no sense.
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
    return Asked(images, _asked_outputs(content), request_id)


def _images(tensor: Mapping[str, Any], binary: bytes) -> list[Given]:
    name, kind, shape = (tensor.get(key) for key in ("name", "datatype", "shape"))
    if name not in INPUTS:
        raise bad_request(f"there is no input {name!r}; the only one is '{INPUT}'")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise bad_request(f"input '{name}': 'shape' must be a list of whole numbers")
    size = _parameters(tensor).get("binary_data_size")
    if size is not None and size != len(binary):
        raise bad_request(f"input '{name}': {size!r} bytes were announced, {len(binary)} came")
    if size is None and not isinstance(tensor.get("data"), list):
        raise bad_request(f"input '{name}': 'data' must be a list")
    if kind == "BYTES":
        files: list[Given] = _files(tensor["data"]) if size is None else list(_split(binary))
        if len(shape) not in (1, 2) or np.prod(shape, dtype=object) != len(files):
            raise bad_request(f"input '{name}': shape {shape}, data of {len(files)} images")
        return files
    if kind == "UINT8":
        values = tensor["data"] if size is None else np.frombuffer(binary, np.uint8)
        return images_of(pixels_from(values, f"input '{name}'", shape), f"input '{name}'")
    raise bad_request(f"input '{name}': datatype {kind!r}; wanted UINT8 or BYTES")


def _files(data: list[Any]) -> list[Given]:
    flat = [one for row in data for one in (row if isinstance(row, list) else [row])]
    return [decode_base64(one, f"image {at}") for at, one in enumerate(flat)]


def _split(binary: bytes) -> Iterator[bytes]:
    """Yields the elements of a binary BYTES tensor: four bytes of length before each."""
    at = 0
    while at < len(binary):
        begins = at + 4
        at = begins + int.from_bytes(binary[at:begins], "little")
        if at > len(binary):
            raise bad_request("a binary BYTES tensor ends inside an element")
        yield binary[begins:at]


def _asked_outputs(content: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the names of the outputs to return, and which of them as binary data."""
    binary = _flag(content, "binary_data_output", default=False)
    asked = content.get("outputs")
    if asked is None:
        return dict.fromkeys(OUTPUTS, binary)
    if not isinstance(asked, list) or not asked or not all(isinstance(o, Mapping) for o in asked):
        raise bad_request("'outputs' must be a list of tensors with names")
    for output in asked:
        if output.get("name") not in OUTPUTS:
            known = ", ".join(OUTPUTS)
            raise bad_request(f"there is no output {output.get('name')!r}; there are {known}")
    return {output["name"]: _flag(output, "binary_data", default=binary) for output in asked}


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


def _answer(
    head: dict[str, Any], outputs: Mapping[str, tuple[NDArray[np.float32], bool]]
) -> Response:
    tensors, parts = [], []
    for name, (array, raw) in outputs.items():
        tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
        if raw:
            parts.append(array.astype("<f4").tobytes())
            tensors.append(tensor | {"parameters": {"binary_data_size": len(parts[-1])}})
        else:
            tensors.append(tensor | {"data": array.ravel().tolist()})
    content = head | {"outputs": tensors}
    if not parts:
        return Json(content)
    header = json.dumps(content).encode("ascii")
    return Response(
        b"".join([header, *parts]),
        headers={HEADER_LENGTH: str(len(header))},
        media_type="application/octet-stream",
    )
