"""The peers of `ssd_resnet34.py`: train steps in PyTorch, one for each line of the input.

    TORCH_PYTHON benchmarks/torch_ssd.py INPUTS.npz --threads 2

Two networks: SSD ResNet-34 written plainly, and torchvision's `ssd300_vgg16` as it is. It needs
torch, torchvision and numpy and nothing of this project; `ssd_resnet34.py` starts it and writes the
inputs. The first line that it prints describes the peers. Every line that it reads names one of
them, which then takes a step, or the type of a matrix product; the answer is a line of JSON,
`{"seconds": 3.2}` or `{"gflops": 300.0}`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch_resnet34 import SsdResnet34, multibox_loss

WEIGHT_DECAY, MOMENTUM = 5e-4, 0.9
# So small that nothing can diverge: what the weights are is not measured.
RATE = 1e-6
# Images and kernels with their channels last: on CPUs 7 to 12 % less time in float32, a fifth to a
# third less in bfloat16, than as PyTorch has them by itself.
LAYOUT = torch.channels_last
PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Inputs:
    """A batch as either network wants it.

    Args:
        path: an npz with `images` `[B, H, W, 3]` in 0..255, `boxes` `[B, N, 4]` in 0..1 as
            `[ymin, xmin, ymax, xmax]`, `labels` `[B, N]` from 1, `classes` `[B, A]` and
            `codes` `[B, A, 4]`.
        count: how many of the images; None for all.
    """

    def __init__(self, path: str, count: int | None = None) -> None:
        with np.load(path) as arrays:
            values = {name: torch.from_numpy(arrays[name][:count]) for name in arrays.files}
        self.images = values["images"].permute(0, 3, 1, 2).contiguous()
        self.classes, self.codes = values["classes"].long(), values["codes"]
        height, width = self.images.shape[2:]
        boxes = values["boxes"][..., [1, 0, 3, 2]] * torch.tensor([width, height, width, height])
        self.unit_images = list(self.images / 255)
        pairs = zip(boxes, values["labels"].long(), strict=True)
        self.truths = [{"boxes": some, "labels": labels} for some, labels in pairs]


def ssd_resnet34() -> tuple[nn.Module, Callable[[Inputs], Tensor]]:
    """Returns the network and its loss, on given targets."""
    network = SsdResnet34().to(memory_format=LAYOUT)

    def loss(inputs: Inputs) -> Tensor:
        logits, codes = network(inputs.images.contiguous(memory_format=LAYOUT))
        with torch.autocast("cpu", enabled=False):
            return multibox_loss(logits, codes, inputs.classes, inputs.codes)

    return network, loss


def ssd300_vgg16() -> tuple[nn.Module, Callable[[Inputs], Tensor]]:
    """Returns torchvision's network and its own loss, matching included."""
    network = _torchvision().ssd300_vgg16(weights=None, weights_backbone=None)
    network = network.to(memory_format=LAYOUT)

    def loss(inputs: Inputs) -> Tensor:
        return sum(network(inputs.unit_images, inputs.truths).values())

    return network, loss


def _torchvision() -> Any:  # noqa: ANN401
    """Returns `torchvision.models.detection`, if need be without its compiled operators.

    A build for another torch (CUDA beside a CPU torch, say) cannot load them and then trips over
    their missing names. Training SSD calls none of them.
    """
    try:
        from torchvision.models import detection
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in ("nms", "qnms"):
            _STUBS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        from torchvision.models import detection
    return detection


# Operators live as long as their library.
_STUBS = torch.library.Library("torchvision", "FRAGMENT")


class Peer:
    """A network in training.

    Args:
        build: gives network and loss.
        precision: of the convolutions, by autocast.
        counted: counts the FLOPs of one of its images.
    """

    def __init__(
        self,
        build: Callable[[], tuple[nn.Module, Callable[[Inputs], Tensor]]],
        precision: str,
        counted: Inputs,
    ) -> None:
        torch.manual_seed(0)
        network, self._loss = build()
        network.train()
        self._precision = precision
        self._optimizer = torch.optim.SGD(_decayed(network), RATE, MOMENTUM, fused=True)
        parameters = list(network.parameters())
        self.described = {"parameters": sum(p.numel() for p in parameters), **self._count(counted)}

    def _count(self, inputs: Inputs) -> dict[str, int]:
        with FlopCounterMode(display=False) as forward:
            loss = self._loss(inputs)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        counts = forward.get_total_flops(), backward.get_total_flops()
        return {"forward_flops": counts[0], "backward_flops": counts[1]}

    def step(self, inputs: Inputs) -> float:
        """Takes a step and returns its seconds."""
        began = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        lower = self._precision == "bfloat16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
            loss = self._loss(inputs)
        loss.backward()
        self._optimizer.step()
        return time.perf_counter() - began


def _decayed(network: nn.Module) -> list[dict[str, Any]]:
    """Groups what is trained: all but batch norm decays."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    plain = {id(p) for norm in norms for p in norm.parameters()}
    trained = [p for p in network.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if id(p) not in plain], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if id(p) in plain], "weight_decay": 0.0},
    ]


def product_speed(dtype: torch.dtype) -> float:
    """Returns GFLOP/s of the best of a few large matrix products."""
    best = 0.0
    for size in (1024, 2048, 4096):
        matrix = torch.ones(size, size, dtype=dtype)
        for _ in range(4):
            began = time.perf_counter()
            matrix @ matrix
            best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


def build_peers(path: str, precisions: list[str]) -> dict[str, Peer]:
    """Returns the peers by name: a network and a precision."""
    one = Inputs(path, count=1)
    return {
        f"{build.__name__} {precision}": Peer(build, precision, one)
        for build in (ssd_resnet34, ssd300_vgg16)
        for precision in precisions
    }


def main() -> None:
    """Describes the peers, then answers line by line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", help="npz with the batch")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    peers = build_peers(arguments.inputs, arguments.precisions)
    inputs = Inputs(arguments.inputs)
    versions = {"torch": torch.__version__, "torchvision": sys.modules["torchvision"].__version__}
    described = {name: peer.described for name, peer in peers.items()}
    print(json.dumps({"versions": versions, "peers": described}), flush=True)
    for line in map(str.strip, sys.stdin):
        if line in PRODUCTS:
            answer = {"gflops": product_speed(PRODUCTS[line])}
        else:
            answer = {"seconds": peers[line].step(inputs)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
