"""Resizing in exported programs, of any size and of one."""

import jax
import numpy as np
import pytest
from jax import export

from stillbox.experiment import schema
from stillbox.exporting.pixels import resize_images
from stillbox.exporting.tflite.conversion import resize_images as resize_for_tflite
from stillbox.inputs.resize import resize_image

METHODS = ("bilinear", "nearest", "bicubic", "area", "bilinear_antialias")
RESIZERS = {
    **{method: schema.FixedShapeResizer(height=30, width=44, method=method) for method in METHODS},
    "keep": schema.KeepAspectRatioResizer(min_dimension=40, max_dimension=56, pad_value=(1, 2, 3)),
    "keep, antialiased": schema.KeepAspectRatioResizer(
        min_dimension=40, max_dimension=56, method="bilinear_antialias"
    ),
    "jitter": schema.ScaleJitterResizer(height=40, width=48, multiple=32, min_scale=0.5),
    "greater": schema.ConditionalShapeResizer(condition="greater", threshold=50, canvas=(64, 64)),
    "smaller": schema.ConditionalShapeResizer(condition="smaller", threshold=50, canvas=(80, 99)),
    "identity": schema.IdentityResizer(canvas=(80, 90)),
    "multiple": schema.PadToMultipleResizer(multiple=32, canvas=(96, 96)),
}
SIZES = [(61, 83), (20, 33), (64, 40)]


def picture(size, dtype):
    pixels = np.random.default_rng(size[0]).integers(0, 256, (*size, 3), np.uint8)
    return pixels.astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", RESIZERS)
def test_equals_the_resizer_of_training(name, dtype):
    resizer = RESIZERS[name]
    resize = jax.jit(lambda images: resize_images(images, resizer))
    for size in SIZES:
        image = picture(size, dtype)
        if name == "keep, antialiased" and dtype == np.float32:
            image = np.rint(image)
        wanted, true_size = resize_image(image, resizer)
        got, shown = resize(image[None])
        assert tuple(shown) == true_size
        # Weights of float32 in another order; antialiased uint8 has whole numbers, to the bit.
        exact = "antialias" in name and dtype == np.uint8
        np.testing.assert_allclose(got[0], wanted, atol=0 if exact else 2e-3)


def test_one_program_serves_images_of_every_size():
    resizer = RESIZERS["keep"]
    shape = export.symbolic_shape("b, h, w, 3", constraints=["b >= 1", "h >= 1", "w >= 1"])
    exported = export.export(jax.jit(lambda images: resize_images(images, resizer)))(
        jax.ShapeDtypeStruct(shape, np.uint8)
    )
    for size in SIZES:
        image = picture(size, np.uint8)
        wanted, true_size = resize_image(image, resizer)
        got, shown = exported.call(np.stack([image, image]))
        assert tuple(shown) == true_size
        np.testing.assert_allclose(got[1], wanted, atol=2e-3)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", RESIZERS)
def test_tflite_equals_the_resizer_of_training(name, dtype):
    resizer = RESIZERS[name]
    # Pillow has other weights for floats, which are not those of training's images.
    whole = "antialias" in name
    resize = jax.jit(lambda images: resize_for_tflite(images, resizer))
    for size in SIZES:
        image = picture(size, dtype)
        wanted, _ = resize_image(image.astype(np.uint8) if whole else image, resizer)
        got = resize(image[None])[0]
        # Weights of float32 in another order.
        np.testing.assert_allclose(got, wanted, atol=0 if whole else 2e-3)
