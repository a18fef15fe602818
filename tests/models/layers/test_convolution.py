"""The lowerings of the CPU against XLA's plain convolution, forward and backward."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.layers.lowering.convolution import conv2d, depthwise_conv2d

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
# Height, width, stride: even and odd sides, a map smaller than the kernel.
_SIZES = [(8, 7, 1), (8, 7, 2), (7, 8, 2), (1, 2, 2)]
_CASES = [(*size, jnp.float32) for size in _SIZES] + [(8, 7, 2, jnp.bfloat16)]


def _plain(x, kernel, stride):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=_DIMENSIONS
    )


def _plain_depthwise(x, kernel, stride):
    return jax.lax.conv_general_dilated(
        x,
        kernel.swapaxes(2, 3),
        (stride, stride),
        "SAME",
        dimension_numbers=_DIMENSIONS,
        feature_group_count=x.shape[-1],
    )


def _random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _result_and_gradients(function, x, kernel, stride, dtype):
    def run(x, kernel):
        y, pull_back = jax.vjp(partial(function, stride=stride), x, kernel)
        weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
        return y, *pull_back(weights.astype(y.dtype))

    arrays = jax.jit(run)(x.astype(dtype), kernel.astype(dtype))
    return [np.asarray(array, np.float32) for array in arrays]


def _check(function, plain, x, kernel, stride, dtype):
    ours = _result_and_gradients(
        lambda x, kernel, stride: function(x, kernel, stride), x, kernel, stride, dtype
    )
    # bfloat16 is held to the float32 result: its products may be summed in either type.
    rounded = [a.astype(dtype).astype(jnp.float32) for a in (x, kernel)]
    expected = _result_and_gradients(plain, *rounded, stride, jnp.float32)
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-2
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, atol=tolerance * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize(("height", "width", "stride", "dtype"), _CASES)
@pytest.mark.parametrize(("size", "inputs"), [(1, 6), (3, 6), (3, 3), (7, 3)])
def test_convolution_and_gradients_equal_the_plain_ones(size, inputs, height, width, stride, dtype):
    x, kernel = _random(2, height, width, inputs), _random(size, size, inputs, 5, seed=1)
    _check(conv2d, _plain, x, kernel, stride, dtype)


@pytest.mark.parametrize(
    ("height", "width", "stride", "dtype"),
    [*_CASES, (1, 1, 1, jnp.float32), (46, 5, 1, jnp.float32), (8, 7, 1, jnp.bfloat16)],
)
def test_depthwise_convolution_and_gradients_equal_the_plain_ones(height, width, stride, dtype):
    x, kernel = _random(2, height, width, 6), _random(3, 3, 6, 1, seed=1)
    _check(depthwise_conv2d, _plain_depthwise, x, kernel, stride, dtype)


@pytest.mark.parametrize("function", [conv2d, depthwise_conv2d])
@pytest.mark.parametrize("stride", [1, 2])
def test_other_platforms_get_the_plain_convolution(function, stride, monkeypatch):
    outputs = 5 if function is conv2d else 1
    x, kernel = _random(2, 7, 8, 6), _random(3, 3, 6, outputs, seed=1)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    plain = _plain if function is conv2d else _plain_depthwise
    _check(function, plain, x, kernel, stride, jnp.float32)


@pytest.mark.parametrize(("platform", "calls"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_a_program_holds_the_form_of_its_platform_alone(platform, calls):
    def loss(x, kernel):
        return jnp.sum(depthwise_conv2d(x, kernel, 2))

    traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(_random(2, 8, 8, 6), _random(3, 3, 6, 1))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("inlineable" in text) == calls
    assert ("stablehlo.convolution" in text) != calls


@pytest.mark.parametrize(("convolve", "depth"), [(conv2d, 4), (depthwise_conv2d, 1)])
@pytest.mark.parametrize(("height", "width"), [(8, 7), (5, 6)])
def test_explicit_padding_is_the_same_on_all_sides(convolve, depth, height, width):
    x, kernel = _random(2, height, width, 3), _random(3, 3, 3, depth, seed=1)
    padded = convolve(x, kernel, 2, padding="symmetric")
    around = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    groups = 1 if depth > 1 else 3
    expected = jax.lax.conv_general_dilated(
        around,
        kernel if depth > 1 else kernel.swapaxes(2, 3),
        (2, 2),
        "VALID",
        dimension_numbers=_DIMENSIONS,
        feature_group_count=groups,
    )
    np.testing.assert_allclose(padded, expected, atol=1e-5)


@pytest.mark.parametrize("padding", ["symmetric", "valid"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("function", "depth"), [(conv2d, 4), (depthwise_conv2d, 1)])
def test_gradients_with_either_padding_equal_the_plain_ones(
    function, depth, dtype, stride, padding
):
    border = 2 if padding == "symmetric" else 0

    def plain(x, kernel, stride):
        return jax.lax.conv_general_dilated(
            x,
            kernel if depth > 1 else kernel.swapaxes(2, 3),
            (stride, stride),
            ((border, border), (border, border)),
            dimension_numbers=_DIMENSIONS,
            feature_group_count=1 if depth > 1 else x.shape[-1],
        )

    x, kernel = _random(2, 13, 9, 6), _random(5, 5, 6, depth, seed=1)
    _check(partial(function, padding=padding), plain, x, kernel, stride, dtype)


@pytest.mark.parametrize("stride", [1, 2])
def test_without_padding_the_edges_are_lost(stride):
    x, kernel = _random(2, 8, 7, 3), _random(3, 3, 3, 4, seed=1)
    expected = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "VALID", dimension_numbers=_DIMENSIONS
    )
    convolved = conv2d(x, kernel, stride, padding="valid")
    np.testing.assert_allclose(convolved, expected, atol=1e-5)


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

    def plain(x, kernel):
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (1, 1),
            padding.upper(),
            rhs_dilation=(dilation, dilation),
            dimension_numbers=_DIMENSIONS,
        )

    def ours(x, kernel):
        return conv2d(x, kernel, 1, padding=padding, dilation=dilation)

    np.testing.assert_allclose(ours(x, kernel), plain(x, kernel), rtol=1e-5, atol=1e-4)
    weights = _random(*jax.eval_shape(plain, x, kernel).shape, seed=2)
    for argument in (0, 1):
        expected, found = (
            jax.grad(lambda x, kernel, f=f: jnp.sum(f(x, kernel) * weights), argument)(x, kernel)
            for f in (plain, ours)
        )
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(jnp.abs(expected).max()))
