"""Inference by torchvision's networks; run by `inference.py` in their environment.

    python inference_peers.py NETWORK BATCH_SIZE ROUNDS SET.npz

Prints one JSON object: images a second from arrays and from files, and detections in an image.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image, read_file

SIDES = {
    "ssdlite320_mobilenet_v3_large": 320,
    "ssd300_vgg16": 300,
    "retinanet_resnet50_fpn": 640,
}
SCORES_ABOVE = 0.05


def main() -> None:
    """Prints the rates of a network."""
    name, batch_size, rounds, path = sys.argv[1:]
    with np.load(Path(path)) as content:
        paths = content["paths"].tolist()
    side = SIDES[name]
    # RetinaNet resizes to 800 pixels unless told otherwise, and random scores of an SSD are above
    # its threshold.
    options = {"min_size": side, "max_size": side} if name.startswith("retinanet") else {}
    options["score_thresh"] = SCORES_ABOVE
    torch.manual_seed(0)
    build = getattr(torchvision.models.detection, name)
    network = build(weights=None, weights_backbone=None, **options).eval()
    small = [resized(read(path), side) for path in paths]

    def detect(images: Iterator[Tensor]) -> int:
        detections, batch = 0, []
        with torch.inference_mode():
            for image in images:
                batch.append(image)
                if len(batch) == int(batch_size):
                    detections += sum(len(result["scores"]) for result in network(batch))
                    batch = []
            return detections + sum(
                len(result["scores"]) for result in (network(batch) if batch else [])
            )

    def files() -> int:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return detect(iter(pool.map(read, paths)))

    ways = {"arrays": lambda: detect(iter(small)), "files": files}
    rates = {way: len(paths) / seconds(run, int(rounds)) for way, run in ways.items()}
    detections = files() / len(paths)
    title = f"torchvision {torchvision.__version__} {name}"
    print(json.dumps({"name": title, **rates, "detections": detections}))


def read(path: str) -> Tensor:
    """Returns the pixels `[3, H, W]` of a file, 0 to 1."""
    return decode_image(read_file(path), mode=ImageReadMode.RGB).float() / 255


def resized(image: Tensor, side: int) -> Tensor:
    """Returns a square image."""
    return torch.nn.functional.interpolate(image[None], (side, side), mode="bilinear")[0]


def seconds(run: Callable[[], object], rounds: int) -> float:
    """Returns the median of some rounds, after one that does not count."""
    run()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
