"""The tensors of the two protocols for models: pixels and files in, padded detections out."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillbox.serving.answers import bad_request
from stillbox.serving.engine import Answered
from stillbox.serving.images import Given

INPUT = "input_tensor"
"""The input's name, as the Object Detection API exports it."""

INPUTS = (INPUT, "inputs", "input", "image_tensor", "image_bytes", "encoded_image_string_tensor")
"""Names that clients of other exports use for it."""

OUTPUTS = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")

Outputs = dict[str, NDArray[np.float32]]


def parse_json(body: bytes) -> dict[str, Any]:
    """Returns the object that a body holds.

    Raises:
        HTTPException: 400, it holds none.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"JSON Parse error: {error}") from None
    if not isinstance(content, dict):
        raise bad_request("JSON Parse error: the body is no object")
    return content


def decode_base64(text: Any, where: str) -> bytes:  # noqa: ANN401
    """Returns the bytes that a string holds.

    Args:
        text: base64, of the usual alphabet or that of addresses.
        where: what an error calls it.

    Raises:
        HTTPException: 400, it is no string or not in base64.
    """
    if not isinstance(text, str):
        raise bad_request(f"{where}: base64 stands in a string")
    try:
        usual = text.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(usual + b"=" * (-len(usual) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise bad_request(f"{where}: not base64: {error}") from None


def pixels_from(values: Any, where: str, shape: Sequence[int] | None = None) -> NDArray[np.uint8]:  # noqa: ANN401
    """Returns an array of pixels.

    Args:
        values: lists of whole numbers in 0..255.
        where: what an error calls them.
        shape: of the array, where the lists do not say; None: they do.

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


def images_of(array: NDArray[np.uint8], where: str) -> list[Given]:
    """Returns the images of a batch `[B, h, w, 3]`.

    Raises:
        HTTPException: 400, the array has another shape.
    """
    if array.ndim != 4 or array.shape[3] != 3:
        raise bad_request(f"{where}: shape {list(array.shape)}, wanted [B, h, w, 3]")
    return list(array)


def padded_outputs(answers: Sequence[Answered], most: int) -> Outputs:
    """Returns the outputs of the Object Detection API's signature, all float32.

    Args:
        answers: of B images.
        most: K, rows of each.

    Returns:
        `detection_boxes` `[B, K, 4]`, normalised to the image; `detection_classes` `[B, K]`, label
        map ids, 1 behind the last detection; `detection_scores` `[B, K]`; `num_detections` `[B]`.
    """
    rows = len(answers)
    boxes, scores = np.zeros((rows, most, 4), np.float32), np.zeros((rows, most), np.float32)
    classes, counts = np.ones((rows, most), np.float32), np.zeros(rows, np.float32)
    for row, (found, size) in enumerate(answers):
        count = min(len(found.scores), most)
        boxes[row, :count] = found.boxes[:count] / np.tile(np.array(size, np.float64), 2)
        scores[row, :count] = found.scores[:count]
        classes[row, :count] = found.class_ids[:count]
        counts[row] = count
    return dict(zip(OUTPUTS, (boxes, classes, scores, counts), strict=True))
