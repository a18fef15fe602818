"""What targets, losses and their gradients take in memory, by the rows that an image has for boxes.

    python benchmarks/retinanet.py --memory --side 640 --batch-size 8

It compiles the loss with its gradient by given predictions and asks the compiler; nothing runs, and
it does not matter how busy the machine is. If a float array of every anchor with every box of every
image were kept, temporary memory would grow by it from row to row of the table.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from measuring import random_batch
from rich.table import Table

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs, Predictions
from stillbox.models.one_stage.loss import batch_targets, matched_loss

_BOXES = (10, 100, 200)


def measure_memory(experiment: schema.Experiment, batch_size: int) -> Table:
    """Returns the table.

    Args:
        experiment: a recipe.
        batch_size: images.
    """
    model = experiment.model
    detector = build_detector(model, dtype=jnp.dtype(experiment.train.precision))
    images = jax.ShapeDtypeStruct((batch_size, *detector.image_shape, 3), jnp.float32)
    predictions = jax.eval_shape(lambda pixels: detector(pixels, train=False), images)
    anchors = detector.anchors

    def loss(predictions: Predictions, batch: Batch) -> jax.Array:
        output = matched_loss(model.loss, model, predictions, anchors, (), LossInputs(batch))
        return sum(output.terms.values(), jnp.zeros(()))

    side = "x".join(map(str, detector.image_shape))
    table = Table(title=f"memory of the losses, batch {batch_size}, {side}, {len(anchors)} anchors")
    table.add_column("rows for boxes", justify="right")
    for column in ("losses", "targets alone", "predictions", "anchors x boxes x batch"):
        table.add_column(f"{column}, MiB", justify="right")
    given = sum(
        math.prod(array.shape) * array.dtype.itemsize for array in jax.tree.leaves(predictions)
    )
    for boxes in _BOXES:
        batch = random_batch(batch_size, detector.image_shape, boxes, model.num_classes)
        losses = _temporary(jax.value_and_grad(loss), predictions, batch)
        targets = _temporary(lambda batch: batch_targets(batch, anchors, model), batch)
        every_pair = len(anchors) * boxes * batch_size * 4
        sizes = losses, targets, given, every_pair
        table.add_row(str(boxes), *(f"{size / 2**20:.0f}" for size in sizes))
    return table


def _temporary(function: Callable[..., Any], *arguments: Any) -> int:  # noqa: ANN401
    """Returns the bytes that a function needs beside its arguments and its result."""
    compiled = jax.jit(function).lower(*arguments).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)
