"""Resizing and decoding in TensorFlow equal those of training."""

import cv2
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs import decode
from stillbox.inputs.resize import resize_image, resized_size

tf = pytest.importorskip("tensorflow")
pixels = pytest.importorskip("stillbox.exporting.saved_model.pixels")
decode_image, resize_images = pixels.decode_image, pixels.resize_images

pytestmark = pytest.mark.xdist_group("tensorflow")

METHODS = ("bilinear", "nearest", "bicubic", "area", "bilinear_antialias")
# Sums of float32 in another order, for the two methods that have sums of many terms.
TOLERANCE = {"area": 0.01, "bicubic": 1e-3}
RESIZERS = [
    *(schema.FixedShapeResizer(height=40, width=50, method=method) for method in METHODS),
    *(
        schema.KeepAspectRatioResizer(
            min_dimension=30, max_dimension=44, method=method, pad_value=(1.0, 2.0, 3.0)
        )
        for method in METHODS
    ),
    *(
        schema.ConditionalShapeResizer(
            condition=condition, threshold=60, method=method, canvas=(190, 190)
        )
        for condition in ("greater", "smaller")
        for method in METHODS[:4]
    ),
    schema.ScaleJitterResizer(height=50, width=70, multiple=32, pad_value=(9.0, 8.0, 7.0)),
    schema.IdentityResizer(canvas=(130, 140), pad_value=(5.0, 5.0, 5.0)),
    schema.PadToMultipleResizer(multiple=32, canvas=(160, 160)),
]


@pytest.mark.parametrize("size", [(37, 61), (101, 33), (64, 64)])
@pytest.mark.parametrize("resizer", RESIZERS, ids=lambda r: f"{r.kind}-{getattr(r, 'method', '')}")
def test_pixels_equal_those_of_training(resizer, size):
    image = np.random.default_rng(1).integers(0, 256, (*size, 3)).astype(np.uint8)
    expected, true_size = resize_image(image, resizer)
    result = resize_images(tf.constant(image[None]), resizer)
    assert tuple(result.true_sizes.numpy()[0]) == true_size
    assert tuple(result.original_sizes.numpy()[0]) == size
    tolerance = TOLERANCE.get(getattr(resizer, "method", ""), 0)
    np.testing.assert_allclose(result.images.numpy()[0], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_images_of_a_known_size_need_no_loops(method):
    size = (37, 61)
    image = np.random.default_rng(1).integers(0, 256, (1, *size, 3)).astype(np.uint8)
    resizer = schema.KeepAspectRatioResizer(min_dimension=30, max_dimension=44, method=method)
    known = tf.function(lambda images: resize_images(images, resizer, resized_size(size, resizer)))
    function = known.get_concrete_function(tf.TensorSpec(image.shape, tf.uint8))
    kinds = {operation.type for operation in function.graph.get_operations()}
    assert not kinds & {"While", "StatelessWhile", "If", "StatelessIf"}
    expected = resize_images(tf.constant(image), resizer)
    for one, other in zip(function(tf.constant(image)), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_floats_are_rounded_as_the_files_were():
    image = np.random.default_rng(1).integers(0, 256, (37, 61, 3)).astype(np.float32)
    resizer = schema.FixedShapeResizer(height=20, width=30, method="bilinear_antialias")
    result = resize_images(tf.constant(image[None]), resizer).images.numpy()[0]
    np.testing.assert_array_equal(result, resize_image(image.astype(np.uint8), resizer)[0])


def test_an_image_that_does_not_fit_fails():
    resizer = schema.IdentityResizer(canvas=(32, 32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not fit the canvas 32x32"):
        resize_images(tf.zeros((1, 33, 20, 3), tf.uint8), resizer)


def test_one_function_serves_every_size():
    resizer = schema.FixedShapeResizer(height=20, width=30, method="bilinear_antialias")
    spec = tf.TensorSpec((None, None, None, 3), tf.uint8)
    function = tf.function(lambda images: resize_images(images, resizer), input_signature=[spec])
    for size in ((10, 10), (41, 20), (300, 20)):
        assert function(tf.zeros((2, *size, 3), tf.uint8)).images.shape == (2, 20, 30, 3)
    assert function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("kind", [".jpg", ".png"])
def test_files_decode_to_the_pixels_of_training(images, kind):
    content = cv2.imencode(kind, images[0][..., ::-1])[1].tobytes()
    result = decode_image(tf.constant(content)).numpy()
    np.testing.assert_array_equal(result, decode.decode_image(content))


def test_grey_and_transparent_files_have_three_channels(images):
    grey = cv2.cvtColor(images[0], cv2.COLOR_RGB2GRAY)
    transparent = np.dstack([images[0][..., ::-1], grey])
    for picture, kind in ((grey, ".jpg"), (grey, ".png"), (transparent, ".png")):
        content = cv2.imencode(kind, picture)[1].tobytes()
        result = decode_image(tf.constant(content)).numpy()
        np.testing.assert_array_equal(result, decode.decode_image(content))
