"""Ground-truth boxes of a set of records, resized to the network input."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.data import spread_indices
from stillbox.experiment.schema import FixedShapeResizer, Resizer
from stillbox.inputs.resize import misfit, resized_size
from stillbox.records.example import Example
from stillbox.records.image_files import inspect_image
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TruthBoxes:
    """N boxes of I images that count in training, before augmentation."""

    boxes: Floats
    """`[N, 4]`, normalised to the network input, padding included."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids."""
    starts: NDArray[np.int64]
    """`[I + 1]`, where the boxes of each image begin and end."""
    records: int
    """Records that were read."""
    left_out: int
    """Records without a usable image, or with one too large for the canvas."""


def read_truth(
    source: ExampleSource,
    resizer: Resizer,
    *,
    limit: int = 0,
    ignore_crowds: bool = False,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> TruthBoxes:
    """Reads boxes and resizes them as the images would be; no image is decoded.

    Args:
        limit: most records to read, spread over the set; 0: all.
        ignore_crowds: leave crowd boxes out, as `data.train.crowds` does except for `train`.
        on_record: called with the numbers of records done and in all.
    """
    indices = spread_indices(len(source), limit)
    boxes, class_ids, left_out = [np.zeros((0, 4), np.float32)], [np.zeros(0, np.int32)], 0
    lengths = []
    results = ordered_map(lambda index: _resized(source.example(index), resizer), indices)
    for done, result in enumerate(results, start=1):
        on_record(done, len(indices))
        if result is None:
            left_out += 1
            continue
        example, resized = result
        counts = example.weights > 0
        if ignore_crowds:
            counts &= ~example.is_crowd
        boxes.append(resized[counts])
        class_ids.append(example.class_ids[counts])
        lengths.append(int(counts.sum()))
    starts = np.cumsum([0, *lengths])
    return TruthBoxes(
        np.concatenate(boxes), np.concatenate(class_ids), starts, len(indices), left_out
    )


def _resized(example: Example | None, resizer: Resizer) -> tuple[Example, Floats] | None:
    """Returns an example and its boxes relative to the network input; None: it is not usable."""
    if example is None:
        return None
    if isinstance(resizer, FixedShapeResizer):
        return example, example.boxes  # the image fills the network input
    try:
        facts = inspect_image(example.encoded, whole=False)
    except BadRecordError:
        return None
    size = (facts.height, facts.width)
    if misfit(size, resizer):
        return None
    # The image is in the upper left corner, the rest is padding.
    share = np.divide(resized_size(size, resizer), resizer.input_size).astype(np.float32)
    return example, example.boxes * np.tile(share, 2)
