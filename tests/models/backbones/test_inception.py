"""Inception v2: widths, taps, its first convolution, initialisers.

Inception v3: taps, widths, its last blocks.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.backbones.inception import (
    V2_BLOCKS,
    Branch,
    InceptionBlock,
    Step,
    inception_v2,
    inception_v3,
)
from stillbox.models.backbones.inception_resnet import (
    BLOCK_8,
    BLOCK_17,
    BLOCK_35,
    ResidualBlock,
    inception_resnet_v2,
)
from stillbox.models.box_heads import InceptionResNetV2BlockBoxHead
from stillbox.models.layers import SeparableConv2d
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.paths import variables_of
from tests.helpers import build_options, parts_of

_OPTIONS = build_options(freeze_norm=True)


def _shapes(taps, **fields):
    return nnx.eval_shape(lambda: inception_v2(schema.InceptionV2(**fields), taps, _OPTIONS))


def test_the_whole_network_has_the_parameters_of_the_original():
    # Counted in the list of variables of the original's ssd_inception_v2.
    state = nnx.state(_shapes(("mixed_5c",)), nnx.Param)
    assert sum(p.size for p in jax.tree.leaves(state)) == 10_163_288
    assert len(jax.tree.leaves(state)) == 208


def test_taps_have_the_strides_and_channels_of_the_original():
    names = schema.InceptionV2().layers
    backbone = _shapes(names)
    images = jax.ShapeDtypeStruct((1, 300, 224, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    # 300 is 150, 75, 38, 19, 10; of slim's comments: 112, 56, 28, 14, 7.
    sides = [(150, 112), *[(75, 56)] * 3, *[(38, 28)] * 3, *[(19, 14)] * 5, *[(10, 7)] * 3]
    assert [tap.shape[1:3] for tap in taps] == sides
    channels = (64, 64, 64, 192, 192, 256, 320, *[576] * 5, *[1024] * 3)
    assert tuple(tap.shape[3] for tap in taps) == backbone.channels == channels


@pytest.mark.parametrize(
    ("multiplier", "filters", "channels"),
    # Half of 576. At a tenth, 160 becomes 16, and all narrower layers are raised to 16: two beside
    # the four of the block before; 16 channels from 3 colours leave 5 filters for each.
    # .35 is a little less as a float32: 160 becomes 55, 96 33 and 64 22.
    [(0.5, 8, 288), (0.1, 5, 2 * 16 + 4 * 16), (0.35, 7, 55 + 33 + 22 + 33 + 33 + 22)],
)
def test_widths_are_multiplied_but_no_layer_is_thinner_than_the_least(
    multiplier, filters, channels
):
    backbone = _shapes(("mixed_4a",), depth_multiplier=multiplier)
    assert parts_of(backbone)["conv_1a"].depthwise_kernel.shape == (7, 7, 3, filters)
    assert backbone.channels == (channels,)


def test_the_first_convolution_filters_each_colour_by_itself():
    conv = schema.ConvHyperparams(activation="none", initializer=schema.RandomNormal())
    layer = SeparableConv2d(3, 4, 3, 2, conv, multiplier=2, **_OPTIONS.layer_arguments())
    x = np.random.default_rng(1).normal(size=(2, 9, 8, 3)).astype(np.float32)
    filtered = [
        jax.lax.conv_general_dilated(
            x[..., [colour]],
            layer.depthwise_kernel[...][:, :, [colour], :][:, :, :, [number]],
            (2, 2),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        for colour in range(3)
        for number in range(2)
    ]
    expected = jnp.concatenate(filtered, axis=-1) @ layer.kernel[...][0, 0]
    np.testing.assert_allclose(layer(x, train=False), expected, atol=1e-4)


def test_some_kernels_are_drawn_as_slim_draws_them():
    conv = schema.ConvHyperparams(initializer=schema.RandomNormal(stddev=0.0))
    backbone = inception_v2(schema.InceptionV2(conv=conv), ("mixed_4a",), _OPTIONS)
    spread = {
        path: round(float(jnp.std(kernel[...])) / 0.8796, 2)
        for path, kernel in variables_of(backbone).items()
        if "kernel" in path
    }
    # A normal distribution cut at two deviations has .8796 of its deviation.
    assert {path: value for path, value in spread.items() if value} == {
        "conv_1a.depthwise_kernel": pytest.approx(1.0, abs=0.05),
        "conv_1a.kernel": pytest.approx(1.0, abs=0.05),
        "conv_2b.kernel": 0.1,
        "mixed_3b.branch_1.conv_0a_1x1.kernel": 0.09,
        "mixed_3b.branch_2.conv_0a_1x1.kernel": 0.09,
        "mixed_3b.branch_3.conv_0b_1x1.kernel": 0.1,
        "mixed_3c.branch_1.conv_0a_1x1.kernel": 0.09,
        "mixed_3c.branch_2.conv_0a_1x1.kernel": 0.09,
        "mixed_3c.branch_3.conv_0b_1x1.kernel": 0.1,
        "mixed_4a.branch_0.conv_0a_1x1.kernel": 0.09,
        "mixed_4a.branch_1.conv_0a_1x1.kernel": 0.09,
    }


def test_the_branches_of_a_reduction_stand_in_front_of_its_maximum():
    config = schema.InceptionV2(depth_multiplier=0.02, min_depth=2)
    block = InceptionBlock(
        V2_BLOCKS["mixed_5a"], replace(config, conv=schema.ConvHyperparams()), 3, _OPTIONS
    )
    x = jnp.arange(75.0).reshape(1, 5, 5, 3)
    # 192 and 256 by .02, and the input's channels.
    assert block.channels == 3 + 5 + 3
    # The maximum of the first window, with the first pixel at its centre.
    np.testing.assert_array_equal(block(x, train=False)[0, 0, 0, 8:], x[0, 1, 1])


_SHAPES = build_options(freeze_norm=True, rng=ShapesOnly())


def _v3_shapes(taps, **fields):
    return nnx.eval_shape(lambda: inception_v3(schema.InceptionV3(**fields), taps, _SHAPES))


def test_the_whole_network_has_the_published_number_of_parameters():
    # torchvision's 27,161,264 without the auxiliary classifier's 3,326,696 and the last layer's
    # 2048 * 1000 + 1000. Its batch norms have a factor each, as here.
    state = nnx.state(_v3_shapes(("mixed_7c",)), nnx.Param)
    assert sum(param.size for param in jax.tree.leaves(state)) == 27_161_264 - 3_326_696 - 2_049_000


def test_taps_have_the_sizes_and_channels_of_the_original():
    names = schema.InceptionV3().layers
    backbone = _v3_shapes(names)
    images = jax.ShapeDtypeStruct((1, 299, 75, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    # Of slim's comments, and by hand: without padding 75 is 37, 35, 17, 15, 7, 3, 1.
    sides = [(149, 37), *[(147, 35)] * 2, *[(73, 17)] * 2, (71, 15), *[(35, 7)] * 4]
    sides += [*[(17, 3)] * 5, *[(8, 1)] * 3]
    assert [tap.shape[1:3] for tap in taps] == sides
    channels = (32, 32, 64, 64, 80, 192, 192, 256, 288, 288, *[768] * 5, 1280, 2048, 2048)
    assert tuple(tap.shape[3] for tap in taps) == backbone.channels == channels


def test_a_branch_may_end_in_a_row_beside_a_column():
    conv = schema.ConvHyperparams(activation="none", initializer=schema.RandomNormal())
    config = schema.InceptionV3(min_depth=1, conv=conv)
    steps = Step("0a", 1, 1, 2), Step("0b", 1, 3, 3), Step("0c", 3, 1, 3, beside=True)
    branch = Branch(steps, config, 2, build_options(freeze_norm=True))
    assert branch.channels == 6
    assert parts_of(branch)["conv_0b_1x3"].kernel.shape == (1, 3, 2, 3)
    assert parts_of(branch)["conv_0c_3x1"].kernel.shape == (3, 1, 2, 3)
    x = jnp.zeros((1, 5, 5, 2)).at[0, 2, 2].set(1.0)
    seen = np.abs(branch(x, train=False)[0]).max(axis=2, initial=0, where=np.arange(6) < 3) > 0
    assert np.argwhere(seen).tolist() == [[2, 1], [2, 2], [2, 3]]
    seen = np.abs(branch(x, train=False)[0]).max(axis=2, initial=0, where=np.arange(6) >= 3) > 0
    assert np.argwhere(seen).tolist() == [[1, 2], [2, 2], [3, 2]]


def test_a_pyramid_on_it_is_refused():
    with pytest.raises(UserError, match="level"):
        resolve("ssd_mobilenet_v1_fpn_640x640", changes_of(["model.backbone={kind: inception_v3}"]))


# ---- Inception ResNet v2: sizes and channels of its layers, its residual blocks, its box head ----


_THIN = {"depth_multiplier": 0.05, "min_depth": 4}


@pytest.mark.parametrize("stride", [16, 8])
def test_layers_have_the_strides_and_channels_of_the_original(stride):
    config = schema.InceptionResNetV2(output_stride=stride)
    wanted = ("conv_1a", "conv_2b", "pool_3a", "conv_4a", "mixed_5b", "block35_10", "block17_20")
    backbone = nnx.eval_shape(lambda: inception_resnet_v2(config, wanted, _SHAPES))
    images = jax.ShapeDtypeStruct((1, 299, 224, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    # Every layer is padded: 299 is 150, 75, 38, 19.
    last = (19, 14) if stride == 16 else (38, 28)
    assert [tap.shape[1:3] for tap in taps] == [
        *[(150, 112)] * 2,
        *[(75, 56)] * 2,
        *[(38, 28)] * 2,
        last,
    ]
    # Of slim's comments.
    assert backbone.channels == (32, 64, 64, 192, 320, 320, 1088)
    assert tuple(tap.shape[3] for tap in taps) == backbone.channels


@pytest.mark.parametrize(("padding", "side"), [("valid", 8), ("same", 9)])
def test_crops_become_vectors_of_the_last_convolution(padding, side):
    config = schema.InceptionResNetV2BlockHead(padding=padding)
    head = nnx.eval_shape(lambda: InceptionResNetV2BlockBoxHead(config, 1088, 17, _SHAPES))
    crops = jax.ShapeDtypeStruct((6, 17, 17, 1088), jnp.float32)
    maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
    assert maps.shape == (6, side, side, 1536)
    assert parts_of(head)["block8_1.up"].kernel.shape == (1, 1, 192 + 256, 2080)


def _block(spec, **arguments):
    rng = np.random.default_rng(0)
    return ResidualBlock(
        spec, schema.InceptionResNetV2(**_THIN), 6, build_options(rng=rng), **arguments
    )


@pytest.mark.parametrize(("spec", "scale"), [(BLOCK_35, 0.17), (BLOCK_17, 0.1)])
def test_a_block_adds_a_share_of_its_branches(spec, scale):
    block = _block(spec)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 9, 9, 6)), jnp.float32)
    block.up.kernel[...] = jnp.zeros_like(block.up.kernel[...])
    block.up.bias[...] = jnp.arange(6.0)
    expected = np.maximum(np.asarray(x) + scale * np.arange(6.0), 0)
    np.testing.assert_allclose(block(x, train=False), expected, atol=1e-6)


def test_the_last_block_is_neither_scaled_nor_activated():
    block = _block(BLOCK_8, last=True)
    block.up.kernel[...] = jnp.zeros_like(block.up.kernel[...])
    block.up.bias[...] = jnp.full(6, -2.0)
    x = jnp.ones((1, 3, 3, 6))
    np.testing.assert_allclose(block(x, train=False), jnp.full_like(x, -1.0))


def test_dilated_kernels_reach_twice_as_far():
    for dilation, reach in ((1, 3), (2, 6)):
        block = _block(BLOCK_17, dilation=dilation)
        x = jnp.zeros((1, 17, 17, 6))
        changed = block(x.at[0, 8, 8].set(1.0), train=False) != block(x, train=False)
        rows = np.flatnonzero(np.asarray(changed).any(axis=(0, 2, 3)))
        assert rows.min() >= 8 - reach and rows.max() <= 8 + reach
        assert rows.max() > 8 + reach - dilation
