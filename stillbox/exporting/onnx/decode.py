"""From the outputs of `network.onnx` to detections, with numpy alone.

constants = dict(numpy.load("decoding.npz"))
boxes, scores = decode(box_encodings[0], class_logits[0], constants)
for box, score, class_id in detections(boxes, scores, constants):
    print(box, score, class_id)
"""

from collections.abc import Iterator, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


def decode(encodings: np.ndarray, logits: np.ndarray, constants: Arrays) -> list[np.ndarray]:
    """Returns boxes `[A, 4]`, ymin, xmin, ymax, xmax in 0..1, and scores `[A, C]` of all anchors.

    Args:
        encodings: `[A, S]`.
        logits: `[A, C]`, or one channel more, the background's, in front.
        constants: the arrays of `decoding.npz`.
    """
    low, high = np.split(constants["anchors"], 2, axis=1)
    centers, sizes = (low + high) / 2, high - low
    if constants["coder"] == "faster_rcnn":
        deltas = encodings / constants["scales"]
        centers = centers + deltas[:, :2] * sizes
        before = after = np.exp(deltas[:, 2:]) * sizes / 2
    else:
        shares = _softmax(encodings.reshape(len(encodings), 4, -1))
        means = shares @ np.arange(shares.shape[-1], dtype=np.float32)
        before, after = np.split(means * np.tile(sizes / constants["units"], 2), 2, axis=1)
    boxes = np.concatenate([centers - before, centers + after], axis=1)
    scores = logits / constants["logit_scale"]
    if constants["converter"] == "sigmoid":
        scores = 1 / (1 + np.exp(-scores))
    elif constants["converter"] == "softmax":
        scores = _softmax(scores)
    return [boxes, scores[:, int(constants["background"]) :]]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def detections(
    boxes: np.ndarray, scores: np.ndarray, constants: Arrays
) -> Iterator[tuple[np.ndarray, float, int]]:
    """Yields the boxes that suppression of each class keeps, best first, clipped to the image."""
    kept = []
    for slot, class_id in enumerate(constants["class_ids"]):
        left = np.flatnonzero(scores[:, slot] > constants["score_threshold"])
        left = left[np.argsort(-scores[left, slot], kind="stable")]
        while left.size:
            best, left = left[0], left[1:]
            kept.append((boxes[best].clip(0, 1), float(scores[best, slot]), int(class_id)))
            left = left[_overlaps(boxes[best], boxes[left]) <= constants["iou_threshold"]]
    kept.sort(key=lambda detection: -detection[1])
    yield from kept[: int(constants["max_total"])]


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the areas of the intersections over the areas of the unions."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = sides.clip(0).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
    overlaps: np.ndarray = common / np.maximum(areas - common, 1e-12)
    return overlaps
