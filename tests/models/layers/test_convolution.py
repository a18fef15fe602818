"""The convolutions of a CPU against XLA's plain one, forward and backward."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.lowering import lowering
from stillbox.models.layers.lowering import windows
from stillbox.models.layers.lowering.convolution import conv2d, conv_unstrided, depthwise_conv2d
from stillbox.models.layers.lowering.pooling import max_pool
from stillbox.models.layers.lowering.windows import (
    added_up,
    patch_rows,
    product,
    transposed,
    windows_of,
)
from stillbox.models.layers.lowering.winograd import Tiles, choose_tiles
from tests.helpers import refusal

# Height, width, stride: even and odd sides, a map smaller than the kernel.
_SIZES = [(8, 7, 1), (8, 7, 2), (7, 8, 2), (1, 2, 2)]
_CASES = [(*size, jnp.float32) for size in _SIZES] + [(8, 7, 2, jnp.bfloat16)]


def _plain(x, kernel, stride, padding="SAME", dilation=1):
    """XLA's convolution; a kernel with one output is depthwise."""
    depthwise = kernel.shape[3] == 1
    return jax.lax.conv_general_dilated(
        x,
        kernel.swapaxes(2, 3) if depthwise else kernel,
        (stride, stride),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1] if depthwise else 1,
    )


def _random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def _result_and_gradients(function, x, kernel):
    @jax.jit
    def run(x, kernel):
        y, pull_back = jax.vjp(function, x, kernel)
        weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
        return y, *pull_back(weights.astype(y.dtype))

    return [np.asarray(array, np.float32) for array in run(x, kernel)]


def _check(function, x, kernel, stride, dtype, padding="SAME"):
    arrays = [np.asarray(array).astype(dtype) for array in (x, kernel)]
    ours = _result_and_gradients(partial(function, stride=stride), *arrays)
    # bfloat16 is compared with the float32 result: its products may be summed in either type.
    rounded = [array.astype(np.float32) for array in arrays]
    plain = partial(_plain, stride=stride, padding=padding)
    expected = _result_and_gradients(plain, *rounded)
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-2
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, atol=tolerance * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize(("height", "width", "stride", "dtype"), _CASES)
# There are 5 outputs. The gradient of a 1x1 kernel transposes the narrower of its two arrays.
@pytest.mark.parametrize(("size", "inputs"), [(1, 6), (1, 5), (3, 6), (3, 3), (7, 3)])
def test_convolution_and_gradients_equal_the_plain_ones(size, inputs, height, width, stride, dtype):
    x, kernel = _random(2, height, width, inputs), _random(size, size, inputs, 5, seed=1)
    _check(conv2d, x, kernel, stride, dtype)


@pytest.mark.parametrize(
    ("height", "width", "stride", "dtype"),
    [*_CASES, (1, 1, 1, jnp.float32), (46, 5, 1, jnp.float32), (8, 7, 1, jnp.bfloat16)],
)
def test_depthwise_convolution_and_gradients_equal_the_plain_ones(height, width, stride, dtype):
    x, kernel = _random(2, height, width, 6), _random(3, 3, 6, 1, seed=1)
    _check(depthwise_conv2d, x, kernel, stride, dtype)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("cached", [0, 2**30])
def test_the_gradient_of_a_depthwise_kernel_is_the_same_in_one_pass_and_in_many(
    size, stride, cached, monkeypatch
):
    monkeypatch.setattr(windows, "_CACHED_BYTES", cached)
    x, kernel = _random(2, 17, 9, 6), _random(size, size, 6, 1, seed=1)
    _check(depthwise_conv2d, x, kernel, stride, jnp.float32)


