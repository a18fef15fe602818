"""What the benchmarks of a training step share: the step itself, its FLOPs, the machine's peak."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from stillbox.boxes.structures import Batch
from stillbox.checking.operations import count_operations
from stillbox.devices.mesh import build_mesh
from stillbox.devices.process import (
    keep_freed_memory,
    keep_fusions_whole,
    own_processors,
    processor_name,
)
from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.one_stage.detector import OneStageDetector
from stillbox.models.variables import split_detector
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from stillbox.training.state import create_state

keep_fusions_whole()  # as every command, before the first program

BOXES = 8  # of each image, unless more are asked for; the other rows are padding


class TrainStep:
    """The compiled training step of an experiment, with a state and a batch on the device.

    Args:
        experiment: the recipe; precision, frozen parameters and all.
        batch_size: images of a step.
        boxes: of each image.
    """

    def __init__(self, experiment: schema.Experiment, batch_size: int, boxes: int = BOXES) -> None:
        keep_freed_memory()  # as every command does
        model, train = experiment.model, experiment.train
        dtype = jnp.dtype(train.precision)
        self.detector = build_detector(model, dtype=dtype, quantization=train.quantization)
        self.graph, params, stats = split_detector(self.detector)
        train = dataclasses.replace(train, batch_size=batch_size)
        mesh = build_mesh(batch_size, experiment.devices, parts=train.accumulation_steps)
        program = train_program(plan_training(dataclasses.replace(experiment, train=train), mesh))
        self.trainable = program.trainable
        self.function = program.function
        self.parameters = sum(params[path].size for path in self.trainable)
        state = create_state(
            params, stats, train, self.trainable, self.detector.initial_loss_state()
        )
        self.state = program.put_state(state)
        rows = experiment.data.train.max_boxes
        shape, classes = self.detector.image_shape, model.num_classes
        batch = random_batch(batch_size, shape, rows, classes, boxes)
        self.batch = program.put_batch(batch)
        began = time.perf_counter()
        self._compiled = program.lower().compile()
        self.compiling = time.perf_counter() - began

    @property
    def program(self) -> str:
        """The compiled program, as text."""
        return str(self._compiled.as_text())

    @property
    def temporary_bytes(self) -> int:
        """What a step takes beside its arguments and results, by the compiler."""
        return int(self._compiled.memory_analysis().temp_size_in_bytes)

    @property
    def counted_flops(self) -> float:
        """The FLOPs of a step, by the compiler."""
        return float(self._compiled.cost_analysis()["flops"])

    def dispatch(self) -> Any:  # noqa: ANN401
        """Starts a step and returns what it will have made."""
        self.state, metrics = self._compiled(self.state, self.batch)
        return self.state, metrics

    def run(self) -> float:
        """Takes a step and returns its seconds."""
        began = time.perf_counter()
        jax.block_until_ready(self.dispatch())
        return time.perf_counter() - began


def forward_flops(detector: OneStageDetector) -> int:
    """Returns the FLOPs of all convolutions for one image, counted in the program.

    A multiply-add is two; nothing but convolutions counts.
    """
    image = jax.ShapeDtypeStruct((1, *detector.image_shape, 3), jnp.float32)
    return count_operations(lambda images: detector(images, train=False), image)


def random_batch(
    size: int, shape: tuple[int, int], rows: int, classes: int, boxes: int = BOXES
) -> Batch:
    """Returns noise with some boxes in each image; padding has neither area nor weight.

    Args:
        size: B.
        shape: height and width.
        rows: N, of which all but `boxes` are padding.
        classes: how many there are.
        boxes: of each image.
    """
    rng = np.random.default_rng(0)
    corners, sides = rng.uniform(0, 0.5, (size, rows, 2)), rng.uniform(0.05, 0.5, (size, rows, 2))
    weights = np.zeros((size, rows), np.float32)
    weights[:, :boxes] = 1
    edges = np.concatenate([corners, corners + sides], axis=-1) * weights[..., None]
    return Batch(
        images=rng.uniform(0, 255, (size, *shape, 3)).astype(np.float32),
        boxes=edges.astype(np.float32),
        classes=rng.integers(0, classes, (size, rows), dtype=np.int32),
        weights=weights,
        true_sizes=np.tile(np.asarray(shape, np.int32), (size, 1)),
        records=np.arange(size, dtype=np.int32),
        image_weights=np.ones(size, np.float32),
    )


def peak(dtype: str = "float32") -> float:
    """Returns GFLOP/s of the best of a few large matrix products."""
    best = 0.0
    for size in (1024, 2048, 4096):
        matrix = jnp.ones((size, size), dtype)
        # The type of the result in which bfloat16 comes out fast on a CPU.
        product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
        product(matrix, matrix).block_until_ready()
        for _ in range(3):
            began = time.perf_counter()
            product(matrix, matrix).block_until_ready()
            best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


def machine() -> str:
    """Returns the processor's name, as far as it is known, and the cores in use."""
    return f"{own_processors()} cores of {processor_name() or 'an unknown processor'}"


def show(table: Table) -> None:
    """Prints a table, as wide as it needs where nobody says how wide a line is."""
    console = Console()
    Console(width=None if console.is_terminal else 140).print(table)
