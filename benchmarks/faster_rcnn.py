"""Faster R-CNN's train step and inference beside torchvision's `fasterrcnn_resnet50_fpn`.

    python benchmarks/faster_rcnn.py --peers [--inference] [--side 640]
        [--batch-size 2] [--steps 7] [--warm-up 2] [--precisions float32]
    python benchmarks/faster_rcnn.py --recipe NAME [--set PATH=VALUE ...] ...
    python benchmarks/faster_rcnn.py --memory [--side 640] [--batch-size 2]

It runs on the CPU, and both in turn, as `retinanet.py` does. Without `--recipe` ours is the nearest
to torchvision's network: a pyramid of ResNet-50, RoIAlign, two fully connected layers of 1024.
README.md says how they differ. FLOPs are counted in convolutions and fully connected layers, a
multiply-add is two, and a train step counts as three forward passes.

`--memory` says what the losses take, see `two_stage_memory.py`. The peer is no dependency of this
project: `--peers` makes an environment that has it in the cache folder, unless `--torch-python`
names a Python that does.
"""

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# Before anything of jax starts a backend.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from comparing import Peers, Row, add_arguments, compare, find_peers, own_row, peer_process
from measuring import BOXES, TrainStep, machine, random_batch, show
from two_stage_memory import measure_memory

from stillbox.checking.operations import count_operations
from stillbox.cli.overrides import changes_of
from stillbox.devices.process import keep_freed_memory, own_processors, restart_with_large_pages
from stillbox.evaluation.program import predict_program
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from stillbox.models.two_stage.detector import FasterRcnnDetector
from stillbox.models.variables import split_detector

# What is like torchvision's, made out of a recipe with the same backbone and optimiser.
_BASE = "ssd_resnet50_v1_fpn_640x640"
_NEAREST = (
    "model={kind: faster_rcnn, num_classes: 90, freeze_batch_norm: false}",
    "model.backbone={kind: resnet_v1, depth: 50}",
    "model.neck={kind: fpn, min_level: 2, max_level: 6}",
    "model.neck.conv={activation: none, batch_norm: null}",
    "model.proposals={depth: 256, clip_anchors: true}",
    "model.proposals.anchors={kind: multiscale, min_level: 2, max_level: 6, anchor_scale: 8.0}",
    "model.proposals.anchors.scales_per_octave=1",
    "model.boxes.crop={kind: roi_align}",
    "model.boxes.head={kind: fully_connected, conv: {activation: relu, batch_norm: null}}",
    "model.boxes.postprocessing.nms={score_threshold: 0.0, iou_threshold: 0.5, max_total: 100}",
)


class Inference:
    """The program that finds boxes, with fresh weights and noise.

    Args:
        experiment: the recipe.
        batch_size: images.
    """

    def __init__(self, experiment: schema.Experiment, batch_size: int) -> None:
        keep_freed_memory()  # as every command does
        self.detector = build_detector(experiment.model)
        _, params, stats = split_detector(self.detector)
        self.parameters = sum(array.size for array in params.values())
        batch = random_batch(batch_size, self.detector.image_shape, BOXES, 1)
        self._batch = batch.images, batch.true_sizes
        self._detect = predict_program(experiment, batch_size=batch_size).bind(params, stats)

    def run(self) -> float:
        """Finds the boxes of the batch and returns the seconds."""
        began = time.perf_counter()
        jax.block_until_ready(self._detect(*self._batch))
        return time.perf_counter() - began


