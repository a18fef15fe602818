"""The outputs of both signatures, and the program that an artefact holds, run by JAX."""

import jax
import numpy as np

from stillbox.exporting.program import ExportProgram
from stillbox.inputs.resize import resize_image

OUTPUTS = {
    "detection_api": [
        *("detection_anchor_indices", "detection_boxes", "detection_classes"),
        *("detection_multiclass_scores", "detection_scores", "num_detections"),
        *("raw_detection_boxes", "raw_detection_scores"),
    ],
    "tpu": [
        *("num_detections", "detection_boxes", "detection_classes", "detection_scores"),
        "image_info",
    ],
}
"""Names in their order."""


def expected(model, settings, images):
    """What the program itself returns for images `[B, h, w, 3]` of one size."""
    program = ExportProgram(model, settings)
    resized, sizes = zip(
        *(resize_image(image, program.description.resizer) for image in images), strict=True
    )
    original = np.tile(np.int32(images.shape[1:3]), (len(images), 1))
    outputs = jax.jit(program.outputs)(
        program.weights, np.stack(resized), np.int32(sizes), original
    )
    return {name: np.asarray(array) for name, array in outputs.items()}
