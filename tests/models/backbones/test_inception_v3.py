"""Inception v3: taps, widths, its last blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.backbones.inception_v3 import InceptionV3Backbone, InceptionV3Branch
from stillbox.models.layers.initializers import ShapesOnly
from stillbox.models.parts import BuildOptions

_SHAPES = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=ShapesOnly())


def _shapes(taps, **fields):
    return nnx.eval_shape(lambda: InceptionV3Backbone(schema.InceptionV3(**fields), taps, _SHAPES))


def test_the_whole_network_has_the_published_number_of_parameters():
    # torchvision's 27,161,264 without the auxiliary classifier's 3,326,696 and the last layer's
    # 2048 * 1000 + 1000. Its batch norms have a factor each, as here.
    state = nnx.state(_shapes(("mixed_7c",)), nnx.Param)
    assert sum(param.size for param in jax.tree.leaves(state)) == 27_161_264 - 3_326_696 - 2_049_000


def test_taps_have_the_sizes_and_channels_of_the_original():
    names = schema.InceptionV3().layers
    backbone = _shapes(names)
    images = jax.ShapeDtypeStruct((1, 299, 75, 3), jnp.float32)
    taps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, images)
    # Of slim's comments, and by hand: without padding 75 is 37, 35, 17, 15, 7, 3, 1.
    sides = [(149, 37), *[(147, 35)] * 2, *[(73, 17)] * 2, (71, 15), *[(35, 7)] * 4]
    sides += [*[(17, 3)] * 5, *[(8, 1)] * 3]
    assert [tap.shape[1:3] for tap in taps] == sides
    channels = (32, 32, 64, 64, 80, 192, 192, 256, 288, 288, *[768] * 5, 1280, 2048, 2048)
    assert tuple(tap.shape[3] for tap in taps) == backbone.channels == channels


def test_a_branch_may_end_in_a_row_beside_a_column():
    options = BuildOptions(dtype=jnp.float32, freeze_norm=True, rng=np.random.default_rng(0))
    conv = schema.ConvHyperparams(activation="none", initializer=schema.RandomNormal())
    config = schema.InceptionV3(min_depth=1, conv=conv)
    steps = (("0a_1x1", 2), ("0b_1x3", 3), ("0c_3x1", 3))
    branch = InceptionV3Branch(steps, config, 2, options)
    assert branch.channels == 6
    assert branch.conv_0b_1x3.kernel.shape == (1, 3, 2, 3)
    assert branch.conv_0c_3x1.kernel.shape == (3, 1, 2, 3)
    x = jnp.zeros((1, 5, 5, 2)).at[0, 2, 2].set(1.0)
    seen = np.abs(branch(x, train=False)[0]).max(axis=2, initial=0, where=np.arange(6) < 3) > 0
    assert np.argwhere(seen).tolist() == [[2, 1], [2, 2], [2, 3]]
    seen = np.abs(branch(x, train=False)[0]).max(axis=2, initial=0, where=np.arange(6) >= 3) > 0
    assert np.argwhere(seen).tolist() == [[1, 2], [2, 2], [3, 2]]


def test_a_pyramid_on_it_is_refused():
    with pytest.raises(UserError, match="level"):
        resolve("ssd_mobilenet_v1_fpn_640x640", ["model.backbone={kind: inception_v3}"])
