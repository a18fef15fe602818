"""The convolutional head: layers before, kernels, dropout, order of its outputs.

The weight-shared head: kernels for all maps, a batch norm for each.
"""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import box_heads  # noqa: F401 - registers them
from stillbox.models.heads import PerMapPredictor, WeightSharedPredictor
from stillbox.models.layers import SeparableConv2d
from stillbox.models.parts import Outputs
from stillbox.models.paths import variables_of
from tests.helpers import build_options, parts_of

_CONV = schema.ConvHyperparams(activation="relu6", batch_norm=schema.BatchNorm())
_MAPS = (jnp.ones((2, 2, 3, 6)), jnp.ones((2, 1, 1, 4)))
_OUTPUTS = Outputs(anchors=(3, 2), class_channels=5, code_size=4)


def _build(**fields):
    config = schema.ConvolutionalHead(conv=_CONV, **fields)
    return PerMapPredictor(config, (6, 4), _OUTPUTS, build_options())


@pytest.mark.parametrize(
    ("layers", "size", "dropout"), list(itertools.product((0, 1, 2), (1, 3), (False, True)))
)
def test_every_combination_predicts_for_all_anchors(layers, size, dropout):
    head = _build(layers_before=layers, max_depth=8, kernel_size=size, dropout=dropout)

    def predict(maps, key):
        return head(maps, train=False, dropout_key=key)

    boxes, logits = jax.eval_shape(predict, _MAPS, jax.random.key(0))
    # 2 * 3 locations with 3 anchors and one with 2.
    assert boxes.shape == (2, 20, 4)
    assert logits.shape == (2, 20, 5)
    assert parts_of(head)["map_0.box"].kernel.shape == (size, size, 6, 12)
    assert parts_of(head)["map_1.class_"].kernel.shape == (size, size, 4, 10)
    for index in range(3):
        assert (f"map_0.before_{index}" in parts_of(head)) == (index < layers)


@pytest.mark.parametrize(
    ("min_depth", "max_depth", "depth"),
    # max(min(6, max), min): bounds of 0 and 0 leave no depth and so no layers.
    [(0, 0, None), (0, 4, 4), (0, 100, 6), (8, 100, 8), (8, 0, 8)],
)
def test_depth_of_the_layers_before_is_bounded(min_depth, max_depth, depth):
    head = _build(layers_before=1, min_depth=min_depth, max_depth=max_depth)
    built = parts_of(head).get("map_0.before_0")
    assert (built and built.kernel.shape[-1]) == depth


def test_heads_have_biases_and_neither_norm_nor_activation():
    head = _build(class_bias_init=-4.6)
    assert "map_0.box.norm" not in parts_of(head)
    np.testing.assert_array_equal(parts_of(head)["map_0.box"].bias[...], np.zeros(12))
    np.testing.assert_allclose(
        parts_of(head)["map_1.class_"].bias[...], np.full(10, -4.6), rtol=1e-6
    )
    parts_of(head)["map_0.box"].bias[...] = jnp.full(12, -100.0)
    boxes, _ = head(_MAPS, train=False, dropout_key=None)
    assert float(boxes[:, :18].max()) < 0


def test_outputs_run_over_rows_columns_anchors_codes():
    head = _build()
    parts_of(head)["map_0.box"].kernel[...] = (
        jnp.zeros((1, 1, 6, 12)).at[0, 0, 0].set(jnp.arange(12.0))
    )
    # Channel 0 of location (y, x) holds 10 y + x + 1 and multiplies the kernel 0..11.
    location = 10 * np.arange(2)[:, None] + np.arange(3) + 1
    features = jnp.zeros((1, 2, 3, 6)).at[0, :, :, 0].set(location)
    boxes, _ = head((features, _MAPS[1][:1]), train=False, dropout_key=None)
    expected = location.reshape(-1, 1) * np.arange(12)
    np.testing.assert_array_equal(boxes[0, :18], expected.reshape(18, 4))


def test_dropout_touches_the_class_head_in_training_alone():
    head = _build(dropout=True, dropout_keep_probability=0.5)
    key = jax.random.key(3)
    plain = head(_MAPS, train=False, dropout_key=key)
    dropped = head(_MAPS, train=True, dropout_key=key)
    np.testing.assert_array_equal(plain.box_encodings, dropped.box_encodings)
    assert not np.allclose(plain.class_logits, dropped.class_logits)
    again = head(_MAPS, train=True, dropout_key=key)
    np.testing.assert_array_equal(dropped.class_logits, again.class_logits)


def test_dropout_keeps_the_expectation():
    head = _build(dropout=True, dropout_keep_probability=0.8)
    parts_of(head)["map_1.class_"].kernel[...] = jnp.ones((1, 1, 4, 10)) / 4
    maps = jnp.ones((4000, 1, 1, 4))
    _, logits = head.heads[1]((maps,), train=True, dropout_key=jax.random.key(0))
    # 16,000 draws: standard error .004; values are multiples of 1 / .8 / 4.
    assert abs(float(logits.mean()) - 1) < 0.02
    np.testing.assert_allclose(np.unique(logits), np.arange(5) / 3.2, atol=1e-6)


