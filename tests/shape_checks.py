"""Checks the shapes and types in signatures while tests run; imported before stillbox is.

A user's process does not check them.
"""

import jaxtyping
from beartype import BeartypeConf, beartype

# A whole number is a `float` in annotations, as type checkers read them.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
CHECKED = (
    "boxes",
    *(
        f"models.{name}"
        for name in ("detector", "one_stage", "postprocessing", "targets", "two_stage")
    ),
)
jaxtyping.install_import_hook([f"stillbox.{name}" for name in CHECKED], f"{__name__}.check")
