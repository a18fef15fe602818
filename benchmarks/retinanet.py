"""RetinaNet's train step beside KerasHub's, with TensorFlow and with JAX, and torchvision's.

    python benchmarks/retinanet.py --peers [--keras-python PATH] [--torch-python PATH]
        [--recipe retinanet ...] [--set PATH=VALUE ...] [--side 320] [--batch-size 4] [--steps 7]
        [--warm-up 2] [--boxes 8] [--precisions float32]
    python benchmarks/retinanet.py --parts [--recipe ...] [--side ...] [--batch-size 4]
    python benchmarks/retinanet.py --memory [--recipe ...] [--side 640] [--batch-size 8]

It runs on the CPU, and all in turn: each round measures the peak of a matrix product and then takes
a step of each, ours here and the peers' in processes of their own that wait meanwhile, on as many
threads. The rounds of the warm-up do not count; seconds are the median of the others, the peak is
the fastest product of any framework in the run. FLOPs are counted in the convolutions of each
network, a multiply-add is two, and a step counts as three forward passes.

The batch is the same for all: noise with 8 boxes an image, or `--boxes`. All find their targets in
the step, by their own matching, and have their own losses. README.md says how the networks differ.

`--parts` says what our step spends outside its convolutions, see `step_parts.py`; `--memory` what
targets and losses take, see `loss_memory.py`.

The peers are no dependencies of this project: `--peers` makes environments that have them in the
cache folder, unless an option names a Python that does.
"""

import argparse
import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

# Before anything of jax starts a backend.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from comparing import Peers, add_arguments, compare, find_peers, own_row, peer_process
from loss_memory import measure_memory
from measuring import BOXES, TrainStep, machine, show
from step_parts import measure_parts

from stillbox.cli.overrides import changes_of
from stillbox.devices.process import own_processors, restart_with_large_pages
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve

_KERAS_BACKENDS = ("tensorflow", "jax")


def main() -> None:
    """Prints the table."""
    restart_with_large_pages()  # as every command does
    arguments = _parse()
    batch_size = arguments.batch_size
    print(f"{machine()}, jax {jax.__version__}, batch {batch_size}, {arguments.side} px")
    experiments = {
        (recipe, precision): _experiment(arguments, recipe, precision)
        for recipe in arguments.recipe
        for precision in arguments.precisions
    }
    if arguments.parts or arguments.memory:
        rounds = arguments.warm_up, arguments.steps
        for experiment in experiments.values():
            if arguments.memory:
                show(measure_memory(experiment, batch_size))
            if arguments.parts:
                show(measure_parts(experiment, batch_size, *rounds, arguments.boxes))
        return
    steps = {
        key: TrainStep(experiment, batch_size, arguments.boxes)
        for key, experiment in experiments.items()
    }
    rows = [own_row(f"stillbox {recipe}", key, steps[recipe, key]) for recipe, key in steps]
    products = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        inputs = Path(folder) / "inputs.npz"
        first = next(iter(steps))
        _write_inputs(inputs, steps[first], experiments[first].model, arguments.boxes)
        for command in _peer_commands(arguments, inputs):
            peers: Peers = stack.enter_context(peer_process(command))
            rows += peers.rows
            products |= peers.products
        compare(rows, products, arguments)
    for option in ("keras_python", "torch_python"):
        if not getattr(arguments, option):
            peer = option.replace("_", "-")
            print(f"missing: the peers of --{peer}; give it, or --peers")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, batch_size=4)
    parser.add_argument("--memory", action="store_true", help="what targets and losses take")
    parser.add_argument("--recipe", nargs="+", default=["retinanet"], help="or files")
    parser.add_argument("--side", type=int, default=320, help="of the square network input")
    parser.add_argument("--boxes", type=int, default=BOXES, help="of each image")
    parser.add_argument("--keras-python", help="a Python with keras-hub, tensorflow and jax")
    parser.add_argument("--torch-python", help="a Python with torch and torchvision")
    arguments = parser.parse_args()
    find_peers(arguments)
    arguments.precisions = arguments.precisions or ["float32"]
    return arguments


def _experiment(arguments: argparse.Namespace, recipe: str, precision: str) -> schema.Experiment:
    overrides = [f"train.precision={precision}", *arguments.set]
    experiment = resolve(recipe, changes_of(overrides)).experiment
    # Some resizers pad to a multiple of the coarsest stride, which would be 384 pixels for 320:
    # half as much again for us alone.
    resizer = schema.FixedShapeResizer(height=arguments.side, width=arguments.side)
    return replace(experiment, model=replace(experiment.model, resizer=resizer))


def _peer_commands(arguments: argparse.Namespace, inputs: Path) -> list[list[str]]:
    here = Path(__file__).parent
    options = [
        str(inputs),
        "--threads",
        str(own_processors()),
        "--precisions",
        *arguments.precisions,
    ]
    commands = []
    if arguments.keras_python:
        script = str(here / "keras_retinanet.py")
        for backend in _KERAS_BACKENDS:
            commands.append([arguments.keras_python, script, *options, "--backend", backend])
    if arguments.torch_python:
        commands.append([arguments.torch_python, str(here / "torch_retinanet.py"), *options])
    return commands


def _write_inputs(path: Path, step: TrainStep, model: schema.OneStage, boxes: int) -> None:
    """Writes our batch for the peers, with as many slots for classes as ours has."""
    batch = step.batch
    np.savez(
        path,
        images=batch.images,
        boxes=batch.boxes[:, :boxes],
        labels=batch.classes[:, :boxes] + model.background_class,
        slots=model.num_classes + model.background_class,
    )


if __name__ == "__main__":
    main()
