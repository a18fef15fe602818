"""Checks the shapes and types in signatures while tests run; imported before stillbox is.

A user's process does not check them. Two kinds of calls are not checked: calls with a symbolic
size, as in an export of any batch size, because jaxtyping compares numbers; and calls of models
with NumPy arrays, which JAX accepts in place of its own.
"""

from functools import wraps

import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype

_MODELS = "anchors box_heads detector heads necks one_stage postprocessing targets two_stage"
CHECKED = (
    *("stillbox.boxes", "stillbox.inputs"),
    *(f"stillbox.models.{name}" for name in _MODELS.split()),
)
# A whole number is a `float` in annotations, as type checkers read them.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """Returns the function with checks of its arguments and its result."""
    checked = _check(function)
    if not callable(function) or isinstance(function, type):
        return checked
    in_models = function.__module__.startswith("stillbox.models.")

    @wraps(function)
    def call(*arguments, **named):
        values = (*arguments, *named.values())
        passes = any(map(_is_symbolic, values)) or (in_models and any(map(_is_numpy, values)))
        return (function if passes else checked)(*arguments, **named)

    return call


def _is_symbolic(value):
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and not all(isinstance(size, int) for size in shape)


def _is_numpy(value):
    return isinstance(value, np.ndarray | np.generic)


jaxtyping.install_import_hook(CHECKED, f"{__name__}.check")
