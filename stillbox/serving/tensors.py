"""The tensors of requests and responses, which the two model protocols share."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from stillbox.predicting.selection import ClassesPerObject, Selection
from stillbox.serving.bodies import bad_request
from stillbox.serving.decoding import ImageInput, PixelText
from stillbox.serving.engine import ImageDetections, engine_of

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
    request: Request,
    read: Callable[[bytes, int], tuple[list[ImageInput], T]],
    classes_per_object: Callable[[T], ClassesPerObject | None] = lambda options: None,
) -> tuple[Outputs, T]:
    """Runs the model on the images of a request.

    Args:
        read: returns images and options of a body with at most a number of images; runs in a
            thread.
        classes_per_object: returns that of the options; None: as the settings of the server say,
            and `all` if those say nothing.
    """
    engine = engine_of(request)
    most = engine.settings.max_images

    async def respond(body: bytes) -> tuple[list[ImageDetections], T]:
        images, options = await engine.read(lambda body: read(body, most), body)
        del body
        return await engine.detect(images), options

    results, options = await engine.respond(request, respond)
    wanted = classes_per_object(options) or engine.settings.classes_per_object or "all"
    selection = Selection(classes_per_object=wanted, iou=engine.settings.iou)
    selected = [one._replace(found=selection.one_class(one.found)) for one in results]
    return padded_outputs(selected, engine.predictor.backend.max_detections), options


def output_shapes(most: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each output for one image with at most `most` detections."""
    shapes = {"detection_boxes": (most, 4), "num_detections": ()}
    return {name: shapes.get(name, (most,)) for name in OUTPUTS}


def decode_base64(text: object, where: str) -> bytes:
    """Returns the bytes of a base64 string, of the standard or the URL-safe alphabet."""
    if not isinstance(text, str):
        raise bad_request(f"{where}: base64 must be a string")
    try:
        standard = text.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(standard + b"=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise bad_request(f"{where}: not base64: {error}") from None


def image_pixels(value: list[object] | PixelText, where: str) -> NDArray[np.uint8]:
    """Returns the pixels of one image."""
    pixels = (value if isinstance(value, PixelText) else PixelText.of(value)).pixels(where)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise bad_request(f"{where}: shape {list(pixels.shape)}, wanted [h, w, 3]")
    return pixels


def padded_outputs(results: Sequence[ImageDetections], most: int) -> Outputs:
    """Returns the outputs of the Object Detection API's signature, float32, of B images.

    With K = `most`: `detection_boxes` `[B, K, 4]`, normalised to the image; `detection_classes`
    `[B, K]`, label map ids, 1 after the last detection; `detection_scores` `[B, K]`;
    `num_detections` `[B]`.
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
