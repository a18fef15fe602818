"""Imported layers compute what the framework of their weights computes.

The other side of the comparison reads the arrays as they are in the file, with the paddings of
TensorFlow and PyTorch written out.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.experiment import schema
from tests.checkpoints.detectors import Holder, random_arrays
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_zip

CONV = replace(schema.ResNet().conv, batch_norm=schema.BatchNorm(epsilon=1e-5, scale=True))
CONFIG = schema.ResNet(depth=10, conv=CONV)
# Size, inputs, outputs and stride; a block has projection, first and second convolution.
STEM = (7, 3, 64, 2)
PLAIN = ((3, 64, 64, 1), (3, 64, 64, 1))
STRIDED = ((1, 64, 128, 2), (3, 64, 128, 2), (3, 128, 128, 1))


class World(NamedTuple):
    """A framework: its names of a convolution and of batch norm, kernels, pooling, file."""

    layers: tuple
    arrays: tuple
    kernel: str
    pool: tuple
    write: object


def _write_torch(path, arrays):
    write_zip(path, state_dict(arrays))


WORLDS = {
    "same": World(
        layers=tuple(
            (f"conv2d{number}/", f"batch_normalization{number}/")
            for number in ("", "_1", "_2", "_3", "_4", "_5")
        ),
        arrays=("kernel", "gamma", "beta", "moving_mean", "moving_variance"),
        kernel="HWIO",
        # Of 16 x 16 the least padding is one pixel, which TensorFlow puts at the end.
        pool=(0, 1),
        write=write_checkpoint,
    ),
    "symmetric": World(
        layers=(
            ("conv1.", "bn1."),
            ("layer1.0.conv1.", "layer1.0.bn1."),
            ("layer1.0.conv2.", "layer1.0.bn2."),
            ("layer2.0.downsample.0.", "layer2.0.downsample.1."),
            ("layer2.0.conv1.", "layer2.0.bn1."),
            ("layer2.0.conv2.", "layer2.0.bn2."),
        ),
        arrays=("weight", "weight", "bias", "running_mean", "running_var"),
        kernel="OIHW",
        pool=(1, 1),
        write=_write_torch,
    ),
}


def _arrays(world):
    shapes = {}
    for (conv, norm), spec in zip(world.layers, (STEM, *PLAIN, *STRIDED), strict=True):
        size, inputs, outputs, _ = spec
        axes = {"H": size, "W": size, "I": inputs, "O": outputs}
        kernel, *others = world.arrays
        shapes[conv + kernel] = tuple(axes[axis] for axis in world.kernel)
        shapes |= {norm + name: (outputs,) for name in others}
    arrays = random_arrays(shapes)
    # Variances are positive; small kernels keep the sums small.
    return {
        name: np.abs(array) + 0.5 if "var" in name else array * 0.05 if array.ndim == 4 else array
        for name, array in arrays.items()
    }


def _network(world, arrays, x, pool):
    """Stem, pooling, a plain block and a strided one: `[B, H, W, 3]` to `[B, H/8, W/8, 128]`."""
    layers = iter(zip(world.layers, (STEM, *PLAIN, *STRIDED), strict=True))

    def layer(x):
        (conv, norm), (size, _, _, stride) = next(layers)
        kernel, scale, shift, mean, variance = (
            arrays[scope + name]
            for scope, name in zip((conv, *[norm] * 4), world.arrays, strict=True)
        )
        pad, axes = (size // 2, size // 2), ("NHWC", world.kernel, "NHWC")
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), (pad, pad), dimension_numbers=axes
        )
        return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift

    relu = jax.nn.relu
    window, strides, pads = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), pool, pool, (0, 0))
    x = jax.lax.reduce_window(relu(layer(x)), -np.inf, jax.lax.max, window, strides, pads)
    x = relu(x + layer(relu(layer(x))))
    projected = layer(x)
    return relu(projected + layer(relu(layer(x))))


@pytest.mark.parametrize("padding", WORLDS)
def test_imported_layers_compute_what_their_framework_computes(tmp_path, padding):
    world = WORLDS[padding]
    arrays, config = _arrays(world), replace(CONFIG, pool_padding=padding)
    world.write(tmp_path / "weights.pth", arrays)
    holder = Holder(config, "group_2")
    model = schema.OneStage(backbone=config, neck=schema.SsdExtraLayers(taps=("group_2",)))
    options = ImportOptions(scope="classification", load_heads=False)
    report = import_weights(holder, model, tmp_path / "weights.pth", options)
    assert len(report.loaded) == 6 * 5
    assert not report.notes and not report.skipped
    images = np.random.default_rng(2).standard_normal((1, 32, 32, 3), np.float32)
    (ours,) = holder.backbone(images, train=False)
    theirs = _network(world, arrays, images, world.pool)
    assert ours.shape == (1, 4, 4, 128)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    # With the other framework's padding the numbers are others.
    (other,) = {(0, 1), (1, 1)} - {world.pool}
    assert np.abs(_network(world, arrays, images, other) - theirs).max() > 0.1
