"""Trains a detector of torchvision from random weights, by the settings of its reference script.

    TORCH_PYTHON benchmarks/torch_training.py NETWORK COCO_FOLDER OUTPUT --minutes 5

Batch, optimizer, rates (scaled to one process), augmentations and the shape of the schedule follow
`references/detection/README.md`; the schedule ends with the minutes. Inputs have 320
pixels. Each evaluation writes `OUTPUT/MINUTES.json`, detections in COCO's format. It needs torch
and torchvision and nothing of this project.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image
from torchvision.models import detection
from torchvision.transforms import v2

_WARM_UP_STEPS = 1000
Example = tuple[Tensor, dict[str, Any]]


class Settings(NamedTuple):
    """What the reference script is given for a network."""

    batch: int
    rate: float
    """Of one process: a linear share of the published rate of eight."""
    decay: float
    augmentations: tuple[v2.Transform, ...]
    schedule: Callable[[float], float]
    """The factor of the rate, by the share of the training that is done."""
    options: dict[str, Any]


SETTINGS = {
    "ssdlite320_mobilenet_v3_large": Settings(
        24, 0.15 / 8, 4e-5, (v2.RandomIoUCrop(),), lambda t: (1 + math.cos(math.pi * t)) / 2, {}
    ),
    "retinanet_resnet50_fpn": Settings(
        2, 0.01 / 8, 1e-4, (), lambda t: 0.1 ** ((t > 16 / 26) + (t > 22 / 26)),
        {"min_size": 320, "max_size": 533},
    ),
}  # fmt: skip


class Images(Dataset[Example]):
    """A split of a folder in COCO's layout."""

    def __init__(self, folder: Path, split: str, transforms: v2.Transform) -> None:
        content = json.loads((folder / "annotations" / f"instances_{split}.json").read_text())
        self.images, self._folder = content["images"], folder / split
        self.slots = 1 + max(category["id"] for category in content["categories"])
        self._boxes: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in self.images}
        for annotation in content["annotations"]:
            self._boxes[annotation["image_id"]].append(annotation)
        self._transforms = transforms

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Example:
        facts = self.images[index]
        image = decode_image(str(self._folder / facts["file_name"]), ImageReadMode.RGB)
        rows = self._boxes[facts["id"]]
        corners = [
            [x, y, x + width, y + height] for x, y, width, height in (r["bbox"] for r in rows)
        ]
        boxes = torch.tensor(corners, dtype=torch.float32).reshape(-1, 4)
        size = image.shape[-2:]
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
            "labels": torch.tensor([row["category_id"] for row in rows], dtype=torch.int64),
        }
        pixels, target = self._transforms(tv_tensors.Image(image), target)
        return pixels, target | {"image_id": facts["id"]}


def batches(images: Images, size: int) -> Iterator[tuple[list[Tensor], list[dict[str, Any]]]]:
    """Yields shuffled batches, epoch after epoch."""
    loader = DataLoader(
        images, size, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True,
        collate_fn=lambda batch: tuple(map(list, zip(*batch, strict=True))),
    )  # fmt: skip
    while True:
        yield from loader


def detect(network: torch.nn.Module, images: Images) -> list[dict[str, Any]]:
    """Returns the detections of a split."""
    network.eval()
    results = []
    with torch.inference_mode():
        for pixels, target in (images[index] for index in range(len(images))):
            (result,) = network([pixels])
            columns = (result[name].tolist() for name in ("boxes", "labels", "scores"))
            for (left, top, right, bottom), label, score in zip(*columns, strict=True):
                box = [left, top, right - left, bottom - top]
                row = {"image_id": target["image_id"], "category_id": label}
                results.append(row | {"bbox": box, "score": score})
    network.train()
    return results


def main() -> None:
    """Trains until the minutes are over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=SETTINGS)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--evaluations", type=int, default=5)
    arguments = parser.parse_args()
    began, settings = time.perf_counter(), SETTINGS[arguments.network]
    scaled = v2.ToDtype(torch.float32, scale=True)
    augment = (*settings.augmentations, v2.RandomHorizontalFlip(), v2.SanitizeBoundingBoxes())
    train = Images(arguments.data, "train", v2.Compose([*augment, scaled]))
    val = Images(arguments.data, "val", v2.Compose([scaled]))
    network = getattr(detection, arguments.network)(
        weights=None, weights_backbone=None, num_classes=train.slots, **settings.options
    )
    rate, decay = settings.rate, settings.decay
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=decay)
    warm_up = min(_WARM_UP_STEPS, len(train) // settings.batch - 1)
    evaluated, losses = 0, list[float]()
    for step, (images, targets) in enumerate(batches(train, settings.batch)):
        done = (time.perf_counter() - began) / 60 / arguments.minutes
        if done * arguments.evaluations >= evaluated + 1:
            evaluated += 1
            results = detect(network, val)
            minutes = (time.perf_counter() - began) / 60
            (arguments.output / f"{minutes:.4f}.json").write_text(json.dumps(results))
        if done >= 1:
            last = sum(losses[-20:]) / len(losses[-20:])
            print(f"{step} steps, the loss fell from {losses[0]:.3f} to {last:.3f}")
            break
        warm = min(1.0, 0.001 + step / max(warm_up, 1))
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * settings.schedule(done)
        loss = sum(network(images, targets).values())
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise SystemExit(f"the loss of step {step} is {losses[-1]}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