def main() -> None:
    """Prints the table."""
    restart_with_large_pages()  # as every command does
    arguments = _parse()
    print(
        f"{machine()}, jax {jax.__version__}, batch {arguments.batch_size}, {arguments.side} px, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    experiments = {p: _experiment(arguments, p) for p in arguments.precisions}
    first = experiments[arguments.precisions[0]]
    if arguments.memory:
        show(measure_memory(first.model, arguments.batch_size))
        return
    rows = [_own_row(arguments, p, experiment) for p, experiment in experiments.items()]
    products = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        inputs = Path(folder) / "inputs.npz"
        _write_inputs(inputs, first.model, arguments.batch_size)
        if arguments.torch_python:
            peers: Peers = stack.enter_context(peer_process(_peer_command(arguments, inputs)))
            rows += peers.rows
            products |= peers.products
        title, passes = ("inference", 1) if arguments.inference else ("train step", 3)
        compare(rows, products, arguments, title, passes)
    if not arguments.torch_python:
        print("missing: the peer; give --peers or --torch-python")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, batch_size=2)
    parser.add_argument("--inference", action="store_true", help="boxes, no training")
    parser.add_argument("--memory", action="store_true", help="what the losses take")
    parser.add_argument("--recipe", help="or a file")
    parser.add_argument("--side", type=int, default=640, help="of the square network input")
    parser.add_argument("--torch-python", help="a Python with torch and torchvision")
    arguments = parser.parse_args()
    find_peers(arguments)
    arguments.precisions = arguments.precisions or ["float32"]
    return arguments


def _experiment(arguments: argparse.Namespace, precision: str) -> schema.Experiment:
    nearest = () if arguments.recipe else _NEAREST
    side, step = arguments.side, "evaluation" if arguments.inference else "train"
    resizer = f"model.resizer={{kind: fixed_shape, height: {side}, width: {side}}}"
    overrides = [*nearest, resizer, f"{step}.precision={precision}", *arguments.set]
    return resolve(arguments.recipe or _BASE, changes_of(overrides)).experiment


def _own_row(arguments: argparse.Namespace, precision: str, experiment: schema.Experiment) -> Row:
    name = f"stillbox {arguments.recipe or 'faster_rcnn resnet50 fpn'}"
    model = experiment.model
    if arguments.inference:
        step: Any = Inference(experiment, arguments.batch_size)
        crops = model.proposals.max_proposals
    else:
        step = TrainStep(experiment, arguments.batch_size)
        crops = model.training_crops
    return own_row(name, precision, step, _forward_flops(step.detector, crops))


def _forward_flops(detector: FasterRcnnDetector, crops: int) -> int:
    """Returns the FLOPs of one image with so many crops; reading the crops counts nothing."""
    stage = detector.model.boxes
    assert stage is not None
    image = jax.ShapeDtypeStruct((1, *detector.image_shape, 3), jnp.float32)
    sizes = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    side = stage.crop.output_size
    crop = jax.ShapeDtypeStruct((crops, side, side, detector.neck.channels[0]), detector.dtype)

    def first(images: jax.Array, sizes: jax.Array) -> Any:  # noqa: ANN401
        maps = detector.features(images, sizes, train=False)
        return detector.predict_proposals(maps, sizes, train=False)

    def second(crops: jax.Array) -> Any:  # noqa: ANN401
        return detector.box_predictor(detector.box_head(crops, train=False), train=False)

    return (
        count_operations(first, image, sizes)
        + count_operations(second, crop)
        + count_operations(second, crop, primitive="dot_general")
    )


def _peer_command(arguments: argparse.Namespace, inputs: Path) -> list[str]:
    script = str(Path(__file__).parent / "torch_faster_rcnn.py")
    options = ["--threads", str(own_processors()), "--precisions", *arguments.precisions]
    inference = ["--inference"] if arguments.inference else []
    return [arguments.torch_python, script, str(inputs), *options, *inference]


def _write_inputs(path: Path, model: schema.FasterRcnn, batch_size: int) -> None:
    """Writes our batch for the peer, and our numbers of boxes; slot 0 is the background."""
    shape = model.resizer.input_size
    batch = random_batch(batch_size, shape, BOXES, model.num_classes)
    np.savez(
        path,
        images=batch.images,
        boxes=batch.boxes,
        labels=batch.classes + 1,
        slots=1 + model.num_classes,
        proposals=np.full(batch_size, model.proposals.max_proposals),
        sampled=np.full(batch_size, model.training_crops),
    )


if __name__ == "__main__":
    main()
