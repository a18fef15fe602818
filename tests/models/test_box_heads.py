"""The fully connected box head: order of its layers, their parameters.

The box head of ResNet v1: its shapes, its stride, its mean.

The box head of Inception v2: its shapes and parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import box_heads  # noqa: F401 - registers them
from stillbox.models.parts import BuildOptions


def _build(conv, widths=(2, 3), freeze_norm=False):
    config = schema.FullyConnectedHead(widths=widths, conv=conv)
    options = BuildOptions(dtype=jnp.float32, freeze_norm=freeze_norm, rng=np.random.default_rng(0))
    return implementation_of(config)(config, 4, 3, options)


def test_the_crop_is_flattened_and_the_norm_follows_the_activation():
    head = _build(schema.FullyConnectedHead().conv)
    assert head.dense_1.kernel.shape == (36, 2)
    assert not hasattr(head, "norm_2")
    crops = np.random.default_rng(1).normal(size=(5, 3, 3, 4)).astype(np.float32)
    head.dense_1.bias[...] = jnp.array([0.5, -0.5])
    head.norm_1.mean[...], head.norm_1.var[...] = jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0])
    head.norm_1.scale[...], head.norm_1.bias[...] = jnp.array([2.0, -1.0]), jnp.array([0.0, -3.0])
    first, second = (np.asarray(layer.kernel[...]) for layer in (head.dense_1, head.dense_2))
    hidden = np.maximum(crops.reshape(5, 36) @ first + [0.5, -0.5], 0)
    hidden = (hidden - [1, 2]) / np.sqrt(np.add([4, 9], 1e-3)) * [2, -1] + [0, -3]
    # Behind an activation the second value could not be below zero.
    assert (hidden[:, 1] < 0).any()
    np.testing.assert_allclose(
        head(jnp.asarray(crops), train=False), np.maximum(hidden @ second, 0), atol=1e-5
    )


def test_norms_follow_the_batch_in_training_unless_frozen():
    crops = np.random.default_rng(1).normal(size=(5, 3, 3, 4)).astype(np.float32)
    for frozen in (False, True):
        head = _build(schema.FullyConnectedHead().conv, freeze_norm=frozen)
        head(jnp.asarray(crops), train=True)
        assert bool(jnp.all(head.norm_1.mean[...] == 0)) == frozen


def test_without_norm_there_are_layers_and_biases_alone():
    head = _build(schema.ConvHyperparams(activation="none"), widths=(2,))
    assert not hasattr(head, "norm_1")
    assert head.channels == 2


def _build_resnet_v1_block(**fields):
    config = schema.ResNetBlockHead(**fields)
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return implementation_of(config)(config, 1024, 7, options)


def test_the_parameters_are_those_of_the_fourth_block():
    # A unit of inputs c: c * 512 + 9 * 512^2 + 512 * 2048, and twice 512 + 512 + 2048 of norms; the
    # first one has a shortcut of 1024 * 2048 and twice 2048 too.
    units = [c * 512 + 9 * 512**2 + 512 * 2048 + 2 * 3072 for c in (1024, 2048, 2048)]
    state = nnx.eval_shape(lambda: nnx.state(_build_resnet_v1_block(), nnx.Param))
    assert sum(p.size for p in jax.tree.leaves(state)) == sum(units) + 1024 * 2048 + 2 * 2048


def test_stride_two_computes_four_places_in_a_row():
    crops = jax.ShapeDtypeStruct((6, 7, 7, 1024), jnp.float32)
    for stride, side in ((1, 7), (2, 4)):
        head = nnx.eval_shape(lambda stride=stride: _build_resnet_v1_block(stride=stride))
        maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
        assert maps.shape == (6, side, side, 2048)
        vectors = nnx.eval_shape(lambda head, x: head(x, train=False), head, crops)
        assert vectors.shape == (6, head.channels)


def test_crops_become_vectors_of_the_last_block():
    config = schema.InceptionV2BlockHead()
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    head = nnx.eval_shape(lambda: implementation_of(config)(config, 576, 7, options))
    crops = jax.ShapeDtypeStruct((6, 7, 7, 576), jnp.float32)
    maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
    assert maps.shape == (6, 4, 4, 1024)
    vectors = nnx.eval_shape(lambda head, x: head(x, train=False), head, crops)
    assert vectors.shape == (6, head.channels)
