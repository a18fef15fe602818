"""The neck that does nothing."""

import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.models.necks.identity import IdentityNeck
from stillbox.models.parts import BuildOptions


def test_levels_pass_as_they_are():
    options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    config = schema.Identity(min_level=4, max_level=5)
    neck = IdentityNeck(config, (3, 5), options)
    taps = (jnp.ones((1, 4, 4, 3)), jnp.ones((1, 2, 2, 5)))
    assert neck(taps, train=True) is taps
    assert neck.channels == (3, 5)
    assert config.taps_of(schema.ResNet()) == ("group_3", "group_4")
