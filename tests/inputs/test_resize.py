import json
import threading
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.inputs import resize
from stillbox.inputs.interpolation import METHODS as BY_NAME
from stillbox.inputs.interpolation import Scratch, crop_and_resize
from stillbox.inputs.resize import misfit, resize_image, resize_into, resized_size
from tests.helpers import refused
from tests.inputs.helpers import picture


def test_a_name_keeps_its_memory_until_more_is_needed():
    scratch = Scratch()
    first = scratch("a", (4, 5), np.float32)
    assert (first.shape, first.dtype) == ((4, 5), np.float32)
    assert np.shares_memory(first, scratch("a", (3, 2), np.uint8))
    assert not np.shares_memory(first, scratch("b", (4, 5), np.float32))
    assert scratch("a", (400, 5), np.float32).shape == (400, 5)
    assert scratch("a", (0, 5), np.float32).shape == (0, 5)


def test_threads_do_not_share():
    scratch, other = Scratch(), []
    mine = scratch("a", (8,), np.uint8)
    thread = threading.Thread(target=lambda: other.append(scratch("a", (8,), np.uint8)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, other[0])


GOLDEN_FILE = Path(__file__).parents[1] / "goldens/inputs_resize.json"
GOLDENS = json.loads(GOLDEN_FILE.read_text())["cases"]
FIXED, KEEP = schema.FixedShapeResizer, schema.KeepAspectRatioResizer
CASES = {
    "fixed300": (480, 640, FIXED()),
    "fixed640_up": (480, 640, FIXED(height=640, width=640)),
    "keep640pad": (480, 640, KEEP(min_dimension=640, max_dimension=640)),
    "keep640pad_portrait": (333, 500, KEEP(min_dimension=640, max_dimension=640)),
    "keep600_1024": (480, 640, KEEP()),
    "keep600_1024_wide": (300, 900, KEEP()),
    "keep_pad_value": (480, 640, KEEP(min_dimension=300, max_dimension=300, pad_value=(1, 2, 3))),
    "fixed_nn": (480, 640, FIXED(method="nearest")),
    "fixed_area": (480, 640, FIXED(method="area")),
    "fixed_bicubic": (480, 640, FIXED(method="bicubic")),
}
METHODS = ["bilinear", "nearest", "area", "bicubic", "bilinear_half_pixel"]


def waves(height, width):
    y, x, c = np.ogrid[:height, :width, :3]
    return (127.5 + 127.5 * np.sin(0.05 * y + 0.03 * x * (c + 1) + c)).astype(np.float32)


@pytest.mark.parametrize("name", GOLDENS)
def test_pixels_equal_the_originals(name):
    golden, (height, width, resizer) = GOLDENS[name], CASES[name]
    image, size = resize_image(waves(height, width), resizer)
    assert [*size, 3] == golden["true_shape"]
    # Two goldens come from the original without padding; ours is always on its full canvas.
    image = image[: golden["out_shape"][0], : golden["out_shape"][1]]
    assert list(image.shape) == golden["out_shape"]
    # To the last bit, but for the order of summation of area and bicubic.
    tolerance = 1e-4 if resizer.method in ("area", "bicubic") else 0
    places = {"0_0": (0, 0), "10_20": (10, 20), "100_150": (100, 150), "last": (-1, -1)}
    for key, place in places.items():
        np.testing.assert_allclose(image[place], golden[f"px_{key}"], rtol=0, atol=tolerance)
    assert image.mean(dtype=np.float64) == pytest.approx(golden["mean"], abs=1e-4)


def test_bilinear_by_hand():
    # Columns 0 1 2 of three to four: positions 0, .75, 1.5, 2.25; beyond the last one, the last.
    row = np.array([[[0] * 3, [100] * 3, [200] * 3]], np.uint8)
    image, _ = resize_image(row, FIXED(height=1, width=4))
    assert image[0, :, 0].tolist() == [0, 75, 150, 200]


def row(values):
    return np.array([[[value] * 3 for value in values]], np.float32)


# The resizing of MLPerf's SSD ResNet-34 in evaluation.
LEGACY = {4: [0, 0.5, 1, 1.5, 2, 2.5, 3, 3], 8: [0, 2, 4, 6]}


@pytest.mark.parametrize("size", LEGACY)
def test_bilinear_is_the_legacy_resize(size):
    # Positions o * in / out, the first corners shared: from 4 to 8 half a pixel each, and beyond
    # the last one the last; from 8 to 4 every other pixel.
    expected = np.array(LEGACY[size])
    image = row(range(size))
    columns, _ = resize_image(image, FIXED(height=1, width=len(expected)))
    rows, _ = resize_image(image.transpose(1, 0, 2), FIXED(height=len(expected), width=1))
    np.testing.assert_allclose(columns[0, :, 1], expected, atol=1e-6)
    np.testing.assert_allclose(rows[:, 0, 1], expected, atol=1e-6)


def test_half_pixels_by_hand():
    # Two to four: centres at 1/4, 3/4, 5/4 and 7/4, less a half, are read from the pixels 0 and 1.
    row = np.array([[[10] * 3, [20] * 3]], np.uint8)
    image, _ = resize_image(row, FIXED(height=1, width=4, method="bilinear_half_pixel"))
    np.testing.assert_allclose(image[0, :, 1], [10, 12.5, 17.5, 20], rtol=1e-6)


def test_half_pixels_are_those_of_opencv():
    image = picture(37, 53)
    ours, _ = resize_image(image, FIXED(height=64, width=20, method="bilinear_half_pixel"))
    theirs = cv2.resize(image.astype(np.float32), (20, 64), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_area_by_hand():
    # Three to two: each output covers one and a half pixels. (10 + 20/2) / 1.5, (20/2 + 40) / 1.5
    row = np.array([[[10] * 3, [20] * 3, [40] * 3]], np.uint8)
    image, _ = resize_image(row, FIXED(height=1, width=2, method="area"))
    np.testing.assert_allclose(image[0, :, 1], [20 / 1.5, 50 / 1.5], rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (37, 53), (200, 300)])
def test_uint8_and_float_pixels_give_the_same(method, size):
    image = picture(*size)
    resizer = FIXED(height=31, width=45, method=method)
    ours, _ = resize_image(image, resizer)
    as_float, _ = resize_image(image.astype(np.float32), resizer)
    assert ours.dtype == np.float32
    assert (ours == as_float).all()


@pytest.mark.parametrize("method", METHODS)
def test_one_pixel_fills_the_canvas_and_the_same_size_changes_nothing(method):
    pixel = np.full((1, 1, 3), 200, np.uint8)
    image, _ = resize_image(pixel, FIXED(height=8, width=9, method=method))
    np.testing.assert_allclose(image, np.full((8, 9, 3), 200), rtol=1e-6)
    image = picture(20, 30)
    same, size = resize_image(image, FIXED(height=20, width=30, method=method))
    assert size == (20, 30)
    np.testing.assert_allclose(same, image, atol=1e-4)


@pytest.mark.parametrize(
    "resizer",
    [FIXED(height=20, width=30), KEEP(min_dimension=20, max_dimension=30)],
    ids=lambda resizer: resizer.kind,
)
def test_an_image_of_the_right_size_is_not_resized(resizer, monkeypatch):
    # An augmentation has made the size: interpolating once more would cost as much as the first.
    monkeypatch.setattr(resize, "METHODS", {})
    image = picture(20, 30).astype(np.float32) + 0.3
    same, size = resize_image(image, resizer)
    assert size == (20, 30)
    assert (same[:20] == image).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_window_of_a_larger_image_needs_no_copy(method):
    window = picture(50, 60)[10:31, 5:48]
    resizer = FIXED(height=16, width=16, method=method)
    packed, _ = resize_image(np.ascontiguousarray(window), resizer)
    assert (resize_image(window, resizer)[0] == packed).all()


def test_leaving_unused_rows_out_changes_nothing():
    # 300 rows to 10: only 20 of them are looked at, the rest is left out first.
    image = picture(300, 30)
    ours, _ = resize_image(image, FIXED(height=10, width=12))
    rows, _ = resize_image(image, FIXED(height=300, width=12))
    assert np.array_equal(ours, rows[::30])


def test_keep_aspect_ratio_sizes():
    # as executed in TF1
    assert resized_size((480, 640), KEEP(min_dimension=640, max_dimension=640)) == (480, 640)
    assert resized_size((333, 500), KEEP(min_dimension=640, max_dimension=640)) == (426, 640)
    assert resized_size((480, 640), KEEP()) == (600, 800)
    assert resized_size((300, 900), KEEP()) == (341, 1024)
    # Half a pixel goes to the even side: 5 * 1000 / 2000 = 2.5 -> 2
    assert resized_size((5, 2000), KEEP(min_dimension=600, max_dimension=1000)) == (2, 1000)
    # and no side ever vanishes.
    assert resized_size((1, 5000), KEEP()) == (1, 1024)


def test_canvas_sizes():
    assert FIXED(height=3, width=4).input_size == (3, 4)
    assert KEEP(min_dimension=3, max_dimension=4).input_size == (4, 4)
    for kind in ("Identity", "ConditionalShape", "PadToMultiple"):
        assert getattr(schema, f"{kind}Resizer")(canvas=(3, 4)).input_size == (3, 4)


def test_padding_is_below_and_to_the_right_and_overwrites_what_was_there():
    out = np.full((8, 8, 3), 99, np.float32)
    resizer = KEEP(min_dimension=8, max_dimension=8, pad_value=(1.0, 2.0, 3.0))
    assert resize_into(np.full((4, 2, 3), 50, np.uint8), resizer, out) == (8, 4)
    assert (out[:, :4] == 50).all()
    assert (out[:, 4:] == [1, 2, 3]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_antialiased_shrinking_sees_every_pixel(dtype):
    # One bright column in eight, shrunk to an eighth: TF1's bilinear sees all or nothing of it,
    # the triangle filter over 2 * 8 columns sees its share of 1/8 everywhere: 255 / 8 = 31.9.
    image = np.zeros((64, 64, 3), dtype)
    image[:, ::8] = 255
    resizer = schema.FixedShapeResizer(height=8, width=8, method="bilinear_antialias")
    shrunk, size = resize_image(image, resizer)
    assert size == (8, 8)
    np.testing.assert_allclose(shrunk[:, 1:-1], 255 / 8, atol=0.5)


# ---- resizers with a configured canvas ----------------------------------------------------------


@pytest.mark.parametrize("resizer", [schema.IdentityResizer, schema.PadToMultipleResizer])
def test_an_image_keeps_its_size_and_is_padded_to_the_canvas(resizer):
    image = picture(4, 6)
    padded, size = resize_image(image, resizer(canvas=(8, 8), pad_value=(1.0, 2.0, 3.0)))
    assert size == (4, 6)
    assert padded.dtype == np.float32
    assert (padded[:4, :6] == image).all()
    assert (padded[4:] == [1, 2, 3]).all()
    assert (padded[:4, 6:] == [1, 2, 3]).all()


def test_the_size_of_a_conditional_resizer():
    greater = schema.ConditionalShapeResizer(threshold=300)
    # 480 x 640: the long side becomes 300, the other 480 * 300 / 640 = 225.
    assert resized_size((480, 640), greater) == (225, 300)
    # 100 * 300 / 301 = 99.67 is cut, not rounded.
    assert resized_size((100, 301), greater) == (99, 300)
    assert resized_size((300, 200), greater) == (300, 200)
    assert resized_size((1, 1000), greater) == (1, 300)
    smaller = schema.ConditionalShapeResizer(condition="smaller", threshold=300)
    # 200 x 401: the short side becomes 300, the other 401 * 1.5 = 601.5, cut.
    assert resized_size((200, 401), smaller) == (300, 601)
    assert resized_size((300, 900), smaller) == (300, 900)


def test_a_conditional_resizer_aligns_the_corners():
    # Columns 0 30 60 90 of four to three with the corners aligned: positions 0, 1.5, 3. Without,
    # they would be 0, 1.33, 2.67, thus 0, 40, 80.
    image = np.array([[[0] * 3, [30] * 3, [60] * 3, [90] * 3]] * 4, np.uint8)
    shrunk, size = resize_image(image, schema.ConditionalShapeResizer(threshold=3, canvas=(3, 5)))
    assert size == (3, 3)
    assert shrunk[0, :, 0].tolist() == [0, 45, 90, 0, 0]


@dataclass(frozen=True, kw_only=True)
class Half(schema.Resizer):
    """A resizer that is not the package's own: half the size, on a canvas of 8 by 8."""

    input_size = (8, 8)
    method: str | None = "bilinear"


@implements(Half)
def _half(resizer, size):
    return size[0] // 2, size[1] // 2


def test_a_custom_resizer_resamples_with_its_method():
    image = picture(12, 8)
    expected = np.empty((6, 4, 3), np.float32)
    for method in ("bilinear", "area"):
        BY_NAME[method](image, expected)
        out, size = resize_image(image, Half(method=method))
        assert size == (6, 4)
        assert np.array_equal(out[:6, :4], expected)
        assert not out[6:].any() and not out[:, 4:].any()
    with pytest.raises(TypeError, match="Half changes the size of images and has no method"):
        resize_image(picture(12, 8), Half(method=None))


@pytest.mark.parametrize("resizer", [schema.IdentityResizer, schema.PadToMultipleResizer])
def test_an_image_larger_than_the_canvas_is_refused_not_shrunk(resizer):
    assert misfit((8, 8), resizer(canvas=(8, 8))) is None
    assert misfit((9, 8), resizer(canvas=(8, 8))) == "9x8 (height x width), canvas 8x8"
    with refused("larger.jpg") as caught:
        resize_image(picture(8, 9), resizer(canvas=(8, 8)), where="larger.jpg")
    assert "model.resizer.canvas" in caught.value.fix
    resizer = schema.ConditionalShapeResizer(condition="smaller", threshold=10, canvas=(12, 12))
    assert misfit((5, 20), resizer) == "5x20, 10x40 after resizing (height x width), canvas 12x12"
    assert misfit((12, 12), resizer) is None


# ---- align_corners -------------------------------------------------------------------------------


def aligned(method, row, width):
    image = np.array([[[value] * 3 for value in row]], np.float32)
    out = np.empty((1, width, 3), np.float32)
    BY_NAME[method](image, out, align_corners=True)
    return out[0, :, 0]


def test_aligned_nearest_rounds_half_up():
    # Four to three: positions 0, 1.5, 3.
    assert aligned("nearest", [0, 1, 2, 3], 3).tolist() == [0, 2, 3]
    # Two to four: 0, 1/3, 2/3, 1.
    assert aligned("nearest", [5, 7], 4).tolist() == [5, 5, 7, 7]


def test_aligned_bicubic_halfway_by_hand():
    # Position 1.5 of 0 0 100 100, A = -0.75: weights -3/32, 19/32, 19/32, -3/32 -> 50.
    np.testing.assert_allclose(aligned("bicubic", [0, 0, 100, 100], 3), [0, 50, 100], atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_one_pixel_or_one_output_has_no_corners_to_align(method):
    np.testing.assert_allclose(aligned(method, [9], 4), [9] * 4, rtol=1e-6)
    assert np.isfinite(aligned(method, [9, 5, 7], 1)).all()


# ---- crop_and_resize -----------------------------------------------------------------------------


def cropped(image, window, size):
    out = np.full((*size, 3), np.nan, np.float32)
    crop_and_resize(image, np.array(window, np.float64), out)
    return out


@pytest.mark.parametrize(
    ("count", "start", "stop", "expected"),
    [
        # Executed by TensorFlow: 0 .. 3 at steps of 3/7, and
        # 0 .. 7 from .25 * 7 to .75 * 7 at steps of 3.5/3.
        (4, 0, 1, [0, 0.4286, 0.8571, 1.2857, 1.7143, 2.1429, 2.5714, 3]),
        (8, 0.25, 0.75, [1.75, 2.9167, 4.0833, 5.25]),
        # A single output reads the middle: (.25 + .75) / 2 * 7.
        (8, 0.25, 0.75, [3.5]),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_crop_and_resize_equals_the_original(count, start, stop, expected, dtype):
    image = row(range(count)).astype(dtype)
    columns = cropped(image, [0, start, 1, stop], (1, len(expected)))
    rows = cropped(image.transpose(1, 0, 2), [start, 0, stop, 1], (len(expected), 1))
    np.testing.assert_allclose(columns[0, :, 2], expected, atol=1e-4)
    np.testing.assert_allclose(rows[:, 0, 2], expected, atol=1e-4)


@pytest.mark.parametrize("size", [(7, 9), (300, 300), (1, 5)])
@pytest.mark.parametrize("window", [(0.1, 0.25, 0.8, 0.6), (0, 0, 1, 1), (0.7, 0.69, 1, 1)])
def test_crop_and_resize_interpolates_between_pixels(window, size):
    # Bilinear interpolation gives a plane back: every value tells the position that it was read at.
    y, x = np.mgrid[:137, :253].astype(np.float32)
    image = np.stack([y, x, y + x], axis=2)
    out = cropped(image, window, size)

    def positions(start, stop, pixels, count):
        if count == 1:
            return np.array([(start + stop) / 2 * (pixels - 1)])
        steps = np.arange(count) / (count - 1)
        return (start + steps * (stop - start)) * (pixels - 1)

    rows, columns = (positions(*window[a::2], image.shape[a], size[a]) for a in (0, 1))
    np.testing.assert_allclose(out[..., 0], np.tile(rows[:, None], size[1]), atol=1e-3)
    np.testing.assert_allclose(out[..., 1], np.tile(columns, (size[0], 1)), atol=1e-3)
    np.testing.assert_allclose(out[..., 2], rows[:, None] + columns, atol=1e-3)


def test_crop_and_resize_leaves_pixels_out_as_the_original_does():
    # No antialiasing: two outputs of 5 pixels see the first and the last one alone.
    out = cropped(row([9, 1, 1, 1, 5]), [0, 0, 1, 1], (1, 2))
    assert out[0, :, 0].tolist() == [9, 5]
