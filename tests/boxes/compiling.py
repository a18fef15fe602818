"""Programs as users compile them; tests otherwise compile without optimisation."""

import jax
import numpy as np


def optimised(function, *arrays, **named):
    """Returns the result of a function that LLVM optimises."""
    options = {"xla_backend_optimization_level": 3}
    compiled = jax.jit(function).lower(*arrays, **named).compile(options)
    return np.asarray(compiled(*arrays, **named))
