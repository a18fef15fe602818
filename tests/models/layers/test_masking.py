"""Images inside larger inputs have the features that they have by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.lowering import lowering
from stillbox.models import build  # noqa: F401 - registers the parts
from stillbox.models.backbones import resnet_v1
from stillbox.models.layers import Conv2d
from stillbox.models.layers.masking import masked_padding, mean_of_map
from stillbox.models.layers.resampling import (
    average_pool,
    double,
    halve,
    max_pool,
    max_pool_with_zeros,
)
from tests.helpers import build_options

CANVAS = (48, 64)
# Even and odd at every stride, and an image that fills the input in one direction.
SIZES = ((33, 50), (46, 64))
CONV = schema.ConvHyperparams(initializer=schema.VarianceScaling(), batch_norm=schema.BatchNorm())
# With the taps and their strides.
BACKBONES = {
    "resnet_v1": (schema.ResNetV1(output_stride=8, conv=CONV), {"block_1": 4, "block_3": 8}),
    "inception_v2": (
        schema.InceptionV2(depth_multiplier=0.05, min_depth=4, conv=CONV),
        {"conv_2c": 4, "mixed_4a": 16},
    ),
    "mobilenet_v3_small": (
        schema.MobileNetV3Small(depth_multiplier=0.25, min_depth=8, conv=CONV),
        {"block_0": 4, "block_3_expand": 8},
    ),
}


def _canvas(channels=3, stride=1):
    """Images among values that would change every feature, and the images by themselves."""
    rng = np.random.default_rng(0)
    shape = [side // stride for side in CANVAS]
    canvas = 500 * rng.normal(size=(len(SIZES), *shape, channels)).astype(np.float32)
    images = []
    for row, size in enumerate(SIZES):
        height, width = (-(-side // stride) for side in size)
        canvas[row, :height, :width] /= 100
        images.append(jnp.asarray(canvas[row : row + 1, :height, :width]))
    return jnp.asarray(canvas), images


def _cut(x, row, stride):
    """What belongs to an image of the map of the whole input."""
    height, width = (-(-side // stride) for side in SIZES[row])
    return x[row : row + 1, :height, :width]


@pytest.mark.parametrize("name", BACKBONES)
def test_features_are_those_of_each_image_alone(name, monkeypatch):
    monkeypatch.setattr(resnet_v1, "_UNITS", {50: (1, 1, 1, 1)})
    monkeypatch.setattr(resnet_v1, "_ROOT_CHANNELS", 4)
    config, taps = BACKBONES[name]
    backbone = implementation_of(config)(config, tuple(taps), build_options(freeze_norm=True))
    canvas, images = _canvas()
    run = nnx.jit(lambda backbone, x: backbone(x, train=False))
    with lowering(portable=True):
        with masked_padding(jnp.asarray(SIZES), CANVAS):
            maps = run(backbone, canvas)
        for row, image in enumerate(images):
            pairs = zip(maps, run(backbone, image), taps.values(), strict=True)
            for together, alone, stride in pairs:
                assert jnp.abs(alone).max() > 0.1
                np.testing.assert_allclose(_cut(together, row, stride), alone, atol=1e-4)


def test_gradients_are_those_of_each_image_alone():
    conv = schema.ConvHyperparams(activation="none", initializer=schema.RandomNormal())
    options = {"freeze_norm": True, "dtype": jnp.float32, "rng": np.random.default_rng(1)}
    # A 1x1 convolution reads what is beyond the images behind the pooling.
    layers = [Conv2d(2, 2, 1, 1, conv, **options), Conv2d(2, 2, 3, 2, conv, **options)]
    graph, state = nnx.split(nnx.List(layers))
    canvas, images = _canvas(channels=2)

    def features(state, x):
        pointwise, strided = nnx.merge(graph, state)
        x = pointwise(max_pool(x, 3, 2), train=False)
        return average_pool(jnp.sin(strided(x, train=False)), 3)

    def together(state, canvas):
        with masked_padding(jnp.asarray(SIZES), CANVAS):
            x = features(state, canvas)
        return sum(jnp.sum(_cut(x, row, 4) ** 2) for row in range(len(SIZES)))

    def alone(state, images):
        return sum(jnp.sum(features(state, image) ** 2) for image in images)

    with lowering(portable=True):
        value, (kernels, pixels) = jax.jit(jax.value_and_grad(together, (0, 1)))(state, canvas)
        expected, (others, gradients) = jax.jit(jax.value_and_grad(alone, (0, 1)))(state, images)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for mine, theirs in zip(*map(jax.tree.leaves, (kernels, others)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    for row, gradient in enumerate(gradients):
        np.testing.assert_allclose(_cut(pixels, row, 1), gradient, atol=1e-5)
    # Nothing flows to what is no image.
    assert np.sum(np.asarray(pixels) ** 2) == pytest.approx(sum(np.sum(g**2) for g in gradients))


@pytest.mark.parametrize("padding", ["same", "symmetric"])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (2, 2), (5, 4)])
def test_every_window_sees_the_image_alone(size, stride, padding):
    canvas, images = _canvas(channels=1)
    with lowering(portable=True):
        with masked_padding(jnp.asarray(SIZES), CANVAS):
            together = max_pool(canvas, size, stride, padding=padding)
        for row, image in enumerate(images):
            alone = max_pool(image, size, stride, padding=padding)
            np.testing.assert_array_equal(_cut(together, row, stride), alone)


@pytest.mark.parametrize(("size", "stride"), [(3, 2), (3, 4)])
def test_a_maximum_between_zeros_sees_zeros_where_the_image_ends(size, stride):
    canvas, images = _canvas(channels=1)
    canvas, images = canvas - 9, [image - 9 for image in images]
    with masked_padding(jnp.asarray(SIZES), CANVAS):
        together = max_pool_with_zeros(canvas, size, stride)
    for row, image in enumerate(images):
        between = jnp.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
        expected = max_pool(between, size, stride, padding="valid")
        assert (expected == 0).any()
        np.testing.assert_array_equal(_cut(together, row, stride), expected)


def test_the_mean_counts_pixels_of_the_image_alone():
    x = jnp.full((1, 4, 4, 1), 9.0)
    # Even at a corner it is a mean.
    np.testing.assert_allclose(average_pool(x, 3), x)
    with masked_padding(jnp.array([[2, 1]]), (4, 4)):
        padded = average_pool(x.at[0, 1, 0, 0].set(3.0), 3)
    np.testing.assert_allclose(padded[0, :2, 0, 0], [6, 6])


def test_the_mean_of_a_map_is_that_of_the_image_alone():
    canvas, images = _canvas(channels=2)
    with masked_padding(jnp.asarray(SIZES), CANVAS):
        together = mean_of_map(canvas)
    alone = jnp.concatenate([mean_of_map(image) for image in images])
    assert alone.shape == (len(SIZES), 1, 1, 2)
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_a_gate_sees_the_greatest_value_of_the_image_alone():
    nodes = (
        schema.NasFpnNode(level=3, combine="attention", inputs=(0, 1), output=True),
        schema.NasFpnNode(level=4, inputs=(1, 2), output=True),
    )
    config = schema.NasFpn(min_level=3, max_level=4, depth=2, num_repeats=1, cell=nodes, conv=CONV)
    neck = implementation_of(config)(config, (2, 2), build_options(freeze_norm=True))
    fine, coarse = (
        jnp.asarray(500 * np.random.default_rng(side).normal(size=(1, side, side, 2)))
        for side in (8, 4)
    )
    fine, coarse = fine.at[:, :4, :4].divide(100), coarse.at[:, :2, :2].divide(100)
    with masked_padding(jnp.array([[32, 32]]), (64, 64)):
        together = neck((fine, coarse), train=False)
    alone = neck((fine[:, :4, :4], coarse[:, :2, :2]), train=False)
    for mine, theirs in zip(together, alone, strict=True):
        np.testing.assert_allclose(mine[:, : theirs.shape[1], : theirs.shape[2]], theirs, atol=1e-4)


def test_maps_without_padding_are_refused():
    x = jnp.zeros((1, 46, 62, 1))
    with masked_padding(jnp.array([[30, 30]]), CANVAS), pytest.raises(UserError) as error:
        max_pool(x, 3, 1)
    assert "46 x 62" in str(error.value)


@pytest.mark.parametrize(("resize", "stride"), [(double, 1), (halve, 4)])
def test_interpolation_repeats_the_edge_of_each_image(resize, stride):
    canvas, images = _canvas(channels=1, stride=2)
    with masked_padding(jnp.asarray(SIZES), CANVAS):
        together = resize(canvas)
    for row, image in enumerate(images):
        inner = _cut(together, row, stride)
        np.testing.assert_array_equal(inner, resize(image)[:, : inner.shape[1], : inner.shape[2]])
