"""The peer of `gpu.py`: torchvision's RetinaNet as PyTorch trains it fastest, by its own means.

    TORCH_PYTHON benchmarks/torch_gpu.py --side 800 --batch-size 48 --seconds 8 [--tiny]

AMP in bfloat16, channels last, `torch.compile` of backbone and heads, fused SGD, cuDNN's search for
the fastest kernels; matching, targets and losses are its own and have shapes that depend on the
data, so that they are not compiled. Noise with 8 boxes an image lies on the device. It needs torch
and torchvision and nothing of this project, and prints one line of JSON, the last of its output.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch
from torch_peer import torchvision_detection

_BOXES, _WARM_UP = 8, 4


def main() -> None:
    """Prints the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: small, few steps")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side = (2, 128) if arguments.tiny else (arguments.batch_size, arguments.side)
    seconds = 0.5 if arguments.tiny else arguments.seconds
    measured, began = None, time.perf_counter()
    while measured is None:
        try:
            measured = _measure(_prepare(device, batch, side), device, seconds)
        except torch.OutOfMemoryError:
            batch //= 2
        torch.cuda.empty_cache()
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    print(
        json.dumps(
            {
                "batch": batch,
                "images_per_second": batch / measured,
                "ms": 1e3 * measured,
                "compiling": time.perf_counter() - began - seconds,
                "memory": memory,
                "versions": {
                    "torch": torch.__version__,
                    "torchvision": sys.modules["torchvision"].__version__,
                },
            }
        )
    )


def _prepare(device: torch.device, batch: int, side: int) -> Callable[[], None]:
    """Returns a function that takes a step."""
    torch.manual_seed(0)
    network = torchvision_detection().retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=91, min_size=side, max_size=side
    )
    network = network.to(device, memory_format=torch.channels_last).train()
    network.backbone = torch.compile(network.backbone)
    network.head.classification_head.forward = torch.compile(
        network.head.classification_head.forward
    )
    network.head.regression_head.forward = torch.compile(network.head.regression_head.forward)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 1e-6, 0.9, weight_decay=1e-4, fused=True)
    images = list(torch.rand(batch, 3, side, side, device=device))
    corners = torch.rand(batch, _BOXES, 2, device=device) * side / 2
    sides = (torch.rand(batch, _BOXES, 2, device=device) * 0.45 + 0.05) * side
    boxes = torch.cat([corners, corners + sides], dim=-1).clamp(max=side)
    labels = torch.randint(1, 91, (batch, _BOXES), device=device)
    truths = [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=True)]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = sum(network(images, truths).values())
        loss.backward()
        optimizer.step()

    return step


def _measure(step: Callable[[], None], device: torch.device, seconds: float) -> float:
    """Returns the seconds of a step."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for _ in range(_WARM_UP):
        step()
    wait()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds or steps < _WARM_UP:
        step()
        wait()
        steps += 1
    return (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
