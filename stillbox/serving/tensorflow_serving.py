"""TensorFlow Serving's REST protocol, as far as a detector has answers.

https://www.tensorflow.org/tfx/serving/api_rest
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.routing import Route

from stillbox.serving.answers import Json, bad_request, refusal
from stillbox.serving.engine import Engine
from stillbox.serving.images import Given
from stillbox.serving.tensors import (
    INPUT,
    INPUTS,
    OUTPUTS,
    decode_base64,
    padded_outputs,
    parse_json,
    pixels_from,
)

SIGNATURE = "serving_default"


class Asked(NamedTuple):
    """The images of a request."""

    images: list[Given]
    """Files or pixels."""
    by_row: bool
    """Whether they came as `instances`, so that each gets an object of its own."""


class TensorFlowServing:
    """The routes of the protocol.

    Args:
        engine: runs the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._settings = engine, engine.settings

    def routes(self) -> list[Route]:
        """Returns them; those of an action first, because `{name}` would match it too."""
        model, version = "/v1/models/{name}", "/v1/models/{name}/versions/{version}"
        return [
            Route(f"{version}:{{action}}", self.predict, methods=["POST"]),
            Route(f"{model}:{{action}}", self.predict, methods=["POST"]),
            Route(f"{version}/metadata", self.metadata),
            Route(f"{model}/metadata", self.metadata),
            Route(version, self.status),
            Route(model, self.status),
        ]

    async def status(self, request: Request) -> Json:
        """Says that the model is there."""
        name = request.path_params["name"]
        if not self._is_here(request):
            raise refusal(404, f"Could not find any versions of model {name}")
        state = {
            "version": str(self._settings.version),
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return Json({"model_version_status": [state]})

    async def metadata(self, request: Request) -> Json:
        """Describes the signature."""
        self._check_model(request)
        settings, most = self._settings, self._engine.predictor.backend.max_detections
        shapes = {"detection_boxes": (most, 4), "num_detections": ()}
        outputs = {name: shapes.get(name, (most,)) for name in OUTPUTS}
        signature = {
            "inputs": {INPUT: _tensor("DT_UINT8", (-1, -1, 3), f"{SIGNATURE}_{INPUT}:0")},
            "outputs": {
                name: _tensor("DT_FLOAT", shape, f"StatefulPartitionedCall:{number}")
                for number, (name, shape) in enumerate(outputs.items())
            },
            "method_name": "tensorflow/serving/predict",
        }
        spec = {"name": settings.name, "signature_name": "", "version": str(settings.version)}
        known = {"signature_def": {SIGNATURE: signature}}
        return Json({"model_spec": spec, "metadata": {"signature_def": known}})

    async def predict(self, request: Request) -> Json:
        """Detects in the images of `instances` or `inputs`."""
        action = request.path_params["action"]
        if action != "predict":
            raise bad_request(f"Malformed request: POST {request.url.path}: only :predict is here")
        self._check_model(request)
        engine = self._engine
        async with engine.body(request) as body:
            asked = await engine.work(read_request, body)
            answers = await engine.detect(asked.images)
        outputs = padded_outputs(answers, engine.predictor.backend.max_detections)
        columns = {name: array.tolist() for name, array in outputs.items()}
        if not asked.by_row:
            return Json({"outputs": columns})
        rows = zip(*columns.values(), strict=True)
        return Json({"predictions": [dict(zip(columns, row, strict=True)) for row in rows]})

    def _is_here(self, request: Request) -> bool:
        here, asked = self._settings, request.path_params
        own_version = str(here.version)
        return bool(asked["name"] == here.name and asked.get("version", own_version) == own_version)

    def _check_model(self, request: Request) -> None:
        if not self._is_here(request):
            version = request.path_params.get("version")
            asked = request.path_params["name"]
            which = f"Specific({asked}, {version})" if version else f"Latest({asked})"
            raise refusal(404, f"Servable not found for request: {which}")


def read_request(body: bytes) -> Asked:
    """Reads the body of a `:predict`.

    Raises:
        HTTPException: 400, it makes no sense.
    """
    content = parse_json(body)
    signature = content.get("signature_name") or SIGNATURE
    if signature != SIGNATURE:
        raise bad_request(f'Serving signature name: "{signature}" not found in signature def')
    if ("instances" in content) == ("inputs" in content):
        raise bad_request("Request body must have one of the keys 'instances' and 'inputs'")
    by_row = "instances" in content
    values = content["instances"] if by_row else _named(content["inputs"])
    if not isinstance(values, list) or not values:
        raise bad_request(f"'{'instances' if by_row else 'inputs'}' must be a list of images")
    return Asked([_image(_named(value), f"image {at}") for at, value in enumerate(values)], by_row)


def _named(value: Any) -> Any:  # noqa: ANN401
    """Returns what stands under the name of the input, where a name was given."""
    if not isinstance(value, Mapping) or "b64" in value:
        return value
    names = list(value)
    if len(names) != 1 or names[0] not in INPUTS:
        raise bad_request(f"the only input is '{INPUT}'; the request has {names}")
    return value[names[0]]


def _image(value: Any, where: str) -> Given:  # noqa: ANN401
    if isinstance(value, Mapping):
        return decode_base64(value.get("b64"), where)
    if not isinstance(value, list):
        raise bad_request(f'{where}: give {{"b64": FILE}} or pixels [h, w, 3]')
    pixels = pixels_from(value, where)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise bad_request(f"{where}: shape {list(pixels.shape)}, wanted [h, w, 3]")
    return pixels


def _tensor(kind: str, shape: tuple[int, ...], name: str) -> dict[str, Any]:
    sizes = [{"size": str(size), "name": ""} for size in (-1, *shape)]
    return {
        "dtype": kind,
        "tensor_shape": {"dim": sizes, "unknown_rank": False},
        "name": name,
    }
