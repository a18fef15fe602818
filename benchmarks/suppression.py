"""Milliseconds of non-maximum suppression for one image, beside torchvision and TensorFlow.

    python benchmarks/suppression.py

Boxes lie like the boxes of a trained detector: most scores are tiny, and objects have many boxes
each. All find the best 100 boxes of all classes at an IoU of .5. The detections must be the same.
Peers are installed into environments of their own in the cache folder.
"""

import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from environments import TORCH, ask_peer, peer_python
from measuring import machine, show
from numpy.typing import NDArray
from rich.table import Table
from suppression_peers import IOU, MOST, ROUNDS

from stillbox.boxes.nms import batched_nms
from stillbox.boxes.nms_prefix import SearchLimits

SIZES = ((1917, 90), (76725, 90))
THRESHOLDS = (1e-8, 0.05)
LONGEST = 60.0
"""Seconds that a peer gets for its start and all of its rounds."""
PEERS = {
    "torchvision": TORCH,
    "tensorflow": ("tensorflow", "tensorflow-cpu==2.21.*"),
}
Floats = NDArray[np.float32]


class Row(NamedTuple):
    """What one implementation needed."""

    name: str
    seconds: list[float]
    scores: list[float]


def main() -> None:
    """Prints the table."""
    title = f"suppression of one image to {MOST} boxes, IoU {IOU}; {machine()}"
    table = Table("anchors x classes", "scores above", "candidates", "what", title=title)
    table.add_column("ms", justify="right")
    table.add_column("same detections")
    interpreters = {peer: peer_python(*PEERS[peer]) for peer in PEERS}
    for anchors, classes in SIZES:
        boxes, scores = detector_output(anchors, classes)
        for threshold in THRESHOLDS:
            rows = [own_row(boxes, scores, threshold)]
            rows += [
                peer_row(peer, python, boxes, scores, threshold)
                for peer, python in interpreters.items()
                if python is not None
            ]
            for row in rows:
                table.add_row(
                    f"{anchors:,} x {classes}",
                    f"{threshold:g}",
                    f"{(scores > threshold).sum():,}",
                    row.name,
                    f"{statistics.median(row.seconds) * 1000:,.1f}" if row.seconds else "",
                    "yes" if same(row, rows[0]) else "",
                )
    show(table)


def same(left: Row, other: Row) -> bool:
    """Whether the scores of two rows are the same."""
    return len(left.scores) == len(other.scores) and np.allclose(
        left.scores, other.scores, atol=1e-6
    )


def detector_output(anchors: int, classes: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Returns boxes `[A, 4]` and scores `[A, C]` of twenty objects and of background."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 0.8, (anchors, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.02, 0.2, (anchors, 2))], axis=1)
    logits = rng.normal(-8, 1.5, (anchors, classes))
    objects = rng.integers(0, anchors, 20)
    for place in objects:
        near = rng.integers(0, anchors, anchors // 200)
        boxes[near] = boxes[place] + rng.normal(0, 0.01, (len(near), 4))
        logits[near, rng.integers(classes)] = rng.normal(0, 2, len(near))
    scores = 1 / (1 + np.exp(-logits))
    return boxes.astype(np.float32), scores.astype(np.float32)


def own_row(boxes: Floats, scores: Floats, threshold: float) -> Row:
    """Measures `batched_nms`, compiled."""

    @jax.jit
    def suppress(boxes: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        kept = batched_nms(boxes[None], scores[None], SearchLimits(threshold, IOU, MOST, MOST))
        return kept.scores[0], kept.count[0]

    arrays = jax.device_put((boxes, scores))
    kept, count = jax.block_until_ready(suppress(*arrays))
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        jax.block_until_ready(suppress(*arrays))
        seconds.append(time.perf_counter() - began)
    return Row("stillbox", seconds, np.asarray(kept)[: int(count)].tolist())


def peer_row(peer: str, python: Path, boxes: Floats, scores: Floats, threshold: float) -> Row:
    """Measures a peer in a process of its own."""
    words = (peer, str(threshold))
    try:
        measured = ask_peer(
            python, "suppression_peers.py", words, timeout=LONGEST, boxes=boxes, scores=scores
        )
    except subprocess.TimeoutExpired:
        return Row(f"{peer}: all rounds, not finished", [LONGEST], [])
    except subprocess.CalledProcessError:
        # The peer's message is above the table; torchvision for another build of torch has no NMS.
        return Row(f"{peer}: does not run here", [], [])
    return Row(**measured)


if __name__ == "__main__":
    main()
