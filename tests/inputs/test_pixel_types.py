"""`data.pixels` and `data.reduced_decoding`: what changes, and by how much."""

import cv2
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.loader import TrainLoader
from stillbox.inputs.resize import place_image, reduction, resize_into
from tests.inputs.helpers import dataset, example, jpeg, picture

JITTER = schema.ScaleJitterResizer(
    height=40, width=48, min_scale=0.5, max_scale=2, pad_value=(123.7, 9.5, 200.2)
)
RESIZERS = {
    "fixed": schema.FixedShapeResizer(height=37, width=53),
    "jitter": JITTER,
    "padded": schema.KeepAspectRatioResizer(min_dimension=30, max_dimension=50),
    "cubic": schema.FixedShapeResizer(height=37, width=53, method="bicubic"),
    "antialias": schema.FixedShapeResizer(height=37, width=53, method="bilinear_antialias"),
    "corners": schema.ConditionalShapeResizer(canvas=(60, 60), threshold=50),
    "same": schema.IdentityResizer(canvas=(100, 130)),
}


def batches(folder, resizer, *, size=(90, 120), augmentations=(), options=({},)):
    model = schema.OneStage(num_classes=4, resizer=resizer)
    rough = np.random.default_rng(0).normal(0, 15, (*size, 3))
    files = [jpeg((picture(*size, seed=n) + rough).clip(0, 255).astype(np.uint8)) for n in range(4)]
    found = [example(n, encoded=data, size=size) for n, data in enumerate(files)]
    data = dataset(folder, found, model=model)
    return [
        TrainLoader(data, batch_size=4, workers=0, augmentations=augmentations, **each).batch(0)
        for each in options
    ]


@pytest.mark.parametrize("name", RESIZERS)
def test_uint8_is_the_rounded_batch_at_a_quarter_of_the_bytes(tmp_path, name):
    floats, rounded = batches(tmp_path, RESIZERS[name], options=({}, {"pixels": "uint8"}))
    assert rounded.images.dtype == np.uint8
    assert 4 * rounded.images.nbytes == floats.images.nbytes
    # Half a level, and what float32 cannot tell from a half.
    assert abs(rounded.images - floats.images.clip(0, 255)).max() <= 0.5 + 1e-3
    for one, other in zip(floats[1:], rounded[1:], strict=True):
        assert one.tobytes() == other.tobytes()


def test_colours_out_of_range_are_clipped(tmp_path):
    brighter = (schema.RandomAdjustBrightness(max_delta=0.9, clip=False),)
    floats, rounded = batches(
        tmp_path, RESIZERS["fixed"], augmentations=brighter, options=({}, {"pixels": "uint8"})
    )
    assert floats.images.max() > 255
    assert floats.images.min() < 0
    np.testing.assert_array_equal(rounded.images, np.rint(floats.images).clip(0, 255))


@pytest.mark.parametrize(
    ("size", "resized", "factor"),
    [
        ((600, 600), (300, 300), 2),
        ((599, 900), (300, 300), 1),
        ((1300, 1199), (300, 300), 2),
        ((1200, 9999), (300, 300), 4),
        ((9999, 9999), (300, 300), 8),
        ((10, 10), (20, 5), 1),
    ],
)
def test_reduced_images_are_never_enlarged(size, resized, factor):
    assert reduction(size, resized) == factor


FLIP = (schema.RandomHorizontalFlip(probability=1), schema.SsdRandomCrop())
JITTERS = schema.ScaleJitterResizer(height=32, width=48, min_scale=0.8, max_scale=2)


def ramps(height, width):
    """Red grows to the right, green to the bottom, blue with both."""
    y, x = (np.linspace(20, 235, side) for side in (height, width))
    return np.stack(np.broadcast_arrays(x, y[:, None], (x + y[:, None]) / 2), -1).astype(np.uint8)


@pytest.mark.parametrize("method", ["bilinear", "bilinear_antialias", "jitter"])
@pytest.mark.parametrize("augmentations", [(), FLIP])
@pytest.mark.parametrize("pixels", ["float32", "uint8"])
def test_reduced_images_lie_where_whole_ones_do(tmp_path, method, augmentations, pixels):
    resizer = JITTERS
    if method != "jitter":
        resizer = schema.FixedShapeResizer(height=37, width=53, method=method)
    model = schema.OneStage(num_classes=4, resizer=resizer)
    data = jpeg(ramps(403, 601), 100)
    found = [example(n, encoded=data, size=(403, 601)) for n in range(6)]
    exact, reduced = (
        TrainLoader(
            dataset(tmp_path, found, model=model),
            batch_size=6,
            workers=0,
            augmentations=augmentations,
            pixels=pixels,
            reduced_decoding=each,
        ).batch(0)
        for each in (False, True)
    )
    # The mean of a ramp over a square is its value in the middle. Single pixels differ by rounding,
    # and the mean of all by what they are shifted: a pixel of the image is 0.36 levels at least.
    rows, columns = exact.true_sizes.min(0) - 2
    inner = np.s_[:, 2:rows, 2:columns]
    difference = reduced.images[inner].astype(np.float64) - exact.images[inner]
    assert abs(difference.mean((1, 2))).max() < 0.3
    assert difference.any()
    for one, other in zip(exact[1:], reduced[1:], strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("resizer", "augmentations"),
    [
        (schema.FixedShapeResizer(height=20, width=20, method="area"), ()),
        (schema.FixedShapeResizer(height=20, width=20), (schema.RandomVerticalFlip(),)),
        (schema.FixedShapeResizer(height=60, width=60), ()),
    ],
)
def test_where_nothing_is_reduced_nothing_changes(tmp_path, resizer, augmentations):
    options = ({}, {"reduced_decoding": True})
    exact, same = batches(tmp_path, resizer, augmentations=augmentations, options=options)
    for one, other in zip(exact, same, strict=True):
        assert one.tobytes() == other.tobytes()


def test_rounding_is_that_of_exact_interpolation():
    rng = np.random.default_rng(1)
    for size, resizer in (((97, 131), RESIZERS["fixed"]), ((50, 60), JITTER)):
        image = rng.integers(0, 256, (*size, 3), np.uint8)
        placement = place_image(size, resizer, np.random.default_rng(5))
        floats = np.empty((*resizer.input_size, 3), np.float32)
        rounded = np.empty(floats.shape, np.uint8)
        resize_into(image, resizer, floats, placement)
        resize_into(image, resizer, rounded, placement)
        assert (rounded != np.rint(floats)).mean() < 1e-3
        assert cv2.norm(rounded.astype(np.float32), floats, cv2.NORM_INF) <= 0.5 + 1e-3
