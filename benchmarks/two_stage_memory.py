"""What the losses of two stages take in memory, by the anchors and the rows for boxes.

    python benchmarks/faster_rcnn.py --memory --side 640 --batch-size 2

It compiles everything behind the feature maps, with its gradient, and asks the compiler; nothing
runs, and it does not matter how busy the machine is. Anchors are made more by further sizes at each
location. If a float array of every anchor with every box of every image were kept, temporary memory
would grow by it from row to row of the table.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from measuring import random_batch
from rich.table import Table

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs
from stillbox.models.two_stage.detector import FasterRcnnDetector
from stillbox.models.variables import bind_detector, split_detector

_BOXES = (10, 100, 200)
_SIZES = (1, 3)


def measure_memory(model: schema.FasterRcnn, batch_size: int) -> Table:
    """Returns the table.

    Args:
        model: with anchors of several scales.
        batch_size: images.
    """
    side = "x".join(map(str, model.resizer.input_size))
    table = Table(title=f"memory of the losses, batch {batch_size}, {side}")
    for column in ("anchors", "rows for boxes"):
        table.add_column(column, justify="right")
    for column in ("both stages", "first stage alone", "anchors x boxes x batch"):
        table.add_column(f"{column}, MiB", justify="right")
    for sizes in _SIZES:
        anchors = replace(model.proposals.anchors, scales_per_octave=sizes)
        both = replace(model, proposals=replace(model.proposals, anchors=anchors))
        detectors = [build_detector(experiment) for experiment in (both, replace(both, boxes=None))]
        count = len(detectors[0].anchors)
        for boxes in _BOXES:
            batch = random_batch(batch_size, detectors[0].image_shape, boxes, model.num_classes)
            needed = [_temporary(detector, batch) for detector in detectors]
            figures = *needed, count * boxes * batch_size * 4
            table.add_row(f"{count:,}", str(boxes), *(f"{size / 2**20:.0f}" for size in figures))
    return table


def _temporary(detector: FasterRcnnDetector, batch: Batch) -> int:
    """Returns the bytes that losses and gradients need beside arguments and results."""
    graph, params, stats = split_detector(detector)
    channels = detector.neck.channels
    maps = tuple(
        jax.ShapeDtypeStruct((len(batch.boxes), *shape, width), jnp.float32)
        for shape, width in zip(detector.feature_shapes, channels, strict=True)
    )

    def loss(params: Any, maps: Any, batch: Batch) -> jax.Array:  # noqa: ANN401
        bound = bind_detector(graph, params, stats)
        with mock.patch.object(type(bound), "features", lambda *_, **__: maps):
            output = bound.loss(LossInputs(batch, key=jax.random.key(0)))
        return sum(output.terms.values(), jnp.float32(0))

    gradient: Callable[..., Any] = jax.grad(loss, argnums=(0, 1))
    compiled = jax.jit(gradient).lower(params, maps, batch).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)
