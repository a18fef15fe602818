"""One gradient of a small backbone in training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.models.variables import bind_detector, read_statistics, split_detector
from tests.helpers import build_options
from tests.programs import QUICK_COMPILER

# Half of the time goes into making fast what runs once.
_COMPILED_QUICKLY = QUICK_COMPILER | {"xla_llvm_disable_expensive_passes": True}
OPTIONS = build_options()


def train_once(backbone, config, dtype):
    """Asserts that gradients are finite and nowhere all zero, and that all statistics move."""
    options = replace(OPTIONS, dtype=dtype)
    graph, params, stats = split_detector(backbone(config, config.layers, options))
    images = jnp.asarray(np.random.default_rng(1).normal(size=(2, 32, 32, 3)), dtype)

    def loss(params, stats, images):
        part = bind_detector(graph, params, stats)
        maps = part(images, train=True, dropout_key=None)
        assert all(m.dtype == dtype for m in maps)
        terms = [jnp.sum(jnp.sin(3 * m.astype(jnp.float32))) for m in maps]
        return sum(terms), read_statistics(part)

    lowered = jax.jit(jax.grad(loss, has_aux=True)).lower(params, stats, images)
    compiled = lowered.compile(compiler_options=_COMPILED_QUICKLY)
    gradient, after = compiled(params, stats, images)
    assert all(np.isfinite(g).all() for g in gradient.values())
    assert [path for path, g in gradient.items() if not np.any(g)] == []
    assert [path for path in stats if np.array_equal(after[path], stats[path])] == []
