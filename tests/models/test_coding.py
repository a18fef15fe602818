"""A description of a box coder becomes functions with its values in them."""

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.box_coders import build_box_coder

# Centres .5 and .4, sizes .2 x .2 and .4 x .4: shifts .1 / .4 = .25, ln(.2 / .4) = -.693147.
BOX, ANCHOR = [0.4, 0.4, 0.6, 0.6], [0.2, 0.2, 0.6, 0.6]
HALVED = -0.693147


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (
            schema.FasterRcnnBoxCoder(y_scale=2.0, x_scale=3.0, height_scale=4.0, width_scale=5.0),
            [0.5, 0.75, 4 * HALVED, 5 * HALVED],
        ),
        (
            schema.SquareBoxCoder(y_scale=2.0, x_scale=3.0, length_scale=4.0),
            [0.5, 0.75, 4 * HALVED],
        ),
        (schema.MeanStddevBoxCoder(stddev=0.1), [2, 2, 0, 0]),
    ],
)
def test_a_coder_encodes_with_its_values_and_decodes_back(config, code):
    coder = build_box_coder(config, (40, 80))
    codes = coder.encode(BOX, ANCHOR)
    assert codes.shape == (config.code_size,)
    np.testing.assert_allclose(codes, code, atol=1e-5)
    np.testing.assert_allclose(coder.decode(codes, ANCHOR), BOX, atol=1e-6)
