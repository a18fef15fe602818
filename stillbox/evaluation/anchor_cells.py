"""Boxes in cells of the feature maps: where anchors have their centres, and what a cell is.

No weight is made: a detector of shapes alone has its anchors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stillbox.evaluation.results import BoolArray, FloatArray, ImageTruth
from stillbox.experiment import schema
from stillbox.experiment.values import differences
from stillbox.inputs.resize import resized_size
from stillbox.models.anchors import anchors_per_location
from stillbox.models.build import abstract_detector
from stillbox.records.tile_grid import LEAST_TILE
from stillbox.references import Setting

Size = tuple[int, int]
Grid = tuple[FloatArray, FloatArray]
"""Rows and columns of the centres of a feature map's anchors, in pixels of the network input."""

_INSIDE = 0.01
"""A centre so near to the edge of a box, in pixels, is outside (`boxes/adaptive_matching.py`)."""
LEAST_CELLS = 2.0
"""Cells of the finest feature map that a box needs on each side; shorter ones are hardly learnt."""
# Sides that feature pyramids halve without a rest.
_STEP = 64
# An input that would have to be larger by this factor is a question of tiles.
_MUCH_LARGER = 4


def input_boxes(truth: ImageTruth, resizer: schema.Resizer) -> FloatArray:
    """Returns the boxes of an image, without crowds, in pixels of the network input."""
    size = truth.height, truth.width
    scale = np.divide(resized_size(size, resizer), size)
    return truth.boxes[~truth.is_crowd] * np.tile(scale, 2)


def anchor_grids(experiment: schema.Experiment) -> list[Grid]:
    """Returns the grids of a model with anchors, the finest first."""
    model, train = experiment.model, experiment.train
    stage = model.anchor_stage
    assert stage is not None
    detector: Any = abstract_detector(model, train.precision, train.quantization).module()
    shapes = detector.feature_shapes
    per_location = anchors_per_location(stage.anchors, len(shapes))
    numbers = [h * w * each for (h, w), each in zip(shapes, per_location, strict=True)]
    anchors = np.asarray(detector.anchors, np.float64) * np.tile(model.resizer.input_size, 2)
    centers = ((anchors[:, :2] + anchors[:, 2:]) / 2).round(3)
    maps = np.split(centers, np.cumsum(numbers)[:-1])
    grids = [(np.unique(each[:, 0]), np.unique(each[:, 1])) for each in maps]
    return sorted(grids, key=lambda grid: -len(grid[0]) * len(grid[1]))


def cell_side(grids: Sequence[Grid], resizer: schema.Resizer) -> float:
    """Returns the side of a cell of the finest feature map, in pixels; of its height and width."""
    sides = zip(resizer.input_size, grids[0], strict=True)
    return float(np.sqrt(np.prod([side / len(places) for side, places in sides])))


def has_center(boxes: FloatArray, grids: Sequence[Grid]) -> BoolArray:
    """Returns `[N]`, whether a centre of a grid lies in a box."""
    inside = np.zeros(len(boxes), np.bool_)
    for grid in grids:
        both = np.ones(len(boxes), np.bool_)
        for axis, places in enumerate(grid):
            low = np.searchsorted(places, boxes[:, axis] + _INSIDE, side="right")
            both &= low < np.searchsorted(places, boxes[:, axis + 2] - _INSIDE, side="left")
        inside |= both
    return inside


def larger_input(
    resizer: schema.Resizer, factor: float, tiles: schema.Tiles | None
) -> tuple[Size, str]:
    """Returns a network input that is larger by a factor, and the remedy that shows as much.

    Where images are cut into tiles, that is smaller tiles.
    """
    height, width = resizer.input_size
    if factor <= 1:
        return (height, width), ""
    tall = -(-int(np.ceil(height * factor)) // _STEP) * _STEP
    larger = resizer.with_height(tall)
    needed = larger.input_size if larger else (tall, -(-width * tall // height))
    if tiles is not None:
        return needed, f"{Setting('data.tiles.side', max(LEAST_TILE, int(tiles.side / factor)))}"
    if larger is None or factor > _MUCH_LARGER:
        return needed, "train and detect in tiles, which are reduced less"
    changes = differences(resizer, larger, "model.resizer")
    return needed, " ".join(str(Setting(path, value)) for path, _, value in changes)
