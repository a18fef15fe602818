"""The box head of ResNet v1: its shapes, its stride, its mean."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import box_heads  # noqa: F401 - registers them
from stillbox.models.parts import BuildOptions


def _build(**fields):
    config = schema.ResNetBlockHead(**fields)
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    return implementation_of(config)(config, 1024, 7, options)


def test_the_parameters_are_those_of_the_fourth_block():
    # A unit of inputs c: c * 512 + 9 * 512^2 + 512 * 2048, and twice 512 + 512 + 2048 of norms; the
    # first one has a shortcut of 1024 * 2048 and twice 2048 too.
    units = [c * 512 + 9 * 512**2 + 512 * 2048 + 2 * 3072 for c in (1024, 2048, 2048)]
    state = nnx.eval_shape(lambda: nnx.state(_build(), nnx.Param))
    assert sum(p.size for p in jax.tree.leaves(state)) == sum(units) + 1024 * 2048 + 2 * 2048


def test_stride_two_computes_four_places_in_a_row():
    crops = jax.ShapeDtypeStruct((6, 7, 7, 1024), jnp.float32)
    for stride, side in ((1, 7), (2, 4)):
        head = nnx.eval_shape(lambda stride=stride: _build(stride=stride))
        maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
        assert maps.shape == (6, side, side, 2048)
        vectors = nnx.eval_shape(lambda head, x: head(x, train=False), head, crops)
        assert vectors.shape == (6, head.channels)