def test_dropout_without_a_key_is_an_error():
    with pytest.raises(ValueError, match="dropout_key"):
        _build(dropout=True)(_MAPS, train=True, dropout_key=None)


def test_depthwise_heads_filter_before_they_predict():
    head = _build(depthwise=True, kernel_size=3).heads[0]
    assert head.box_depthwise.kernel.shape == head.class_depthwise.kernel.shape == (3, 3, 6, 1)
    assert head.box_depthwise.norm is not None
    assert head.box.kernel.shape == (1, 1, 6, 12)
    assert head.class_.bias is not None


_CONV_WEIGHT_SHARED = schema.ConvHyperparams(
    activation="relu6", batch_norm=schema.BatchNorm(scale=True)
)
_OUTPUTS_WEIGHT_SHARED = Outputs(anchors=(2, 2), class_channels=5, code_size=4)


def _build_weight_shared(
    inputs=(6, 6),
    outputs=_OUTPUTS_WEIGHT_SHARED,
    conv=_CONV_WEIGHT_SHARED,
    dtype=jnp.float32,
    **fields,
):
    config = schema.WeightSharedHead(conv=conv, **{"depth": 8, "layers_before": 2} | fields)
    return WeightSharedPredictor(config, inputs, outputs, build_options(dtype=dtype))


