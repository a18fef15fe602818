"""`PostProcessing`: from raw predictions to detections."""

from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    Nms,
    Postprocessing,
)

_CONVERTERS: dict[str, Any] = {"IDENTITY": "identity", "SIGMOID": "sigmoid", "SOFTMAX": "softmax"}


def read_postprocessing(section: Section, path: str) -> Postprocessing:
    """Reads `post_processing`."""
    suppression = section.child("batch_non_max_suppression")
    return Postprocessing(
        score_converter=_CONVERTERS[section.value("score_converter", f"{path}.score_converter")],
        nms=Nms(
            **suppression.fill(
                f"{path}.nms",
                "score_threshold",
                "iou_threshold",
                max_per_class="max_detections_per_class",
                max_total="max_total_detections",
            )
        ),
        **section.fill(path, "logit_scale"),
    )
