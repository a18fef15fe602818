"""Checks of an experiment with tiles count its tiles in boxes, steps and memory."""

from dataclasses import replace

import numpy as np
import pytest

from stillbox.checking.anchors import examine_anchors
from stillbox.checking.config import records_findings
from stillbox.checking.data import check_records, read_truth
from stillbox.checking.memory_estimate import Sizes, estimate
from stillbox.experiment import schema
from stillbox.inputs.memory import MOST_RECENT
from stillbox.records.source import ExampleSource
from tests.inputs.helpers import example, write

TILES = schema.Tiles(side=40, overlap=0.25)
# In pixels of 70 x 100: small in a corner, in the middle of all tiles, and longer than a tile.
BOXES = [[0.1, 0.1, 0.2, 0.2], [0.45, 0.4, 0.55, 0.5], [0.1, 0.1, 0.2, 0.9]]


@pytest.fixture
def records(tmp_path):
    """Two images in 2 x 3 tiles each, which begin at rows 0, 30 and columns 0, 30, 60."""
    return write(tmp_path, [example(number, BOXES, size=(70, 100)) for number in range(2)])


def test_boxes_are_read_as_tiles_have_them(records):
    source = ExampleSource(records.paths)
    truth = read_truth(source, schema.FixedShapeResizer(), tiles=TILES)
    # Rows 31.5 to 38.5 and columns 40 to 50 are in the tiles of both rows and of the second column.
    # Columns 10 to 90 are cut in three; the first row alone has rows 7 to 14.
    assert np.diff(truth.starts).tolist() == [2, 2, 1, 0, 1, 0] * 2
    assert truth.boxes[0].tolist() == pytest.approx([7 / 40, 10 / 40, 14 / 40, 20 / 40])
    whole = read_truth(source, schema.FixedShapeResizer())
    assert np.diff(whole.starts).tolist() == [3, 3]
    padded = schema.KeepAspectRatioResizer(min_dimension=40, max_dimension=80)
    assert read_truth(source, padded, tiles=TILES).boxes[0].tolist() == pytest.approx(
        [7 / 80, 10 / 80, 14 / 80, 20 / 80]
    )


def test_the_room_for_boxes_is_that_of_a_tile(records):
    check = check_records(records.paths, tiles=TILES)
    assert (check.images, check.tiles, check.boxes) == (2, 12, 6)
    assert (check.most_boxes, check.oversized) == (2, 2)
    whole = check_records(records.paths)
    assert (whole.tiles, whole.most_boxes, whole.oversized) == (2, 3, 0)


def test_a_check_says_how_long_an_epoch_is_and_which_boxes_are_too_large(records):
    def findings(tiles):
        data = schema.Data(train=records, tiles=tiles)
        model = schema.OneStage(num_classes=4)
        experiment = schema.Experiment(data=data, model=model, train=schema.Training(batch_size=5))
        paths = ("data.tiles", "data.tiles.side")
        said = records_findings(experiment, "all", lambda done, total: None)
        return [(each.severity, each.path, each.what) for each in said if each.path in paths]

    note, warning = findings(TILES)
    assert note[:2] == ("note", "data.tiles")
    assert "12 tiles of 40 pixels: 3 steps an epoch" in note[2]
    assert warning[:2] == ("warning", "data.tiles.side")
    assert "2 of 6 boxes" in warning[2]
    assert len(findings(replace(TILES, whole_image=True))) == 1
    assert findings(None) == []


def test_anchors_are_compared_with_boxes_in_tiles(experiment):
    whole = examine_anchors(experiment())
    tiled = examine_anchors(experiment("data.tiles={side: 96}"))
    assert tiled.total == whole.total
    # A box of an image is in several tiles, and larger in the network input.
    assert tiled.sizes[0].boxes > whole.sizes[0].boxes
    assert max(shape.height for shape in tiled.shapes) > max(s.height for s in whole.shapes)


def test_the_images_of_the_tiles_count_as_memory(experiment):
    sizes = Sizes(parameters=1, optimizer=1, average=1, activations=1, anchors=1)
    plain, tiled = (
        estimate(experiment(*more), sizes, "cpu").host.high
        for more in ((), ("data.tiles={side: 96}",))
    )
    assert tiled - plain == MOST_RECENT
