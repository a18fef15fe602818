"""Four checkpoints that TensorFlow 1 wrote, and what TensorFlow computed from them.

Each holds the variables of one residual block (or of a lone batch norm) and an input;
`results.json` holds shape, first value, last value and sum of input and output.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.tf1 import Tf1Checkpoint
from tests.shared import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

FOLDER = SHARED / "weights" / "tf1_checkpoints"
BLOCK = "batch-size-32_{}_version-1_width-8_channels-4"
_EPSILON = 1e-5


class Block:
    """The layers of one residual block, with the variables in the order of their creation."""

    def __init__(self, variables):
        self.variables = variables
        self.convolutions = self.norms = 0

    def convolve(self, x, stride=1):
        suffix = f"_{self.convolutions}" if self.convolutions else ""
        self.convolutions += 1
        kernel = self.variables[f"conv2d{suffix}/kernel"]
        size = kernel.shape[0]
        # Strided kernels are padded the same on both sides of the image, whatever its size.
        pad = ((size - 1) // 2, size // 2)
        padding = (pad, pad) if stride > 1 else "SAME"
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def normalize(self, x):
        suffix = f"_{self.norms}" if self.norms else ""
        self.norms += 1
        scope = f"batch_normalization{suffix}"
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        scale = self.variables[f"{scope}/gamma"] / jnp.sqrt(variance + _EPSILON)
        return (x - mean) * scale + self.variables[f"{scope}/beta"]


def batch_norm(block, x):
    return block.normalize(x)


def building(block, x):
    first = jax.nn.relu(block.normalize(block.convolve(x)))
    return jax.nn.relu(block.normalize(block.convolve(first)) + x)


def building_projection(block, x):
    shortcut = block.normalize(block.convolve(x, 2))
    first = jax.nn.relu(block.normalize(block.convolve(x, 2)))
    return jax.nn.relu(block.normalize(block.convolve(first)) + shortcut)


def bottleneck_projection(block, x):
    shortcut = block.normalize(block.convolve(x, 2))
    first = jax.nn.relu(block.normalize(block.convolve(x)))
    second = jax.nn.relu(block.normalize(block.convolve(first, 2)))
    return jax.nn.relu(block.normalize(block.convolve(second)) + shortcut)


@pytest.mark.parametrize(
    ("folder", "compute"),
    [
        ("batch_norm", batch_norm),
        (BLOCK.format("building"), building),
        (BLOCK.format("building_projection"), building_projection),
        (BLOCK.format("bottleneck_projection"), bottleneck_projection),
    ],
)
def test_variables_give_the_results_that_tensorflow_got(folder, compute):
    variables = Tf1Checkpoint(FOLDER / folder / "model.ckpt")
    x = jnp.asarray(variables["input_tensor"])
    output = compute(Block(variables), x)
    results = json.loads((FOLDER / folder / "results.json").read_text())
    for array, expected in ((x, results[:7]), (output, results[7:])):
        assert list(array.shape) == expected[:4]
        values = np.asarray(array, np.float64).ravel()
        np.testing.assert_allclose(values[[0, -1]], expected[4:6], rtol=1e-5, atol=1e-6)
        # A float32 sum over thousands of values, which cancel after batch norm.
        np.testing.assert_allclose(values.sum(), expected[6], rtol=1e-5, atol=2e-3)


def test_a_full_detectors_index_lists_the_200_names_that_tensorflow_lists():
    prefix = FOLDER / "names" / "ssd_mobilenet_v1_coco"
    lines = prefix.with_suffix(".names.txt").read_text().splitlines()
    entries = Tf1Checkpoint(prefix).entries
    ours = [f"{name}\t{list(entry.shape)}" for name, entry in entries.items()]
    assert ours == [line.rpartition("\t")[0] for line in lines]
    assert len(ours) == 200
