"""Ground truth for scoring, straight from the records: the boxes of the original image.

It does not take the way through the loader, which resizes, cuts off boxes beyond its limit and
gives crowds a weight.
"""

import io
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from PIL import Image, UnidentifiedImageError

from stillbox.evaluation.results import ImageTruth
from stillbox.records.example import Example


class TruthSource(Protocol):
    """Where the examples of an evaluation set are read; `records.source.ExampleSource` is one."""

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def example(self, index: int, /) -> Example | None:
        """Returns the example of a record, None where the policy leaves it out."""
        ...


def read_truths(source: TruthSource, records: Sequence[int]) -> dict[int, ImageTruth]:
    """Reads the ground truth of these records.

    Returns:
        Truth by record index. A record that the source leaves out under its policy is absent. Ids
        that several records share get the record's number added, so that each image counts.
    """
    examples = {record: source.example(record) for record in records}
    present = {record: example for record, example in examples.items() if example is not None}
    owners: dict[str, int] = {}
    for example in present.values():
        owners[example.image_id] = owners.get(example.image_id, 0) + 1
    return {
        record: truth_of(
            example,
            example.image_id
            if owners[example.image_id] == 1
            else f"{example.image_id} (record {record})",
        )
        for record, example in present.items()
    }


def truth_of(example: Example, image_id: str | None = None) -> ImageTruth:
    """Returns the ground truth of an example in pixels of its stored image.

    Args:
        example: the example; its boxes are normalised.
        image_id: name to use instead of the example's own.
    """
    height, width = stored_size(example)
    scale = np.array([height, width, height, width], np.float64)
    return ImageTruth(
        image_id=example.image_id if image_id is None else image_id,
        height=height,
        width=width,
        boxes=example.boxes.astype(np.float64) * scale,
        class_ids=example.class_ids.astype(np.int64),
        is_crowd=_column(example.is_crowd, len(example.boxes), np.False_).astype(np.bool_),
        is_difficult=_column(example.difficult, len(example.boxes), np.False_).astype(np.bool_),
        area=_column(example.area, len(example.boxes), np.float64(np.nan)).astype(np.float64),
    )


def stored_size(example: Example) -> tuple[int, int]:
    """Returns height and width of the stored image, in pixels.

    The image's own header is believed before the record, whose numbers are optional and sometimes
    wrong: a wrong size would move objects between small, medium and large.
    """
    try:
        with Image.open(io.BytesIO(example.encoded)) as image:
            return image.height, image.width
    except (UnidentifiedImageError, OSError):
        return example.height, example.width


def _column(
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], length: int, missing: np.generic
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    # An example that was made without this optional column has an empty one.
    return values if len(values) == length else np.full(length, missing)
