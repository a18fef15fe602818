"""Winograd's convolutions against XLA's plain one, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.layers.lowering.choice import Tiles, choose_tiles, cpu_convolutions
from stillbox.models.layers.lowering.convolution import conv2d
from stillbox.models.layers.lowering.unstrided import conv_unstrided

_PADS = [((1, 1), (1, 1)), ((0, 0), (0, 0)), ((0, 1), (1, 0))]


def _random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _result_and_gradients(x, kernel, pads, tiles):
    y, pull_back = jax.vjp(lambda x, k: conv_unstrided(x, k, pads, 1, tiles), x, kernel)
    weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return [np.asarray(a, np.float32) for a in (y, *pull_back(weights.astype(y.dtype)))]


def _check(x, kernel, pads, tile, tolerance):
    tiled = _result_and_gradients(x, kernel, pads, Tiles(tile, tile, tile))
    whole = [a.astype(jnp.float32) for a in (x, kernel)]
    for ours, plain in zip(tiled, _result_and_gradients(*whole, pads, Tiles()), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=tolerance * np.abs(plain).max())


# Sides that tiles divide and that they do not, maps smaller than a tile.
@pytest.mark.parametrize("size", [(8, 12), (7, 9), (3, 4)])
@pytest.mark.parametrize("pads", _PADS)
@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_give_the_plain_convolution_and_its_gradients(size, pads, tile):
    # Kernel gradients of fewer output channels are XLA's own.
    x, kernel = _random(2, *size, 5), _random(3, 3, 5, 32, seed=1)
    _check(x, kernel, pads, tile, 2e-6 if tile == 2 else 2e-5)


def test_tiles_of_two_lose_as_much_as_bfloat16_does():
    x, kernel = _random(2, 10, 9, 64).astype("bfloat16"), _random(3, 3, 64, 32).astype("bfloat16")
    _check(x, kernel, _PADS[0], 2, 1e-2)


@pytest.mark.parametrize(
    ("shape", "side", "dtype", "expected"),
    [
        ((3, 3, 256, 256), 40, "float32", Tiles(4, 4, 4)),
        ((3, 3, 256, 256), 40, "bfloat16", Tiles(2, 2, 4)),
        # Too few channels, too small a map, another kernel.
        ((3, 3, 256, 36), 40, "float32", Tiles()),
        ((3, 3, 256, 256), 3, "float32", Tiles()),
        ((5, 5, 256, 256), 40, "float32", Tiles()),
    ],
)
def test_the_shape_chooses_the_tiles(shape, side, dtype, expected):
    with cpu_convolutions("fast"):
        assert choose_tiles(shape, (side, side), dtype) == expected
    assert choose_tiles(shape, (side, side), dtype) == Tiles()
    with cpu_convolutions("exact"):
        assert choose_tiles(shape, (side, side), dtype) == Tiles()


@pytest.mark.parametrize(("platform", "convolutions"), [("cpu", 0), ("tpu", 3), ("cuda", 3)])
def test_other_platforms_have_convolutions(platform, convolutions):
    def loss(x, kernel):
        return jnp.sum(jnp.square(conv2d(x, kernel, 1)))

    x, kernel = _random(1, 20, 20, 64), _random(3, 3, 64, 64)
    with cpu_convolutions("fast"):
        traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(x, kernel)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.convolution") == convolutions
