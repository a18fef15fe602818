"""Checks the shapes and types in signatures while tests run; imported before stillbox is.

A user's process does not check them.
"""

import jaxtyping
from beartype import BeartypeConf, beartype

CHECKED = ("stillbox.boxes",)
# A whole number is a `float` in annotations, as type checkers read them.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
jaxtyping.install_import_hook(CHECKED, f"{__name__}.check")
