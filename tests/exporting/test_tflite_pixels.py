"""Resizing inside a TFLite model equals resizing on the host, for images of one size."""

import jax
import numpy as np
import pytest

from stillbox.exporting.tflite.conversion import resize_images
from stillbox.inputs.resize import resize_image
from tests.exporting.test_pixels import RESIZERS, SIZES, picture


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", RESIZERS)
def test_equals_the_resizer_of_training(name, dtype):
    resizer = RESIZERS[name]
    # Pillow has other weights for floats, which are not those of training's images.
    whole = "antialias" in name
    resize = jax.jit(lambda images: resize_images(images, resizer))
    for size in SIZES:
        image = picture(size, dtype)
        wanted, _ = resize_image(image.astype(np.uint8) if whole else image, resizer)
        got = resize(image[None])[0]
        # Weights of float32 in another order.
        np.testing.assert_allclose(got, wanted, atol=0 if whole else 2e-3)
