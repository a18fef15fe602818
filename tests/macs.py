"""Multiply-adds of a detector's convolutions, counted while it is traced."""

import math
from unittest.mock import patch

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers import conv, separable
from stillbox.models.variables import bind_detector, split_detector
from tests.tpu_detection import abstract


def count_macs(model: schema.OneStage) -> int:
    """Counts those of one image; nothing is computed."""
    image = jax.ShapeDtypeStruct((1, *model.resizer.input_size, 3), jnp.float32)
    counts = []

    def counted(convolution, axes):
        def call(x, kernel, stride, **options):
            y = convolution(x, kernel, stride, **options)
            counts.append(y.size * math.prod(kernel.shape[:axes]))
            return y

        return call

    graph, params, stats = split_detector(abstract(model))
    with (
        # A number of the result sums over taps and channels; of a depthwise one, over taps alone.
        patch.object(conv, "conv2d", counted(conv.conv2d, 3)),
        patch.object(conv, "depthwise_conv2d", counted(conv.depthwise_conv2d, 2)),
        patch.object(separable, "conv2d", counted(separable.conv2d, 3)),
    ):
        jax.eval_shape(
            lambda p, s, x: bind_detector(graph, p, s)(x, train=False), params, stats, image
        )
    return sum(counts)
