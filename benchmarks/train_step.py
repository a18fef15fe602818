"""Train steps per second of a recipe's model, beside the machine's matrix-product peak.

    python benchmarks/train_step.py [--recipe ssd_mobilenet_v1_300x300] [--side 300]
        [--batch-size 16] [--steps 5] [--precision float32] [--peer]

The real step: forward, targets, losses, backward, optimizer; synthetic images, already on the
device. The best of all steps counts, as does the best of all products, which are measured before
and after the steps: on a shared machine the peak moves. FLOPs are the model's: a multiply-add is
two, the backward pass costs twice the forward pass, and only convolutions count.
The peer is the same step with the convolutions that XLA chooses by itself.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from stillbox.devices.mesh import data_mesh, put_batch, put_everywhere
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.inputs.batch import Batch
from stillbox.models.build import build_detector
from stillbox.models.detector import Detector
from stillbox.models.variables import split_detector
from stillbox.training.state import create_state
from stillbox.training.step import make_train_step


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="ssd_mobilenet_v1_300x300")
    parser.add_argument("--side", type=int, help="of the square network input; default: its own")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--peer", action="store_true", help="also XLA's own lowering: slow")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    experiment = _experiment(arguments)
    side = experiment.model.resizer.input_size[0]
    batch = f"batch {arguments.batch_size}"
    table = Table(title=f"{arguments.recipe}, {side} px, {arguments.precision}, {batch}, {device}")
    for column in ("step", "s", "images/s", "GFLOP/s", "of the peak", "compiling, s"):
        table.add_column(column, justify="right")
    runs: dict[str, Callable[..., Any] | None] = {"stillbox": None}
    if arguments.peer:
        runs["plain lowering"] = _plain
    peak = _peak()
    measured = {name: _measure(experiment, arguments, patch) for name, patch in runs.items()}
    peak = max(peak, _peak())
    for name, (seconds, compiling, flops) in measured.items():
        speed = flops / seconds / 1e9
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{arguments.batch_size / seconds:.1f}",
            f"{speed:.0f}",
            f"{speed / peak:.0%}",
            f"{compiling:.0f}",
        )
    table.add_row("float32 matrix product", "", "", f"{peak:.0f}", "100%", "")
    Console().print(table)


def _experiment(arguments: argparse.Namespace) -> schema.Experiment:
    overrides = [f"train.precision={arguments.precision}"]
    if arguments.side:
        sides = ("height", "width")
        overrides += [f"model.resizer.{name}={arguments.side}" for name in sides]
    return resolve(arguments.recipe, overrides).experiment


def _measure(
    experiment: schema.Experiment,
    arguments: argparse.Namespace,
    patch: Callable[..., Any] | None,
) -> tuple[float, float, float]:
    """Returns the seconds of the best step, those of compiling, and the FLOPs of a step."""
    detector = build_detector(experiment.model, dtype=jnp.dtype(arguments.precision))
    graph, params, stats = split_detector(detector)
    trained = frozenset(params)
    mesh = data_mesh(arguments.batch_size)
    state = put_everywhere(create_state(params, stats, experiment.train, trained), mesh)
    batch = put_batch(_batch(arguments.batch_size, detector.image_shape), mesh)
    step = make_train_step(graph, detector.anchors, experiment.model, experiment.train, trained)
    began = time.perf_counter()
    with mock.patch.object(jax.lax, "platform_dependent", patch or jax.lax.platform_dependent):
        compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    compiling, best = time.perf_counter() - began, float("inf")
    for _ in range(arguments.steps):
        began = time.perf_counter()
        state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))
        best = min(best, time.perf_counter() - began)
    return best, compiling, 3 * arguments.batch_size * 2 * _multiply_adds(detector)


def _plain(*arrays: jax.Array, default: Callable[..., Any], **_: Any) -> Any:  # noqa: ANN401
    """Stands in for `jax.lax.platform_dependent` and always takes the form of other platforms."""
    return default(*arrays)


def _multiply_adds(detector: Detector) -> int:
    """Returns the multiply-adds of all convolutions for one image, counted in the program."""
    image = jax.ShapeDtypeStruct((1, *detector.image_shape, 3), jnp.float32)
    with mock.patch.object(jax.lax, "platform_dependent", _plain):
        program = jax.make_jaxpr(lambda images: detector(images, train=False))(image)
    return sum(map(_of_convolution, _equations(program.jaxpr)))


def _equations(program: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yields the equations of a program and of all programs inside it."""
    for equation in program.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                yield from _equations(inner)


def _of_convolution(equation: Any) -> int:  # noqa: ANN401
    if equation.primitive.name != "conv_general_dilated":
        return 0
    _, kernel = (variable.aval.shape for variable in equation.invars)
    # Kernels are HWIO, and in a depthwise one there is one input a group.
    return math.prod(equation.outvars[0].aval.shape) * math.prod(kernel[:3])


def _batch(size: int, shape: tuple[int, int]) -> Batch:
    rng = np.random.default_rng(0)
    low, high = np.split(rng.uniform(0, 0.5, (size, 100, 4)), 2, axis=-1)
    weights = np.zeros((size, 100), np.float32)
    weights[:, :8] = 1
    return Batch(
        images=rng.uniform(0, 255, (size, *shape, 3)).astype(np.float32),
        boxes=np.concatenate([low, low + high], axis=-1).astype(np.float32),
        classes=rng.integers(0, 90, (size, 100), dtype=np.int32),
        weights=weights,
        true_sizes=np.tile(np.asarray(shape, np.int32), (size, 1)),
        records=np.arange(size, dtype=np.int32),
        image_weights=np.ones(size, np.float32),
    )


def _peak() -> float:
    """Returns GFLOP/s of the best of a few large float32 matrix products."""
    best = 0.0
    for size in (1024, 2048, 4096):
        matrix = jnp.ones((size, size), jnp.float32)
        product = jax.jit(jnp.matmul)
        product(matrix, matrix).block_until_ready()
        for _ in range(3):
            began = time.perf_counter()
            product(matrix, matrix).block_until_ready()
            best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


if __name__ == "__main__":
    main()
