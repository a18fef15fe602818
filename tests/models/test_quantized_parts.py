"""Every rounding of a detector's parts is on the way from its input to its output."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.build import build_detector  # noqa: F401 - registers the parts
from stillbox.models.layers.quantization import RANGE_ENDS, set_training_step
from stillbox.models.parts import Outputs
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from tests.helpers import build_options

CONV = schema.ConvHyperparams(
    activation="relu6",
    batch_norm=schema.BatchNorm(),
    initializer=schema.TruncatedNormal(stddev=0.3),
)


def options(quantization=None):
    rng = np.random.default_rng(0)
    return build_options(rng=rng, quantization=quantization)


def random(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def backbone(options):
    config = schema.MobileNetV2(depth_multiplier=0.1, min_depth=4, conv=CONV)
    return implementation_of(config)(config, ("block_2",), options), random(2, 16, 16, 3)


def neck(options):
    config = schema.Fpn(conv=CONV, depth=4, min_depth=1, min_level=3, max_level=5, depthwise=True)
    maps = tuple(random(1, side, side, 3) for side in (4, 2))
    return implementation_of(config)(config, (3, 3), options), maps


def mnasfpn(options):
    config = schema.MnasFpn(conv=CONV, depth=8, depth_multiplier=0.1, min_depth=8, num_repeats=1)
    maps = tuple(random(2, side, side, 3) for side in (8, 4, 2))
    return implementation_of(config)(config, (3, 3, 3), options), maps


def efficientnet(options):
    config = schema.EfficientNetLite(width_coefficient=0.1, drop_connect_rate=0.0, conv=CONV)
    return implementation_of(config)(config, ("stack_1_block_1",), options), random(2, 32, 32, 3)


def bifpn(options):
    # Sums of three maps would reach the 6 of relu6.
    conv = replace(CONV, activation="relu")
    config = schema.BiFpn(
        conv=conv, depth=4, num_repeats=1, combine="sum", min_level=4, max_level=6
    )
    maps = tuple(random(2, side, side, 3) for side in (8, 4))
    return implementation_of(config)(config, (3, 3), options), maps


def head(options):
    config = schema.WeightSharedHead(conv=CONV, depth=4, layers_before=1)
    maps = tuple(random(1, side, side, 3) for side in (4, 2))
    outputs = Outputs(anchors=(2, 2), class_channels=3, code_size=4)
    made = implementation_of(config)(config, (3, 3), outputs, options)
    made.box.kernel[...] = random(*made.box.kernel.shape)
    return made, maps


def applied(make, quantization, *, train):
    part, inputs = make(options(quantization))
    graph, params, stats = split_detector(part)

    @jax.jit
    def run(params, stats, inputs):
        part = bind_detector(graph, params, stats)
        set_training_step(part, jnp.int32(0))
        return part(inputs, train=train, dropout_key=None), read_statistics(part)

    return run(params, stats, inputs)


@pytest.mark.parametrize(
    ("make", "roundings"),
    [
        # The first convolution, two of block 0 and three of blocks 1 and 2 each, with kernel and
        # result; the sums of blocks 0 and 2.
        (backbone, 20),
        # Two projections, smoothing and coarse of a depthwise and a 1x1 kernel: 6, and a sum.
        (neck, 13),
        # The coarse map; in each of five blocks two inputs, their sum, a depthwise and a 1x1
        # kernel; the sum with the coarse map, which alone has the depth of the others.
        (mnasfpn, 48),
        # The first convolution, two of the first block and three of the next two, with kernel and
        # result; the sum of the last block.
        (efficientnet, 19),
        # Projections of the coarse map and, in the cell, of three maps; four separable convolutions
        # of a depthwise and a 1x1 kernel; five sums.
        (bifpn, 29),
        # For each of two maps two towers of a layer, box and class.
        (head, 16),
    ],
)
def test_every_rounding_measures_its_range(make, roundings):
    _, stats = applied(make, schema.Quantization(delay=0), train=True)
    ends = {path: float(array) for path, array in stats.items() if path.endswith(RANGE_ENDS)}
    assert len(ends) == 2 * roundings
    # 6 is where they begin; results beyond 6 are cut off by the activation.
    unmeasured = [path for path, value in ends.items() if path.endswith("max") and value == 6.0]
    assert [path for path in unmeasured if "act_quant" not in path] == []
    assert len(unmeasured) <= 2


def test_without_quantisation_nothing_is_rounded():
    (plain,), stats = applied(backbone, None, train=False)
    assert not any(path.endswith(RANGE_ENDS) for path in stats)
    (folded,), _ = applied(backbone, schema.Quantization(delay=0), train=False)
    assert not np.array_equal(plain, folded)
