"""Fitted into a frame that training draws: sizes, places, pixels and boxes."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.interpolation import METHODS, resize_part
from stillbox.inputs.loader import EvalLoader, TrainLoader
from stillbox.inputs.resize import (
    Placement,
    misfit,
    place_boxes,
    place_image,
    resize_image,
    resize_into,
    resized_size,
)
from tests.inputs.helpers import MODEL, dataset, example, picture, saved

JITTER = schema.ScaleJitterResizer


class Drawn(np.random.Generator):
    """A generator that draws given numbers."""

    def __init__(self, scale, *places):
        super().__init__(np.random.PCG64())
        self.scale, self.places = scale, np.array(places)

    def uniform(self, low, high):
        assert low <= self.scale <= high
        return self.scale

    def random(self, count):
        assert count == 2
        return self.places


@pytest.mark.parametrize(
    ("size", "frame", "fitted", "canvas"),
    [
        # The published test: scales 1.1, .25 and 1, stride 32.
        ((100, 200), (220, 220), (110, 220), (224, 224)),
        ((200, 512), (200, 128), (50, 128), (224, 128)),
        ((100, 200), (100, 200), (100, 200), (128, 224)),
        # 512 / 333 = 1.53754 is less than 896 / 500, and 500 of it 768.77.
        ((333, 500), (512, 896), (512, 769), (512, 896)),
        ((1, 5000), (100, 100), (1, 100), (128, 128)),
    ],
)
def test_sizes_outside_training_equal_the_published_test(size, frame, fitted, canvas):
    resizer = JITTER(height=frame[0], width=frame[1], multiple=32, max_scale=2.0)
    assert resizer.input_size == canvas
    assert resized_size(size, resizer) == fitted
    assert place_image(size, resizer) == Placement(fitted, (0, 0), fitted)
    assert misfit(size, resizer) is None


@pytest.mark.parametrize(
    ("drawn", "placement"),
    [
        # The frame 96 x 128 becomes 120 x 160: rows 120 / 60 = 2 decide, for columns have 160 / 70.
        # Of 120 x 140 there is room for 24 rows and 12 columns more than the frame.
        (Drawn(1.25, 0.0, 0.0), Placement((120, 140), (0, 0), (96, 128))),
        (Drawn(1.25, 0.5, 0.99), Placement((120, 140), (12, 11), (96, 128))),
        # 48 x 64: .8 of the image, which has no room to be shifted in.
        (Drawn(0.5, 0.9, 0.9), Placement((48, 56), (0, 0), (48, 56))),
        # .7 of the frame is 67.2 x 89.6, so 67 x 90: 67 / 60 of 70 is 78.17.
        (Drawn(0.7, 0.9, 0.9), Placement((67, 78), (0, 0), (67, 78))),
    ],
)
def test_the_drawn_scale_multiplies_the_frame_before_it_is_rounded(drawn, placement):
    resizer = JITTER(height=96, width=128, min_scale=0.5, max_scale=1.25)
    assert place_image((60, 70), resizer, drawn) == placement


def test_half_a_pixel_is_rounded_to_even():
    # The frames are 7.5 and 8.5 pixels, then 8 both; images of 8 pixels keep their size.
    for side, scale in ((5, 1.5), (17, 0.5)):
        resizer = JITTER(height=side, width=side, min_scale=0.5, max_scale=1.5)
        assert place_image((8, 8), resizer, Drawn(scale, 0, 0)).size == (8, 8)


def test_other_resizers_draw_nothing():
    keep = schema.KeepAspectRatioResizer(min_dimension=50, max_dimension=100)
    assert place_image((100, 150), keep, Drawn(9.0)) == Placement((50, 75), (0, 0), (50, 75))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(61, 97), (20, 15)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_part_has_the_pixels_of_the_whole(method, size, dtype):
    image = picture(40, 30).astype(dtype)
    whole = np.empty((*size, 3), np.float32)
    METHODS[method](image, whole)
    part = np.empty((13, 9, 3), np.float32)
    for y, x in ((0, 0), (7, 6), (size[0] - 13, size[1] - 9)):
        resize_part(image, size, (y, x), part, method)
        np.testing.assert_array_equal(part, whole[y : y + 13, x : x + 9])


def test_the_rest_of_the_canvas_has_the_colour_of_the_padding():
    resizer = JITTER(height=30, width=30, multiple=16, pad_value=(1.0, 2.0, 3.0))
    image, shown = resize_image(np.full((20, 40, 3), 9, np.uint8), resizer)
    assert (shown, image.shape) == ((15, 30), (32, 32, 3))
    assert (image[:15, :30] == 9).all()
    assert (image[15:] == [1, 2, 3]).all() and (image[:, 30:] == [1, 2, 3]).all()


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_an_image_of_the_right_size_is_only_cut(method):
    image = picture(40, 60)
    resizer = JITTER(height=20, width=30, max_scale=2.0, method=method)
    placement = place_image((40, 60), resizer, Drawn(2.0, 0.5, 0.1))
    assert placement == Placement((40, 60), (10, 3), (20, 30))
    out = np.empty((20, 30, 3), np.float32)
    assert resize_into(image, resizer, out, placement) == (20, 30)
    np.testing.assert_array_equal(out, image[10:30, 3:33])


def test_boxes_are_cut_one_pixel_before_the_edges_as_in_the_original():
    # From the original's unit tests: [0, 0, 427, 640] and [10, 20, 30, 50] times 1.5 less (0, 100).
    resizer = JITTER(max_scale=2.0)
    boxes = np.float32([[0, 0, 427, 640], [10, 20, 30, 50]]) / np.float32([428, 640, 428, 640])
    placed, left = place_boxes(boxes, Placement((642, 960), (0, 100), (640, 640)), resizer)
    np.testing.assert_allclose(placed * 640, [[0, 0, 639, 639], [15, 0, 45, 0]], atol=1e-4)
    assert left.tolist() == [True, False]


def test_boxes_end_with_the_frame_and_not_with_the_canvas():
    # 48 x 48 of a canvas of 64 x 64 show the image; the rest is padding in any case.
    resizer = JITTER(height=48, width=48, multiple=32)
    placed, _ = place_boxes(np.float32([[0, 0, 1, 1]]), place_image((48, 48), resizer), resizer)
    np.testing.assert_allclose(placed * 64, [[0, 0, 47, 47]], atol=1e-5)


# A model of 24 x 32 pixels; its images are drawn between half and twice the size.
RESIZER = JITTER(height=24, width=32, min_scale=0.5, max_scale=2.0)
BOXES = [[0.1, 0.1, 0.4, 0.3], [0.5, 0.6, 0.9, 0.9]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    examples = [example(n, BOXES, size=(30 + n, 45)) for n in range(3)]
    return dataset(folder, examples, model=replace(MODEL, resizer=RESIZER))


def test_a_draw_is_a_function_of_seed_epoch_and_record(data):
    def batches(**settings):
        loader = TrainLoader(data, **{"batch_size": 3, "seed": 5, "workers": 0} | settings)
        return [loader.batch(step) for step in range(3)]

    def pictures(batches):
        return {
            (step, record): image.tobytes()
            for step, batch in enumerate(batches)
            for record, image in zip(batch.records, batch.images, strict=True)
        }

    first = batches()
    # Another order, the same records: every epoch has its own draw of each of the three.
    assert pictures(batches(shuffle=False)) == pictures(first)
    assert len(set(pictures(first).values())) == 9
    assert pictures(batches(seed=6)) != pictures(first)
    for batch in first:
        assert (batch.true_sizes <= [24, 32]).all()
        for row, (height, width) in enumerate(batch.true_sizes):
            assert not batch.images[row, height:].any()
            assert not batch.images[row, :, width:].any()


def test_the_placement_is_independent_of_augmentations(data):
    flip = (schema.RandomHorizontalFlip(),)
    loaders = [
        TrainLoader(data, augmentations=some, batch_size=3, workers=0) for some in ((), flip)
    ]
    plain, flipped = (loader.batch(0) for loader in loaders)
    np.testing.assert_array_equal(plain.true_sizes, flipped.true_sizes)


def test_boxes_follow_their_pixels(tmp_path):
    # White is inside the one box and black outside, in every drawn part.
    image = np.zeros((60, 80, 3), np.uint8)
    image[12:36, 20:60] = 255

    encoded = saved(Image.fromarray(image), "PNG")
    record = example(0, [[12 / 60, 20 / 80, 36 / 60, 60 / 80]], size=(60, 80), encoded=encoded)
    data = dataset(tmp_path, [record], model=replace(MODEL, resizer=RESIZER))
    loader = TrainLoader(data, batch_size=16, workers=0)
    scale = np.array([24, 32, 24, 32])
    seen = 0
    for step in range(2):
        batch = loader.batch(step)
        for pixels, boxes, weights in zip(batch.images, batch.boxes, batch.weights, strict=True):
            bright = np.argwhere(pixels[..., 0] > 127)
            assert weights.sum() == (len(bright) > 0)
            if not len(bright):
                continue
            seen += 1
            edges = boxes[0] * scale
            # Within a pixel and a half: the grid's corner, and the pixel that the frame cuts off.
            np.testing.assert_allclose(edges[:2], bright.min(axis=0), atol=1.5)
            np.testing.assert_allclose(edges[2:], bright.max(axis=0) + 1, atol=1.5)
    assert seen > 20


def test_evaluation_is_deterministic_and_boxes_map_back(data):
    batch = next(iter(EvalLoader(data, batch_size=3, workers=0)))
    # 24 / 30 and 32 / 45: columns decide, 45 -> 32; 30 -> 21.33, 31 -> 22.04, 32 -> 22.76.
    assert batch.true_sizes.tolist() == [[21, 32], [22, 32], [23, 32]]
    for row, (height, width) in enumerate(batch.true_sizes):
        # Detections are divided by the image's part of the canvas: each axis has its own scale.
        back = batch.boxes[row, :2] / np.tile(np.array([height / 24, width / 32], np.float32), 2)
        np.testing.assert_allclose(back, BOXES, rtol=1e-6)
