"""The reference's numbers, and the inputs that they were made from.

Programs as users compile them; tests otherwise compile without optimisation.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from stillbox.boxes.nms import batched_nms
from stillbox.boxes.nms_prefix import SearchLimits
from stillbox.boxes.structures import Detections

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"

# Feature maps of the two SSD models at 300 pixels.
SSD_300_SHAPES = [(19, 19), (10, 10), (5, 5), (3, 3), (2, 2), (1, 1)]
SSD_ASPECT_RATIOS = (1.0, 2.0, 0.5, 3.0, 0.3333)


def load(name: str) -> Any:
    return json.loads((GOLDENS / name).read_text())


def ssd_300_anchors() -> np.ndarray:
    return np.load(GOLDENS / "boxes_anchors_ssd_mobilenet_v1_300.npy")


def random_boxes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Boxes with centres all over the unit square, some of them small, some large."""
    centers = rng.random((*shape, 2))
    half = rng.random((*shape, 2)) * 0.3 + 0.005
    return np.concatenate([centers - half, centers + half], -1).astype(np.float32)


def plain_iou(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """IoU of one box `[4]` with many `[A, 4]`, in numpy, for slow reference implementations."""
    low = np.maximum(box[:2], boxes[:, :2])
    high = np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=-1)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    union = np.prod(box[2:] - box[:2]) + areas - shared
    return np.where(shared > 0, shared / np.where(shared > 0, union, 1), 0).astype(np.float32)


def nms(boxes: ArrayLike, scores: ArrayLike, **options: Any) -> Detections:
    """Returns the detections by `batched_nms`, with the limits of the search among the options."""
    limits = {name: options.pop(name) for name in SearchLimits._fields if name in options}
    return batched_nms(boxes, scores, SearchLimits(**limits), **options)


def nms_inputs() -> tuple[np.ndarray, np.ndarray]:
    """The recipe in boxes_nms.json: 200 boxes, scores of 5 classes, most of them low."""
    random = np.random.RandomState(0)
    centers, sizes = random.rand(200, 2), random.rand(200, 2) * 0.35 + 0.05
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], -1)
    return boxes.astype(np.float32), (random.rand(200, 5) ** 4).astype(np.float32)


def optimised(function, *arrays, **named):
    """Returns the result of a function that LLVM optimises."""
    options = {"xla_backend_optimization_level": 3}
    compiled = jax.jit(function).lower(*arrays, **named).compile(options)
    return np.asarray(compiled(*arrays, **named))
