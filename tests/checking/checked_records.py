"""Records without any fault, and what a check of records found."""

import numpy as np

from tests.records.builders import image_bytes, make_example


def counts_of(result, severity=None):
    wanted = [f for f in result.findings if severity in (None, f.severity)]
    return {finding.what: finding.count for finding in wanted}


def own_image(number, **options):
    """An image file like no other: decoders pass over what is behind the image."""
    return image_bytes(**options) + b"%d" % number


def sound(number, class_ids=(1, 2), **values):
    # Each box is .02 lower than the one before it.
    boxes = np.add.outer(0.02 * np.arange(len(class_ids)), [0.1, 0.2, 0.5, 0.6])
    defaults = {"image_id": str(number), "encoded": own_image(number)}
    return make_example(boxes, class_ids, **(defaults | values))
