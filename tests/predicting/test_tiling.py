"""Tiles of a large image: their grid, their batches, and one box for each object."""

from itertools import pairwise

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.predicting.backend import RawDetections
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.tiling import Tiling
from stillbox.records.tile_grid import tile_windows
from tests.predicting.blobs import Blobs, scene


def found(image, backend=None, min_score=0.0, **tiling):
    predictor = Predictor(backend or Blobs(), batch_size=4, tiling=Tiling(tile=100, **tiling))
    return predictor.predict(image, min_score=min_score)


@pytest.mark.parametrize("side", [1, 99, 100, 101, 180, 181, 555, 1000])
@pytest.mark.parametrize("overlap", [0, 0.2, 0.25, 0.9])
def test_tiles_cover_the_image_and_share_at_least_the_overlap(side, overlap):
    windows = tile_windows(side, 100, 100, overlap)
    spans = [(top, bottom) for top, _, bottom, _ in windows]
    assert spans[0][0] == 0
    assert spans[-1][1] == side
    assert {bottom - top for top, bottom in spans} == {min(side, 100)}
    shared = [before[1] - after[0] for before, after in pairwise(spans)]
    assert all(100 * overlap <= one < 100 for one in shared)


def test_the_whole_image_is_the_last_window_unless_it_is_the_only_one():
    assert Tiling(tile=100).windows(300, 400)[-1] == (0, 0, 300, 400)
    assert Tiling(tile=100).windows(80, 100) == [(0, 0, 80, 100)]
    assert len(Tiling(tile=100, overlap=0, full_image=False).windows(300, 400)) == 12


@pytest.mark.parametrize("merge", ["nms", "wbf"])
@pytest.mark.parametrize("full_image", [True, False])
@pytest.mark.parametrize(
    "boxes",
    [
        [(10, 10, 30, 30)],
        [(70, 70, 110, 110)],  # over the seams of four tiles
        [(70, 10, 95, 390)],  # over five tiles in a row, whole in none
        [(5, 5, 295, 395)],  # as large as the image
        [(70, 60, 110, 90), (70, 92, 110, 130)],  # neighbours at a seam
        [(y, x, y + 12, x + 12) for y in range(2, 280, 31) for x in range(3, 380, 29)],
    ],
)
def test_every_object_is_found_once_where_it_is(boxes, full_image, merge):
    detections = found(scene(*boxes), full_image=full_image, merge=merge)
    got = sorted(map(tuple, detections.boxes.round().astype(int).tolist()))
    assert got == sorted(boxes)
    assert (np.diff(detections.scores) <= 0).all()


def test_an_object_that_the_whole_image_shows_too_small_is_found_in_a_tile():
    class Coarse(Blobs):
        def _found(self, pixels):
            one = super()._found(pixels)
            seen = (one.boxes[:, 2:] - one.boxes[:, :2]).min(axis=1, initial=99) * 8 > len(pixels)
            return RawDetections(one.boxes[seen], one.scores[seen], one.class_ids[seen])

    image = scene((100, 100, 120, 120))
    whole = Predictor(Coarse()).predict(image)
    assert (len(whole), len(found(image, Coarse()))) == (0, 1)


def test_boxes_of_one_object_in_two_tiles_are_averaged_by_their_scores():
    tiling = Tiling(tile=100, merge="wbf", full_image=False)
    windows = [(0, 0, 100, 100), (0, 50, 100, 150)]
    one = RawDetections(np.array([[10.0, 60, 30, 80]]), np.array([0.6]), np.array([1]))
    # 10 .. 34 and 58 .. 80 in pixels of the image.
    other = RawDetections(np.array([[10.0, 8, 34, 30]]), np.array([0.3]), np.array([1]))
    merged = tiling.merged([one, other], windows)
    np.testing.assert_allclose(merged.boxes, [[10, (2 * 60 + 58) / 3, (2 * 30 + 34) / 3, 80]])
    assert merged.scores.tolist() == [0.6]
    kept = Tiling(tile=100, full_image=False).merged([one, other], windows)
    assert kept.boxes.tolist() == [[10, 60, 30, 80]]


def test_classes_and_objects_of_one_window_are_not_merged():
    windows = [(0, 0, 100, 100), (0, 50, 100, 150)]
    # Two that overlap much in one window are two: its model has told them apart.
    twins = RawDetections(
        np.array([[10.0, 60, 30, 80], [10, 62, 30, 82]]), np.array([0.6, 0.5]), np.array([1, 1])
    )
    other = RawDetections(np.array([[10.0, 10, 30, 30]]), np.array([0.3]), np.array([2]))
    merged = Tiling(tile=100).merged([twins, other], windows)
    assert merged.class_ids.tolist() == [1, 1, 2]


def test_all_batches_have_one_size_and_images_come_in_order():
    backend = Blobs()
    images = [scene((5, 5, 20, 20 + n), size=(100 + 60 * n, 120)) for n in range(4)]
    found = Predictor(backend, batch_size=4, tiling=Tiling(tile=100)).predict(images)
    assert {len(batch) for batch in backend.batches} == {4}
    assert [one.boxes[0, 3] for one in found] == [20, 21, 22, 23]


def test_a_window_that_is_not_finite_is_refused():
    class Broken(Blobs):
        def _found(self, pixels):
            return super()._found(pixels)._replace(finite=pixels.max() == 0)

    with pytest.raises(UserError, match="not finite"):
        found(scene((100, 100, 120, 120)), Broken())


@pytest.mark.parametrize(
    "values",
    [
        {"tile": 0},
        {"tile": -640},
        {"overlap": 1.0},
        {"overlap": -0.1},
        {"overlap": float("nan")},
        {"merge": "mean"},
        {"iou_threshold": 1.0},
    ],
)
def test_impossible_values_are_refused(values):
    with pytest.raises(UserError):
        Tiling(**{"tile": 640} | values)


def test_impossible_scores_and_batches_are_refused():
    for score in (1.5, -0.1, float("nan")):
        with pytest.raises(UserError, match="is no score"):
            Predictor(Blobs()).predict(scene(), min_score=score)
    with pytest.raises(UserError, match="at least one image"):
        Predictor(Blobs(), batch_size=0)
