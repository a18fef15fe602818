"""Ground truth for scoring: the boxes of the original image, from the records or from a COCO file.

The loader is not used: it resizes, cuts off boxes beyond its limit and gives crowds a weight.
"""

import io
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np
from PIL import Image

from stillbox.evaluation.annotations import Annotations
from stillbox.evaluation.results import ImageTruth
from stillbox.records.example import Example
from stillbox.records.image_work import costly


class TruthSource(Protocol):
    """The examples of an evaluation set, such as `records.source.ExampleSource`."""

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def example(self, index: int, /) -> Example | None:
        """Returns the example of a record, None if the policy leaves it out."""
        ...


def read_truths(
    source: TruthSource, records: Sequence[int], annotations: Annotations | None = None
) -> dict[int, ImageTruth]:
    """Returns ground truth by record index, from the records or from `annotations`.

    Records that the source leaves out under its policy are absent. Ids that several records share
    get the record's number added, so that each image counts.

    Raises:
        UserError: `annotations` lacks an image, or has one of another size.
    """
    examples = {record: source.example(record) for record in records}
    present = {record: example for record, example in examples.items() if example is not None}
    if annotations is None:
        truths = {record: truth_of(example) for record, example in present.items()}
    else:
        annotations.refuse_missing([example.image_id for example in present.values()])
        truths = {
            record: annotations.truth_of(example.image_id, stored_size(example))
            for record, example in present.items()
        }
    owners = Counter(truth.image_id for truth in truths.values())
    return {
        record: truth
        if owners[truth.image_id] == 1
        else replace(truth, image_id=f"{truth.image_id} (record {record})")
        for record, truth in truths.items()
    }


def truth_of(example: Example) -> ImageTruth:
    """Returns the ground truth of an example in pixels of its stored image."""
    height, width = stored_size(example)
    scale = np.array([height, width, height, width], np.float64)
    return ImageTruth(
        image_id=example.image_id,
        height=height,
        width=width,
        boxes=example.boxes.astype(np.float64) * scale,
        class_ids=example.class_ids.astype(np.int64),
        is_crowd=example.is_crowd,
        is_difficult=example.difficult,
        area=example.area.astype(np.float64),
    )


def stored_size(example: Example) -> tuple[int, int]:
    """Returns height and width of the stored image, in pixels.

    The image's own header has precedence over the record, whose numbers are optional and sometimes
    wrong: a wrong size would move objects between small, medium and large.
    """
    if not costly(example.encoded):
        # Pillow raises these for headers that are damaged, or of a gigapixel.
        damaged = OSError, SyntaxError, ValueError, Image.DecompressionBombError
        with suppress(*damaged), Image.open(io.BytesIO(example.encoded)) as image:
            return image.height, image.width
    return example.height, example.width
