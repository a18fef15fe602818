"""Suppression by torchvision or TensorFlow; run by `suppression.py` in their environments.

    python suppression_peers.py torchvision|tensorflow THRESHOLD SET.npz

Prints one JSON object: the seconds of each round, and the scores of the detections.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROUNDS, MOST, IOU = 7, 100, 0.5
Floats = NDArray[np.float32]
Work = Callable[[], Floats]


def main() -> None:
    """Prints the seconds of a peer."""
    peer, threshold, path = sys.argv[1:]
    with np.load(Path(path)) as content:
        boxes, scores = content["boxes"], content["scores"]
    make = {"torchvision": with_torchvision, "tensorflow": with_tensorflow}[peer]
    name, work = make(boxes, scores, float(threshold))
    kept_scores, seconds = work(), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"name": name, "seconds": seconds, "scores": kept_scores.tolist()}))


def with_torchvision(boxes: Floats, scores: Floats, threshold: float) -> tuple[str, Work]:
    """Returns `batched_nms` over the candidates of all classes, as its detectors call it."""
    import torch
    import torchvision

    corners = torch.from_numpy(boxes[:, [1, 0, 3, 2]].copy())
    table = torch.from_numpy(scores)

    def work() -> Floats:
        anchors, classes = torch.where(table > threshold)
        candidates = table[anchors, classes]
        kept = torchvision.ops.batched_nms(corners[anchors], candidates, classes, IOU)[:MOST]
        return np.asarray(candidates[kept])

    return f"torchvision {torchvision.__version__}", work


def with_tensorflow(boxes: Floats, scores: Floats, threshold: float) -> tuple[str, Work]:
    """Returns the combined suppression of TensorFlow's own detectors."""
    import tensorflow as tf

    def work() -> Floats:
        kept = tf.image.combined_non_max_suppression(
            boxes[None, :, None], scores[None], MOST, MOST, IOU, threshold, clip_boxes=False
        )
        return np.asarray(kept.nmsed_scores[0][: int(kept.valid_detections[0])])

    return f"tensorflow {tf.__version__}", work


if __name__ == "__main__":
    main()
