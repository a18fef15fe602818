"""What the two model protocols share: the tensors of requests and responses."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from stillbox.serving.engine import ImageResult, engine_of
from stillbox.serving.images import ImageInput
from stillbox.serving.responses import bad_request

INPUT = "input_tensor"
"""The input's name in exports of the Object Detection API."""

INPUTS = (INPUT, "inputs", "input", "image_tensor", "image_bytes", "encoded_image_string_tensor")
"""Its names in other exports, which requests may use too."""

OUTPUTS = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")

Outputs = dict[str, NDArray[np.float32]]
T = TypeVar("T")


def names_model(request: Request) -> bool:
    """Whether a request's path has the name of the model, and its version if any."""
    settings, path = engine_of(request).settings, request.path_params
    version = str(settings.version)
    return bool(path["name"] == settings.name and path.get("version", version) == version)


async def infer(
    request: Request, read: Callable[[bytes], tuple[list[ImageInput], T]]
) -> tuple[Outputs, T]:
    """Runs the model on the images of a request.

    Args:
        request: its body has the images.
        read: returns images and options of a body; runs in a thread.
    """
    engine = engine_of(request)
    async with engine.body(request) as body:
        images, options = await engine.work(read, body)
        results = await engine.detect(images)
    return padded_outputs(results, engine.predictor.backend.max_detections), options


def output_shapes(most: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each output for one image with at most `most` detections."""
    shapes = {"detection_boxes": (most, 4), "num_detections": ()}
    return {name: shapes.get(name, (most,)) for name in OUTPUTS}


def parse_json(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body.

    Raises:
        HTTPException: 400, it is none.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"JSON Parse error: {error}") from None
    if not isinstance(content, dict):
        raise bad_request("JSON Parse error: the body is no object")
    return content


def decode_base64(text: Any, where: str) -> bytes:  # noqa: ANN401
    """Returns the bytes of a base64 string, of the standard or the URL-safe alphabet.

    Raises:
        HTTPException: 400, it is no string or not in base64; `where` is the image's name there.
    """
    if not isinstance(text, str):
        raise bad_request(f"{where}: base64 must be a string")
    try:
        standard = text.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(standard + b"=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise bad_request(f"{where}: not base64: {error}") from None


def pixels_from(values: Any, where: str, shape: Sequence[int] | None = None) -> NDArray[np.uint8]:  # noqa: ANN401
    """Returns an array of pixels.

    Args:
        values: lists of whole numbers in 0..255.
        where: their name in an error.
        shape: of the array; None: the shape of the nested lists.

    Raises:
        HTTPException: 400, they are something else.
    """
    try:
        array = np.array(values)
        array = array if shape is None else array.reshape(shape)
    except (ValueError, OverflowError) as error:
        raise bad_request(f"{where}: no array: {error}") from None
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255):
        raise bad_request(f"{where}: pixels are whole numbers in 0..255")
    return array.astype(np.uint8)


def padded_outputs(results: Sequence[ImageResult], most: int) -> Outputs:
    """Returns the outputs of the Object Detection API's signature, all float32.

    Args:
        results: of B images.
        most: K, rows of each.

    Returns:
        `detection_boxes` `[B, K, 4]`, normalised to the image; `detection_classes` `[B, K]`, label
        map ids, 1 after the last detection; `detection_scores` `[B, K]`; `num_detections` `[B]`.
    """
    shapes = output_shapes(most)
    outputs = {name: np.zeros((len(results), *shapes[name]), np.float32) for name in OUTPUTS}
    outputs["detection_classes"][:] = 1
    for row, (found, size) in enumerate(results):
        count = min(len(found.scores), most)
        boxes = found.boxes[:count] / np.tile(np.array(size, np.float64), 2)
        outputs["detection_boxes"][row, :count] = boxes
        outputs["detection_scores"][row, :count] = found.scores[:count]
        outputs["detection_classes"][row, :count] = found.class_ids[:count]
        outputs["num_detections"][row] = count
    return outputs
