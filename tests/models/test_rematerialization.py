"""Rematerialised blocks: less is kept, and everything else is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.backbones.resnet import BlockOptions, residual_group
from stillbox.models.build import build_detector  # noqa: F401 - registers the parts
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.layers.quantization import set_training_step
from stillbox.models.parts import Outputs
from stillbox.models.rematerialization import set_rematerialization
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from tests.helpers import build_options

CONV = schema.ConvHyperparams(activation="relu6", batch_norm=schema.BatchNorm())
KEY = jax.random.key(0)


def options(rng=None, quantization=None):
    rng = rng or np.random.default_rng(0)
    return build_options(rng=rng, quantization=quantization)


def random(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def differentiated(part, kind):
    """Returns the function from variables and input to loss, new statistics and gradients."""
    graph, _, _ = split_detector(part)

    def loss(params, inputs, stats):
        part = bind_detector(graph, params, stats)
        set_rematerialization(part, kind)
        set_training_step(part, jnp.int32(3))
        result = part(inputs, train=True, dropout_key=KEY)
        total = sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(result))
        return total, read_statistics(part)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


def quantized_backbone():
    config = schema.MobileNetV2(depth_multiplier=0.1, min_depth=4, conv=CONV)
    rounding = options(quantization=schema.Quantization(delay=0))
    return implementation_of(config)(config, ("block_1",), rounding), random(2, 16, 16, 3)


def random_backbone():
    config = schema.EfficientNet(conv=CONV, width_coefficient=0.25, drop_connect_rate=0.5)
    taps = ("stack_1_block_0", "stack_1_block_1")
    return implementation_of(config)(config, taps, options()), random(2, 16, 16, 3)


def head():
    """Towers that several maps share, with statistics of their own."""
    config = schema.WeightSharedHead(conv=CONV, depth=4, layers_before=2)
    outputs = Outputs(anchors=(2, 2), class_channels=3, code_size=4)
    made = implementation_of(config)(config, (3, 3), outputs, options())
    return made, tuple(random(2, side, side, 3) for side in (4, 2))


GROUPED = schema.ConvHyperparams(activation="relu", group_norm=schema.GroupNorm(groups=2))


def _grouped(config):
    outputs = Outputs(anchors=(1, 1), class_channels=3, code_size=4)
    made = implementation_of(config)(config, (8, 8), outputs, options())
    return made, tuple(random(2, side, side, 8) for side in (4, 2))


def centerness_head():
    """Towers with group norm, and a factor for each map."""
    return _grouped(schema.AtssHead(conv=GROUPED, depth=4, layers_before=2))


def task_aligned_head():
    """A tower with all of its layers read, and boxes that are resampled."""
    return _grouped(schema.TaskAlignedHead(conv=GROUPED, depth=8, layers_before=2))


FAST = [random_backbone, head]
SLOW = [quantized_backbone, centerness_head, task_aligned_head]


@pytest.mark.parametrize(
    "make", [*FAST, *(pytest.param(make, marks=pytest.mark.slow) for make in SLOW)]
)
def test_loss_gradients_and_statistics_are_the_same(make):
    part, inputs = make()
    _, params, stats = split_detector(part)
    results = [
        jax.jit(differentiated(part, kind))(params, inputs, stats) for kind in ("none", "blocks")
    ]
    leaves = [jax.tree_util.tree_leaves_with_path(result) for result in results]
    after = results[1][0][1]
    still = {path for path in stats if np.array_equal(after[path], stats[path])}
    assert all(path.endswith(".min") for path in still)  # of a rectifier, 0
    for (path, plain), (_, again) in zip(*leaves, strict=True):
        scale = max(1.0, float(np.abs(plain).max()))
        np.testing.assert_allclose(again, plain, rtol=0, atol=2e-5 * scale, err_msg=str(path))


def kept_bytes(part, inputs, kind):
    """Returns the bytes of the arrays, but for variables, that the gradient keeps."""
    graph, params, stats = split_detector(part)

    def kept(params, stats, inputs):
        def run(params, inputs):
            part = bind_detector(graph, params, stats)
            set_rematerialization(part, kind)
            return part(inputs, train=True, dropout_key=KEY)

        return jax.vjp(run, params, inputs)[1]

    arrays = jax.tree.leaves(jax.eval_shape(kept, params, stats, inputs))
    variables = {array.shape for array in (*params.values(), *stats.values())}
    return sum(array.size * 4 for array in arrays if array.shape not in variables)


def _of_kind(kind: str):
    marks = [] if kind in ("mobilenet_v2", "resnet", "spinenet") else [pytest.mark.slow]
    return pytest.param(schema.Backbone.variants[kind](), id=kind, marks=marks)


@pytest.mark.parametrize("config", [_of_kind(kind) for kind in schema.Backbone.variants])
def test_every_backbone_has_blocks(config):
    tap = config.layers[-1]
    part = implementation_of(config)(config, (tap,), options(ShapesOnly()))
    image = jax.ShapeDtypeStruct((1, 128, 128, 3), jnp.float32)
    plain, blocks = (kept_bytes(part, image, kind) for kind in ("none", "blocks"))
    assert blocks < plain / 2


def test_a_compiled_gradient_holds_less():
    part = residual_group("residual", 8, 8, 6, BlockOptions(CONV, options()))
    _, params, stats = split_detector(part)
    plain, blocks = (
        jax.jit(differentiated(part, kind))
        .lower(params, random(1, 64, 64, 8), stats)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
        for kind in ("none", "blocks")
    )
    assert blocks < 0.7 * plain
