"""The train step of an SSD beside the same network in PyTorch.

    python benchmarks/ssd_resnet34.py --peers [--recipe ssd_resnet34] [--set PATH=VALUE]
        [--torch-python PATH] [--batch-size 8] [--steps 7] [--warm-up 2]
        [--precisions float32 bfloat16]
    python benchmarks/ssd_resnet34.py --parts [--recipe ...] [--batch-size 8] [--steps 7]

SSD ResNet-34 has torchvision's `ssd300_vgg16` beside it too. The other recipe is
`ssd_mobilenet_v1_300x300`, with 16 images if nothing else is said.

It runs on the CPU, and all in turn: each round measures the peak of a matrix product and then takes
a step of each, ours here and the peers' in a process of PyTorch's that waits meanwhile, on as many
threads. The rounds of the warm-up do not count; seconds are the median of the others, the peak is
the fastest product of either framework in the run. FLOPs are counted in convolutions, a
multiply-add is two, and a step counts as three forward passes. It does a little less: nobody needs
the gradient by the pixels, and the recipe freezes the stem and one more convolution. PyTorch's
counter, which knows that, is shown too.

The batch is the same for all: noise with 8 boxes an image. Ours finds its targets in the step, from
as many rows as the recipe has; the same network in PyTorch gets them ready-made; torchvision does
its own matching. All decay and update their weights, and freeze what the recipe freezes.

`--parts` says what our step spends outside its convolutions, see `step_parts.py`.

The peers are no dependencies of this project: `--peers` makes environments that have them in the
cache folder, unless an option names a Python that does.
"""

import argparse
import os
import tempfile
from pathlib import Path

# Before anything of jax starts a backend.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from comparing import PRECISIONS, add_arguments, compare, find_peers, own_row, peer_process
from measuring import BOXES, TrainStep, machine, show
from step_parts import measure_parts

from stillbox.cli.overrides import changes_of
from stillbox.devices.process import own_processors, restart_with_large_pages
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.one_stage.loss import batch_targets

# Program of the peers and images of a step.
_RECIPES = {
    "ssd_resnet34": ("torch_ssd.py", 8),
    "ssd_mobilenet_v1_300x300": ("torch_ssd_mobilenet.py", 16),
}


def main() -> None:
    """Prints the table."""
    restart_with_large_pages()  # as every command does
    arguments = _parse()
    experiments = {
        precision: resolve(
            arguments.recipe, changes_of([f"train.precision={precision}", *arguments.set])
        ).experiment
        for precision in arguments.precisions
    }
    print(f"{machine()}, jax {jax.__version__}, batch {arguments.batch_size}, 300 px")
    if arguments.parts:
        rounds = arguments.warm_up, arguments.steps
        for experiment in experiments.values():
            show(measure_parts(experiment, arguments.batch_size, *rounds))
        return
    steps = {
        key: TrainStep(experiment, arguments.batch_size) for key, experiment in experiments.items()
    }
    rows = [own_row(f"stillbox {arguments.recipe}", key, step) for key, step in steps.items()]
    if not arguments.torch_python:
        compare(rows, {}, arguments)
        print("missing: the peers in PyTorch; give --peers or --torch-python")
        return
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        first = arguments.precisions[0]
        _write_inputs(inputs, steps[first], experiments[first].model)
        script = Path(__file__).with_name(_RECIPES[arguments.recipe][0])
        command = [
            arguments.torch_python,
            str(script),
            str(inputs),
            "--threads",
            str(own_processors()),
        ]
        command += ["--precisions", *arguments.precisions]
        with peer_process(command) as peers:
            compare(rows + peers.rows, peers.products, arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, batch_size=None)
    parser.add_argument("--recipe", choices=tuple(_RECIPES), default="ssd_resnet34")
    parser.add_argument("--torch-python", help="a Python with torch and torchvision")
    arguments = parser.parse_args()
    find_peers(arguments)
    arguments.batch_size = arguments.batch_size or _RECIPES[arguments.recipe][1]
    arguments.precisions = arguments.precisions or list(PRECISIONS)[: 1 if arguments.parts else 2]
    return arguments


def _write_inputs(path: Path, step: TrainStep, model: schema.OneStage) -> None:
    """Writes our batch and its targets for the peers."""
    anchors, batch = step.detector.anchors, step.batch
    targets = jax.jit(lambda batch: batch_targets(batch, anchors, model))(batch)
    np.savez(
        path,
        images=batch.images,
        boxes=batch.boxes[:, :BOXES],
        # Slot 0 is the background.
        labels=batch.classes[:, :BOXES] + 1,
        slots=model.num_classes + 1,
        classes=np.argmax(targets.class_targets, axis=-1),
        codes=targets.box_targets,
    )


if __name__ == "__main__":
    main()
