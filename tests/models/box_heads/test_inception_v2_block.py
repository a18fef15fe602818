"""The box head of Inception v2: its shapes and parameters."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import box_heads  # noqa: F401 - registers them
from stillbox.models.parts import BuildOptions


def test_crops_become_vectors_of_the_last_block():
    config = schema.InceptionV2BlockHead()
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    head = nnx.eval_shape(lambda: implementation_of(config)(config, 576, 7, options))
    crops = jax.ShapeDtypeStruct((6, 7, 7, 576), jnp.float32)
    maps = nnx.eval_shape(lambda head, x: head.features(x, train=False), head, crops)
    assert maps.shape == (6, 4, 4, 1024)
    vectors = nnx.eval_shape(lambda head, x: head(x, train=False), head, crops)
    assert vectors.shape == (6, head.channels)
