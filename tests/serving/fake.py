"""A model without weights. This module imports no JAX: servers of tests start fast."""

import threading

import numpy as np

from stillbox.evaluation.results import RawDetections
from stillbox.image_kind import RGB_8
from stillbox.predicting.backend import Prepared


class FakeBackend:
    """Finds two objects in every image: an owl with the score of the upper left pixel's red, in
    255ths, in the upper left quarter, and a hawk of score 0.1 in all of it. If `doubts`, it also
    finds a hawk of half the score in the owl's place."""

    class_names = {1: "owl", 3: "hawk"}  # noqa: RUF012
    source = "fake"
    tiling = None
    image_kind = RGB_8
    max_detections = 4

    def __init__(self, batch_sizes=None):
        self.batch_sizes = batch_sizes
        self.runs = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.fails = None
        self.doubts = False

    def prepare(self, image, where=None):
        assert image.dtype == np.uint8
        assert image.ndim == 3
        return Prepared(image[:1, :1].copy(), (1, 1), image.shape[:2])

    def warm_up(self, batch_size):
        pass

    def run(self, images):
        self.entered.set()
        assert self.open.wait(30)
        self.runs.append([int(image.pixels[0, 0, 0]) for image in images])
        if self.fails:
            raise self.fails
        return [self._found(image) for image in images]

    def _found(self, image):
        height, width = image.size
        boxes = np.array([[0, 0, height / 2, width / 2], [0, 0, height, width]], np.float64)
        scores = np.array([image.pixels[0, 0, 0] / 255, 0.1])
        detections = RawDetections(boxes, scores, np.array([1, 3]))
        if not self.doubts:
            return detections
        rows, scores = [0, 0, 1], np.array([scores[0], scores[0] / 2, scores[1]])
        return RawDetections(boxes[rows], scores, np.array([1, 3, 3]))
