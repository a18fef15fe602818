"""A backend that finds rectangles of one grey level, without a model."""

import numpy as np

from stillbox.evaluation.results import RawDetections
from stillbox.image_kind import RGB_8
from stillbox.predicting.backend import Prepared


class Blobs:
    """Finds rectangles of one grey level each, within its window.

    Rectangles of which a window shows less than `least` pixels of a side are not found.
    """

    class_names = {1: "blob"}  # noqa: RUF012
    source = "blobs"
    tiling = None
    image_kind = RGB_8
    max_detections = 100
    batch_sizes = None

    def __init__(self, least=4, largest=10**6):
        self.least, self.largest, self.batches = least, largest, []

    def prepare(self, image, where=None):
        return Prepared(image, image.shape[:2], image.shape[:2])

    def warm_up(self, batch_size):
        pass

    def run(self, images):
        self.batches.append([image.size for image in images])
        return [self._found(image.pixels[..., 0]) for image in images]

    def _found(self, pixels):
        boxes = []
        for level in np.unique(pixels[pixels > 0]):
            rows, columns = np.nonzero(pixels == level)
            box = rows.min(), columns.min(), rows.max() + 1, columns.max() + 1
            sides = box[2] - box[0], box[3] - box[1]
            if min(sides) >= self.least and max(sides) <= self.largest:
                boxes.append(box)
        count = len(boxes)
        # The better, the larger: parts are worse than the whole.
        scores = [0.5 + 0.4 * (b[2] - b[0]) * (b[3] - b[1]) / pixels.size for b in boxes]
        return RawDetections(
            np.array(boxes, float).reshape(-1, 4), np.array(scores), np.ones(count, np.int64)
        )


def scene(*boxes, size=(300, 400)):
    """An image with a rectangle of its own grey level for each `[ymin, xmin, ymax, xmax]`."""
    image = np.zeros((*size, 3), np.uint8)
    for level, (ymin, xmin, ymax, xmax) in enumerate(boxes, start=50):
        image[ymin:ymax, xmin:xmax] = level
    return image
