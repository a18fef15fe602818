"""The messages that a `pipeline.config` may hold, as data (fact sheet 1.2).

One field a line: `name: type = default | oneof ! replacement`. A star behind the type means
repeated, `!` deprecated; a type is a scalar, `opaque` (known by name only), an enum or a message.
Field numbers are left out: the text format does not use them.
"""

from stillbox.experiment.textproto.tables import (
    augmentations,
    boxes,
    faster_rcnn,
    inputs,
    layers,
    losses,
    pipeline,
    ssd,
    training,
)

TABLES = (
    pipeline.TABLE,
    ssd.TABLE,
    boxes.TABLE,
    layers.TABLE,
    losses.TABLE,
    training.TABLE,
    inputs.TABLE,
    augmentations.TABLE,
    faster_rcnn.TABLE,
)
"""All of them."""
