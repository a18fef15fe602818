"""The convolutional head: layers before, kernels, dropout, order of its outputs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.heads.convolutional import ConvolutionalPredictor
from stillbox.models.parts import BuildOptions, Outputs

_CONV = schema.ConvHyperparams(activation="relu6", batch_norm=schema.BatchNorm())
_MAPS = (jnp.ones((2, 2, 3, 6)), jnp.ones((2, 1, 1, 4)))
_OUTPUTS = Outputs(anchors=(3, 2), slots=5, codes=4)


def _build(**fields):
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    config = schema.ConvolutionalHead(conv=_CONV, **fields)
    return ConvolutionalPredictor(config, (6, 4), _OUTPUTS, options)


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
    assert head.map_0.box.kernel.shape == (size, size, 6, 12)
    assert head.map_1.class_.kernel.shape == (size, size, 4, 10)
    for index in range(3):
        assert hasattr(head.map_0, f"before_{index}") == (index < layers)


@pytest.mark.parametrize(
    ("min_depth", "max_depth", "depth"),
    # max(min(6, max), min): bounds of 0 and 0 leave no depth and so no layers.
    [(0, 0, None), (0, 4, 4), (0, 100, 6), (8, 100, 8), (8, 0, 8)],
)
def test_depth_of_the_layers_before_is_bounded(min_depth, max_depth, depth):
    head = _build(layers_before=1, min_depth=min_depth, max_depth=max_depth)
    built = getattr(head.map_0, "before_0", None)
    assert (built and built.kernel.shape[-1]) == depth


def test_heads_have_biases_and_neither_norm_nor_activation():
    head = _build(class_bias_init=-4.6)
    assert not hasattr(head.map_0.box, "norm")
    np.testing.assert_array_equal(head.map_0.box.bias[...], np.zeros(12))
    np.testing.assert_allclose(head.map_1.class_.bias[...], np.full(10, -4.6), rtol=1e-6)
    head.map_0.box.bias[...] = jnp.full(12, -100.0)
    boxes, _ = head(_MAPS, train=False, dropout_key=None)
    assert float(boxes[:, :18].max()) < 0


def test_outputs_run_over_rows_columns_anchors_codes():
    head = _build()
    head.map_0.box.kernel[...] = jnp.zeros((1, 1, 6, 12)).at[0, 0, 0].set(jnp.arange(12.0))
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
    head.map_1.class_.kernel[...] = jnp.ones((1, 1, 4, 10)) / 4
    maps = (jnp.ones((1, 2, 3, 6)), jnp.ones((4000, 1, 1, 4)))
    _, logits = head.map_1(maps[1], train=True, dropout_key=jax.random.key(0))
    # 16,000 draws: standard error .004; values are multiples of 1 / .8 / 4.
    assert abs(float(logits.mean()) - 1) < 0.02
    np.testing.assert_allclose(np.unique(logits), np.arange(5) / 3.2, atol=1e-6)


def test_dropout_without_a_key_is_an_error():
    with pytest.raises(ValueError, match="dropout_key"):
        _build(dropout=True)(_MAPS, train=True, dropout_key=None)


def test_depthwise_heads_filter_before_they_predict():
    head = _build(depthwise=True, kernel_size=3).map_0
    assert head.box_depthwise.kernel.shape == head.class_depthwise.kernel.shape == (3, 3, 6, 1)
    assert hasattr(head.box_depthwise, "norm")
    assert head.box.kernel.shape == (1, 1, 6, 12)
    assert hasattr(head.class_, "bias")