def _maps(*channels):
    rng = np.random.default_rng(1)
    sides = ((2, 3), (1, 1))
    return tuple(
        jnp.asarray(rng.normal(size=(2, *side, c)), jnp.float32)
        for side, c in zip(sides, channels, strict=True)
    )


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("share_tower", [False, True])
@pytest.mark.parametrize("layers_before", [0, 1, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_weight_shared_every_combination_predicts_for_all_anchors(
    depthwise, share_tower, layers_before, dtype
):
    head = _build_weight_shared(
        layers_before=layers_before, share_tower=share_tower, depthwise=depthwise, dtype=dtype
    )
    boxes, logits = jax.eval_shape(
        lambda maps: head(maps, train=False, dropout_key=None), _maps(6, 6)
    )
    # Six locations and one, each with two anchors.
    assert boxes.shape == (2, 14, 4)
    assert logits.shape == (2, 14, 5)
    assert {boxes.dtype, logits.dtype} == {jnp.dtype("float32")}
    assert (head.tower is not None) == share_tower
    assert isinstance(head.box, SeparableConv2d) == depthwise


def test_one_kernel_and_its_gradient_serve_all_maps():
    head = _build_weight_shared(layers_before=1)
    assert [path for path in variables_of(head.box_tower) if "kernel" in path] == [
        "layer_0.conv.kernel"
    ]


def test_each_map_has_separate_statistics():
    head = _build_weight_shared(layers_before=1)
    head(_maps(6, 6), train=True, dropout_key=None)
    layer = head.box_tower.layers[0]
    assert not np.allclose(parts_of(layer)["norm_0"].mean[...], parts_of(layer)["norm_1"].mean[...])
    assert "norm_2" not in parts_of(layer)
    assert layer.conv.bias is None


def test_without_batch_norm_the_towers_have_biases():
    layer = _build_weight_shared(conv=schema.ConvHyperparams(activation="relu6")).box_tower.layers[
        0
    ]
    assert layer.conv.bias is not None
    assert "norm_0" not in parts_of(layer)
    assert layer.conv.activation == "relu6"


def test_a_map_of_other_channels_is_projected_to_those_of_most():
    outputs = Outputs(anchors=(2, 2, 2), class_channels=5, code_size=4)
    head = _build_weight_shared((6, 4, 6), outputs)
    assert parts_of(head)["projection_1.conv"].kernel.shape == (1, 1, 4, 6)
    assert "projection_0" not in parts_of(_build_weight_shared())
    maps = (*_maps(6, 4), jnp.ones((2, 1, 1, 6)))
    boxes, _ = head(maps, train=False, dropout_key=None)
    # (6 + 1 + 1) locations of two anchors.
    assert boxes.shape == (2, 16, 4)


def test_outputs_run_over_maps_rows_columns_anchors_codes():
    head = _build_weight_shared(layers_before=0)
    for layer in (head.box, head.class_):
        layer.kernel[...] = jnp.zeros_like(layer.kernel[...])
    head.box.bias[...] = jnp.arange(8.0)
    boxes, _ = head(_maps(6, 6), train=False, dropout_key=None)
    np.testing.assert_array_equal(boxes[0], np.tile(np.arange(8.0).reshape(2, 4), (7, 1)))


def test_weight_shared_dropout_touches_the_class_head_in_training_alone():
    head, maps = _build_weight_shared(dropout=True, layers_before=0), _maps(6, 6)
    plain = head(maps, train=False, dropout_key=None)
    dropped = head(maps, train=True, dropout_key=jax.random.key(0))
    np.testing.assert_array_equal(dropped.box_encodings, plain.box_encodings)
    assert not np.allclose(dropped.class_logits, plain.class_logits)


def test_class_biases_start_at_class_bias_init():
    head = _build_weight_shared(class_bias_init=-4.6)
    np.testing.assert_allclose(head.class_.bias[...], np.full(10, -4.6), rtol=1e-6)
    np.testing.assert_array_equal(head.box.bias[...], np.zeros(8))


def test_the_last_kernels_may_have_a_separate_initializer():
    head = _build_weight_shared(
        (64, 64), depth=64, predictor_initializer=schema.RandomNormal(stddev=1e-5)
    )
    tower = schema.TruncatedNormal().stddev
    for name, layer, stddev in (
        ("box", head.box, 1e-5),
        ("class", head.class_, 1e-5),
        # A normal distribution that is cut at two deviations has .88 of its deviation left.
        ("tower", head.box_tower.layers[0].conv, 0.88 * tower),
    ):
        # 9 * 64 * 8 numbers or more: a standard error of 1 % or less.
        np.testing.assert_allclose(np.std(layer.kernel[...]), stddev, rtol=0.05, err_msg=name)


@pytest.mark.parametrize("depthwise", [False, True])
def test_only_separable_predictors_have_the_defaults_of_keras(depthwise):
    conv = replace(_CONV_WEIGHT_SHARED, regularizer=schema.L2(weight=1e-4))
    head = _build_weight_shared(conv=conv, depthwise=depthwise, predictor_defaults=True)
    assert head.box.regularizer == (None if depthwise else conv.regularizer)


def test_maps_of_different_anchors_are_refused():
    with pytest.raises(UserError, match="3, 6 anchors at a location") as caught:
        _build_weight_shared(outputs=Outputs(anchors=(3, 6), class_channels=5, code_size=4))
    assert "reduce_boxes_in_lowest_layer" in caught.value.fix


# ---- The fully connected box head: order of its layers, their parameters -------------------------


def _build_box_heads(conv, widths=(2, 3), freeze_norm=False):
    config = schema.FullyConnectedHead(widths=widths, conv=conv)
    return implementation_of(config)(config, 4, 3, build_options(freeze_norm=freeze_norm))


def test_the_crop_is_flattened_and_the_norm_follows_the_activation():
    head = _build_box_heads(schema.FullyConnectedHead().conv)
    assert parts_of(head)["dense_1"].kernel.shape == (36, 2)
    assert "norm_2" not in parts_of(head)
    crops = np.random.default_rng(1).normal(size=(5, 3, 3, 4)).astype(np.float32)
    parts_of(head)["dense_1"].bias[...] = jnp.array([0.5, -0.5])
    parts_of(head)["norm_1"].mean[...], parts_of(head)["norm_1"].var[...] = (
        jnp.array([1.0, 2.0]),
        jnp.array([4.0, 9.0]),
    )
    parts_of(head)["norm_1"].scale[...], parts_of(head)["norm_1"].bias[...] = (
        jnp.array([2.0, -1.0]),
        jnp.array([0.0, -3.0]),
    )
    first, second = (
        np.asarray(layer.kernel[...])
        for layer in (parts_of(head)["dense_1"], parts_of(head)["dense_2"])
    )
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
        head = _build_box_heads(schema.FullyConnectedHead().conv, freeze_norm=frozen)
        head(jnp.asarray(crops), train=True)
        assert bool(jnp.all(parts_of(head)["norm_1"].mean[...] == 0)) == frozen


def test_without_norm_there_are_layers_and_biases_alone():
    head = _build_box_heads(schema.ConvHyperparams(activation="none"), widths=(2,))
    assert "norm_1" not in parts_of(head)
    assert head.channels == 2


def _build_resnet_v1_block(**fields):
    config = schema.ResNetBlockHead(**fields)
    return implementation_of(config)(config, 1024, 7, build_options())


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
    options = build_options()
    head = nnx.eval_shape(lambda: implementation_of(config)(config, 576, 7, options))
    crops = jax.ShapeDtypeStruct((6, 7, 7, 576), jnp.float32)
    maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
    assert maps.shape == (6, 4, 4, 1024)
    vectors = nnx.eval_shape(lambda head, x: head(x, train=False), head, crops)
    assert vectors.shape == (6, head.channels)


def test_kernels_of_predictions_may_have_a_size_of_their_own():
    config = schema.PerMapHead(
        conv=_CONV, depth=8, layers_before=1, share_tower=True, predictor_kernel_size=1
    )
    head = PerMapPredictor(config, (6, 4), _OUTPUTS, build_options())
    assert parts_of(head)["map_0.tower.layer_0.conv"].kernel.shape == (3, 3, 6, 8)
    assert parts_of(head)["map_0.box"].kernel.shape == (1, 1, 8, 12)
    assert parts_of(head)["map_1.class_"].kernel.shape == (1, 1, 8, 10)
