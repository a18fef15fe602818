"""Checks the shapes and types in signatures while tests run; imported before stillbox is.

A user's process does not check them.
"""

import jaxtyping
from beartype import BeartypeConf, beartype

# A whole number is a `float` in annotations, as type checkers read them.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
# The layers below are traced thousands of times, and the rest of `models` has no shapes.
CHECKED = (
    *("anchors", "backbones", "box_heads", "detector", "heads", "necks", "one_stage"),
    *("postprocessing", "targets", "two_stage"),
)
jaxtyping.install_import_hook(
    ["stillbox.boxes", *(f"stillbox.models.{name}" for name in CHECKED)], f"{__name__}.check"
)