@pytest.mark.parametrize("function", [conv2d, depthwise_conv2d])
@pytest.mark.parametrize("stride", [1, 2])
def test_other_platforms_get_the_plain_convolution(function, stride):
    outputs = 5 if function is conv2d else 1
    x, kernel = _random(2, 7, 8, 6), _random(3, 3, 6, outputs, seed=1)
    with lowering(platform="tpu"):
        _check(function, x, kernel, stride, jnp.float32)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("platform", "calls"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_a_program_holds_the_form_of_its_platform_alone(platform, calls, known):
    def loss(x, kernel):
        return jnp.sum(depthwise_conv2d(x, kernel, 2))

    with lowering(platform={"cuda": "gpu"}.get(platform, platform) if known else None):
        program = jax.jit(jax.grad(loss, argnums=(0, 1)))
        traced = program.trace(_random(2, 8, 8, 6), _random(3, 3, 6, 1))
    assert ("platform_index" in str(traced.jaxpr)) != known
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("inlineable" in text) == calls
    assert ("stablehlo.convolution" in text) != calls


@pytest.mark.parametrize(("convolve", "depth"), [(conv2d, 4), (depthwise_conv2d, 1)])
@pytest.mark.parametrize(("height", "width"), [(8, 7), (5, 6)])
def test_explicit_padding_is_the_same_on_all_sides(convolve, depth, height, width):
    x, kernel = _random(2, height, width, 3), _random(3, 3, 3, depth, seed=1)
    padded = jax.jit(partial(convolve, stride=2, padding="symmetric"))(x, kernel)
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    np.testing.assert_allclose(padded, _plain(around, kernel, 2, "VALID"), atol=1e-5)


@pytest.mark.parametrize("padding", ["symmetric", "valid"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("function", "depth"), [(conv2d, 4), (depthwise_conv2d, 1)])
def test_gradients_with_either_padding_equal_the_plain_ones(
    function, depth, dtype, stride, padding
):
    x, kernel = _random(2, 13, 9, 6), _random(5, 5, 6, depth, seed=1)
    border = 2 if padding == "symmetric" else 0
    around = ((border, border), (border, border))
    _check(partial(function, padding=padding), x, kernel, stride, dtype, around)


@pytest.mark.parametrize(
    ("function", "kernel"),
    [
        (conv2d, (3, 1, 2, 4)),
        (depthwise_conv2d, (3, 3, 2, 1)),
        (lambda x, kernel, stride, padding: max_pool(x, 3, stride, padding=padding), ()),
    ],
)
def test_a_map_that_no_window_fits_into_is_refused(function, kernel):
    error = refusal(function, jnp.ones((1, 2, 4, 2)), jnp.ones(kernel), 2, padding="valid")
    assert "without padding reads 3 rows and columns, and its map has 2" in error.what


@pytest.mark.parametrize("stride", [1, 2])
def test_without_padding_the_edges_are_lost(stride):
    x, kernel = _random(2, 8, 7, 3), _random(3, 3, 3, 4, seed=1)
    convolved = jax.jit(partial(conv2d, stride=stride, padding="valid"))(x, kernel)
    np.testing.assert_allclose(convolved, _plain(x, kernel, stride, "VALID"), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kernel_shape"),
    [
        # One block of all images; one for each image; blocks of rows, the last one filled up.
        ((4, 6, 5, 3), (3, 3, 3, 32)),
        ((3, 40, 40, 96), (3, 3, 96, 32)),
        ((2, 77, 60, 128), (3, 3, 128, 32)),
        ((2, 9, 8, 4), (5, 3, 4, 40)),
    ],
)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_the_gradient_of_a_kernel_is_that_of_one_convolution(shape, kernel_shape, padding):
    _check_unstrided(shape, kernel_shape, padding, dilation=1)


# Rows in several blocks, and a map that is smaller than the dilated kernel.
@pytest.mark.parametrize("shape", [(2, 77, 60, 128), (2, 3, 5, 4)])
@pytest.mark.parametrize("dilation", [2, 4])
def test_the_taps_of_a_dilated_kernel_are_apart(shape, dilation):
    _check_unstrided(shape, (3, 3, shape[-1], 32), "same", dilation)


def _check_unstrided(shape, kernel_shape, padding, dilation):
    x, kernel = _random(*shape), _random(*kernel_shape, seed=1)
    plain = partial(_plain, stride=1, padding=padding.upper(), dilation=dilation)
    ours = partial(conv2d, stride=1, padding=padding, dilation=dilation)
    computed, expected = (_result_and_gradients(f, x, kernel) for f in (ours, plain))
    np.testing.assert_allclose(computed[0], expected[0], rtol=1e-5, atol=1e-4)
    for mine, theirs in zip(computed[1:], expected[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


_PADS = [((1, 1), (1, 1)), ((0, 0), (0, 0)), ((0, 1), (1, 0))]


def _check_winograd(x, kernel, pads, tile, tolerance):
    def run(tiles, *arrays):
        return _result_and_gradients(lambda x, k: conv_unstrided(x, k, pads, 1, tiles), *arrays)

    tiled = run(Tiles(tile, tile, tile), x, kernel)
    plain = run(Tiles(), x.astype(jnp.float32), kernel.astype(jnp.float32))
    for ours, theirs in zip(tiled, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


# Sides that tiles divide and that they do not, maps smaller than a tile.
@pytest.mark.parametrize("size", [(8, 12), (7, 9), (3, 4)])
@pytest.mark.parametrize("pads", _PADS)
@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_give_the_plain_convolution_and_its_gradients(size, pads, tile):
    # Kernel gradients of fewer output channels are XLA's own.
    x, kernel = _random(2, *size, 5), _random(3, 3, 5, 32, seed=1)
    _check_winograd(x, kernel, pads, tile, 2e-6 if tile == 2 else 2e-5)


def test_tiles_of_two_lose_as_much_as_bfloat16_does():
    x, kernel = _random(2, 10, 9, 64).astype("bfloat16"), _random(3, 3, 64, 32).astype("bfloat16")
    _check_winograd(x, kernel, _PADS[0], 2, 1e-2)


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
    with lowering(cpu_convolutions="fast"):
        assert choose_tiles(shape, (side, side), dtype) == expected
    assert choose_tiles(shape, (side, side), dtype) == Tiles()
    with lowering(cpu_convolutions="exact"):
        assert choose_tiles(shape, (side, side), dtype) == Tiles()


@pytest.mark.parametrize(("platform", "convolutions"), [("cpu", 0), ("tpu", 3), ("cuda", 3)])
def test_other_platforms_have_convolutions(platform, convolutions):
    def loss(x, kernel):
        return jnp.sum(jnp.square(conv2d(x, kernel, 1)))

    x, kernel = _random(1, 20, 20, 64), _random(3, 3, 64, 64)
    with lowering(cpu_convolutions="fast"):
        traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(x, kernel)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.convolution") == convolutions


def _random_products(*shape, seed=0):
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(np.float32)


# Small integers: bfloat16 holds them, and their sums, without an error.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transposed_product_is_one_that_runs(dtype):
    """Without a layout XLA has no bfloat16 product for a consumer that reads by columns."""
    a, b = (jnp.asarray(_random_products(20, n, seed=n)).astype(dtype) for n in (24, 16))

    @jax.jit
    def kernel_gradient(a, b):
        return product(transposed(a), b).T.reshape(4, 4, 24).astype(dtype)

    expected = (np.asarray(a, np.float32).T @ np.asarray(b, np.float32)).T.reshape(4, 4, 24)
    expected = np.asarray(jnp.asarray(expected).astype(dtype), np.float32)
    np.testing.assert_array_equal(np.asarray(kernel_gradient(a, b), np.float32), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sum_of_a_product_is_float32(dtype):
    a, b = jnp.full((1, 4096), 1 / 16, dtype), jnp.full((4096, 1), 1 / 16, dtype)
    result = product(a, b)
    assert result.dtype == jnp.float32
    assert result[0, 0] == 16


# Kernels that a stride divides and that it does not, windows that leave pixels out.
@pytest.mark.parametrize("size", [(9, 12), (8, 7)])
@pytest.mark.parametrize("taps", [(3, 3), (1, 1), (2, 4)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_are_added_up_where_they_come_from(size, taps, stride):
    @jax.jit
    def run(image):
        windows, put_back = jax.vjp(lambda image: windows_of(image, taps, stride), image)
        stacked = jnp.stack(windows, axis=3)
        patches = stacked.reshape(*stacked.shape[:3], *taps, -1)
        rows = patch_rows(image[0], taps, stride)
        return patches[0], rows, added_up(patches, size, stride), put_back(windows)[0]

    patches, rows, added, expected = map(np.asarray, run(_random_products(2, *size, 3)))
    np.testing.assert_array_equal(added, expected)
    np.testing.assert_array_equal(rows, patches.transpose(2, 3, 4, 0, 1).reshape(len(rows), -1))
