"""Networks of PyTorch's in training, as peers of a benchmark.

It needs torch, torchvision and numpy and nothing of this project.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from answering import product_speed, serve
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

MOMENTUM = 0.9
# A rate so small that nothing can diverge: what the weights are is not measured.
RATE = 1e-6
# Images and kernels with their channels last: on CPUs 7 to 12 % less time in float32, a fifth to a
# third less in bfloat16, than as PyTorch has them by itself.
LAYOUT = torch.channels_last
PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Inputs:
    """A batch as torchvision's networks want it.

    Args:
        path: an npz with `images` `[B, H, W, 3]` in 0..255, `boxes` `[B, N, 4]` in 0..1 as
            `[ymin, xmin, ymax, xmax]`, `labels` `[B, N]`, the slot of each box, and `slots`, how
            many of them there are. More are allowed, and kept in `arrays`.
        count: how many of the images; None for all.
    """

    def __init__(self, path: str, count: int | None = None) -> None:
        with np.load(path) as arrays:
            self.slots = int(arrays["slots"])
            names = [name for name in arrays.files if name != "slots"]
            self.arrays = {name: torch.from_numpy(arrays[name][:count]) for name in names}
        self.images = self.arrays["images"].permute(0, 3, 1, 2).contiguous()
        height, width = self.images.shape[2:]
        scale = torch.tensor([width, height, width, height])
        boxes = self.arrays["boxes"][..., [1, 0, 3, 2]] * scale
        self.unit_images = list(self.images / 255)
        pairs = zip(boxes, self.arrays["labels"].long(), strict=True)
        self.truths = [{"boxes": some, "labels": labels} for some, labels in pairs]


Loss = Callable[[Inputs], Tensor]
Build = Callable[[Inputs], tuple[nn.Module, Loss]]


def own_loss(network: nn.Module) -> tuple[nn.Module, Loss]:
    """Returns a network of torchvision's and its own loss, matching included."""
    network = network.to(memory_format=LAYOUT)

    def loss(inputs: Inputs) -> Tensor:
        return sum(network(inputs.unit_images, inputs.truths).values())

    return network, loss


def loss_on_targets(network: nn.Module, function: Callable[..., Tensor]) -> tuple[nn.Module, Loss]:
    """Returns a network and its loss in float32, on targets that are there.

    Args:
        network: maps pixels to logits `[B, A, S]` and codes `[B, A, 4]`.
        function: of these and the arrays `classes` `[B, A]` and `codes` `[B, A, 4]` of the inputs.
    """
    network = network.to(memory_format=LAYOUT)

    def loss(inputs: Inputs) -> Tensor:
        logits, codes = network(inputs.images.contiguous(memory_format=LAYOUT))
        classes, true_codes = inputs.arrays["classes"].long(), inputs.arrays["codes"]
        with torch.autocast("cpu", enabled=False):
            return function(logits, codes, classes, true_codes)

    return network, loss


def torchvision_detection() -> Any:  # noqa: ANN401
    """Returns `torchvision.models.detection`, if need be without its compiled operators.

    A build for another torch (CUDA beside a CPU torch, say) cannot load them and then trips over
    their missing names. Training SSD or RetinaNet calls none of them.
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
        weight_decay: of all but batch norm.
        counted: images to count the FLOPs of.
        inference: whether a step is no training, but finds boxes.
    """

    def __init__(
        self,
        build: Build,
        precision: str,
        weight_decay: float,
        counted: Inputs,
        *,
        inference: bool = False,
    ) -> None:
        torch.manual_seed(0)
        network, self._loss = build(counted)
        self._network = network.train(not inference)
        self._inference = inference
        self._precision = precision
        groups = _decayed(network, weight_decay)
        self._optimizer = torch.optim.SGD(groups, RATE, MOMENTUM, fused=True)
        trained = sum(p.numel() for group in groups for p in group["params"])
        self.described = {"parameters": trained, "precision": precision, **self._count(counted)}

    def _count(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the FLOPs of one image."""
        images = len(inputs.images)
        if self._inference:
            with FlopCounterMode(display=False) as forward, torch.no_grad():
                self._network(inputs.unit_images)
            return {"counted": ["forward"], "forward": forward.get_total_flops() // images}
        with FlopCounterMode(display=False) as forward:
            loss = self._loss(inputs)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        counts = [counter.get_total_flops() // images for counter in (forward, backward)]
        return {"counted": ["forward", "backward"], "forward": counts[0], "backward": counts[1]}

    def step(self, inputs: Inputs) -> float:
        """Takes a step and returns its seconds."""
        if self._inference:
            return self._infer(inputs)
        began = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        lower = self._precision == "bfloat16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
            loss = self._loss(inputs)
        loss.backward()
        self._optimizer.step()
        return time.perf_counter() - began

    def _infer(self, inputs: Inputs) -> float:
        lower = self._precision == "bfloat16"
        began = time.perf_counter()
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
            self._network(inputs.unit_images)
        return time.perf_counter() - began


def _decayed(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups what is trained: all but batch norm decays."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    plain = {id(p) for norm in norms for p in norm.parameters()}
    trained = [p for p in network.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if id(p) not in plain], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) in plain], "weight_decay": 0.0},
    ]


def _matrix_product(precision: str, side: int) -> Callable[[], object]:
    matrix = torch.ones(side, side, dtype=PRODUCTS[precision])
    return lambda: matrix @ matrix


def run_peers(networks: dict[str, Build], weight_decay: float) -> None:
    """Reads the command line, describes the peers, then answers line by line.

    Args:
        networks: what to train, by the name that the table shows.
        weight_decay: of all but batch norm.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs", help="npz with the batch, see `Inputs`")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precisions", nargs="+", default=list(PRODUCTS))
    parser.add_argument("--inference", action="store_true", help="boxes, no training")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # Two: a batch norm refuses a single value.
    few, inputs = Inputs(arguments.inputs, count=2), Inputs(arguments.inputs)
    peers = {
        f"{name} {precision}": (
            name,
            Peer(build, precision, weight_decay, few, inference=arguments.inference),
        )
        for name, build in networks.items()
        for precision in arguments.precisions
    }
    answers: dict[str, Callable[[], float]] = {
        f"PyTorch {p}": partial(product_speed, partial(_matrix_product, p))
        for p in arguments.precisions
    }
    described = {
        "versions": {
            name: sys.modules[name].__version__
            for name in ("torch", "torchvision")
            if name in sys.modules
        },
        "peers": [peer.described | {"name": name} for name, peer in peers.values()],
        "products": list(answers),
    }
    answers |= {key: partial(peer.step, inputs) for key, (_, peer) in peers.items()}
    serve(described, answers)
