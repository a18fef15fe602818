"""Moments of fresh kernels."""

import math

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.layers.initializers import draw_kernel

_SHAPE = (3, 3, 40, 50)  # fan in 360, fan out 450
# A standard normal cut at two deviations has a deviation of .87963.
_CUT = 0.87963


@pytest.mark.parametrize(
    ("initializer", "mean", "deviation", "most"),
    [
        (schema.TruncatedNormal(mean=1.0, stddev=0.5), 1.0, 0.5 * _CUT, 1.0),
        (schema.RandomNormal(mean=-1.0, stddev=0.5), -1.0, 0.5, 9.0),
        # sqrt(1.3 * 2 / 360) before the cut.
        (schema.VarianceScaling(), 0.0, math.sqrt(2.6 / 360) * _CUT, 2 * math.sqrt(2.6 / 360)),
        (schema.VarianceScaling(mode="fan_out"), 0.0, math.sqrt(2.6 / 450) * _CUT, 1.0),
        # The deviation is exact after the cut, at two of those before it.
        (
            schema.VarianceScaling(exact_cut=True),
            0.0,
            math.sqrt(2 / 360),
            2 * math.sqrt(2 / 360) / _CUT,
        ),
        # Uniform in +-sqrt(3 / 405) has variance 1 / 405.
        (
            schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
            0.0,
            math.sqrt(1 / 405),
            math.sqrt(3 / 405),
        ),
    ],
)
def test_kernel_has_the_moments_of_its_distribution(initializer, mean, deviation, most):
    kernel = draw_kernel(initializer, _SHAPE, np.random.default_rng(0))
    assert kernel.dtype == np.float32
    # 18,000 values: the mean is known to .75 % of the deviation, the deviation to .5 %.
    assert abs(kernel.mean() - mean) < 0.03 * deviation
    assert abs(kernel.std() - deviation) < 0.02 * deviation
    assert np.abs(kernel - mean).max() <= most * (1 + 1e-6)
