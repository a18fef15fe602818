"""From photographs to detections that a person can read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from stillbox.boxes.detections import Detections
from stillbox.errors import UserError
from stillbox.evaluation.program import BoundDetect
from stillbox.evaluation.results import ImageResult
from stillbox.evaluation.watch import UNWATCHED, StepWatch
from stillbox.experiment import schema
from stillbox.inputs.decode import ImageError, decode_image
from stillbox.inputs.resize import resize_image
from stillbox.records.class_slots import ClassSlots

_SHOWN = 5


class PredictedImage(NamedTuple):
    """One photograph and what was found in it."""

    path: Path
    image: np.ndarray
    """`[H, W, 3]` uint8 RGB, upright."""
    result: ImageResult
    """Boxes in pixels of `image`; class ids are the label map's."""


def predict_images(
    detect: BoundDetect,
    paths: Sequence[Path],
    resizer: schema.Resizer,
    slots: ClassSlots,
    *,
    batch_size: int = 1,
    watch: StepWatch = UNWATCHED,
) -> Iterator[PredictedImage]:
    """Detects in image files, a batch at a time; the last batch is padded with its last image.

    A photograph is turned upright as its EXIF tag says: unlike a record it has no boxes that would
    have to turn with it.

    Args:
        detect: `(images [B, H, W, 3], true_sizes [B, 2]) -> Detections`.
        paths: image files.
        resizer: of the model.
        slots: class indices of the model.
        batch_size: images a call of `detect`.
        watch: told of every batch.

    Raises:
        UserError: a file is missing, which is found out before anything is computed, holds no
            image, or one that is larger than the canvas of a resizer that does not shrink.
    """
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise UserError(
            "there is no such image file",
            where=", ".join(missing[:_SHOWN]) + more,
            fix="give files; for all in a folder write FOLDER/*.jpg",
        )
    for start in watch.mark(iter(range(0, len(paths), batch_size))):
        chunk = paths[start : start + batch_size]
        images = [_decode(path) for path in chunk]
        resized = [
            resize_image(image, resizer, where=str(path))
            for path, image in zip(chunk, images, strict=True)
        ]
        rows = [min(row, len(chunk) - 1) for row in range(batch_size)]
        detections = detect(
            np.stack([resized[row][0] for row in rows]),
            np.array([resized[row][1] for row in rows], np.int32),
        )
        watch.dispatched(detections)
        found = jax.device_get(detections)
        for row, (path, image) in enumerate(zip(chunk, images, strict=True)):
            result = _in_pixels(found, row, slots, str(path), image)
            yield PredictedImage(path, image, result)


def _decode(path: Path) -> np.ndarray:
    try:
        return decode_image(path.read_bytes(), apply_exif=True)
    except ImageError as error:
        raise UserError(
            f"cannot be decoded: {error}", where=str(path), fix="leave it out, or save it again"
        ) from error


def _in_pixels(
    found: Detections, row: int, slots: ClassSlots, name: str, image: np.ndarray
) -> ImageResult:
    count = int(found.count[row])
    height, width = image.shape[:2]
    scale = (height, width, height, width)
    return ImageResult(
        image_id=name,
        boxes=np.asarray(found.boxes[row, :count], np.float64) * np.array(scale, np.float64),
        scores=np.asarray(found.scores[row, :count], np.float64),
        class_ids=slots.id_of(np.asarray(found.classes[row, :count])),
    )
