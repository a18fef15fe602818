"""`PostProcessing`, and what a box predictor does to its encodings: predictions to detections."""

from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.calibration import read_calibration
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import BoxEncodingsClip, Nms, Postprocessing

_CONVERTERS: dict[str, Any] = {"IDENTITY": "identity", "SIGMOID": "sigmoid", "SOFTMAX": "softmax"}


def read_postprocessing(ssd: Section, path: str) -> Postprocessing:
    """Reads `ssd.post_processing`, and the range of the encodings from the box predictor."""
    section = ssd.child("post_processing")
    calibration = None
    if section.has("calibration_config"):
        calibration = read_calibration(section.child("calibration_config"), f"{path}.calibration")
    return Postprocessing(
        box_encodings_clip=_read_clip(ssd.child("box_predictor"), f"{path}.box_encodings_clip"),
        score_converter=_read_converter(ssd, f"{path}.score_converter"),
        calibration=calibration,
        nms=_read_nms(section.child("batch_non_max_suppression"), f"{path}.nms"),
        **section.fill(path, "logit_scale"),
    )


def _read_converter(ssd: Section, path: str) -> Any:  # noqa: ANN401
    """Reads the score converter, which a weight-shared predictor may have instead."""
    section = ssd.child("post_processing")
    converter = section.value("score_converter", path)
    predictor = ssd.child("box_predictor").child("weight_shared_convolutional_box_predictor")
    # The original applies the predictor's at inference alone, which is where this one stands.
    if predictor.value("score_converter") == "SIGMOID":
        if converter != "IDENTITY":
            raise UserError(
                f"scores are converted twice: SIGMOID in the box predictor, {converter} behind it",
                where=predictor.position("score_converter"),
                fix="take one of them out",
            )
        converter = predictor.value("score_converter", path)
    return _CONVERTERS[converter]


def _read_nms(section: Section, path: str) -> Nms:
    partitioned = section.value("use_partitioned_nms", f"{path}.drop_at_threshold")
    if partitioned and not section.value("use_static_shapes"):
        section.log.notes.append(
            f"{section.position('use_partitioned_nms')}: use_partitioned_nms has no effect without "
            f"use_static_shapes; --set {path}.drop_at_threshold=true has its effect"
        )
        partitioned = False
    return Nms(
        drop_at_threshold=partitioned,
        **section.fill(
            path,
            "score_threshold",
            "iou_threshold",
            "change_coordinate_frame",
            max_per_class="max_detections_per_class",
            max_total="max_total_detections",
            soft_sigma="soft_nms_sigma",
            class_agnostic="use_class_agnostic_nms",
            combined="use_combined_nms",
        ),
    )


def _read_clip(predictor: Section, path: str) -> BoxEncodingsClip | None:
    for name in ("convolutional_box_predictor", "weight_shared_convolutional_box_predictor"):
        if predictor.has(name) and predictor.child(name).has("box_encodings_clip_range"):
            section = predictor.child(name).child("box_encodings_clip_range")
            return BoxEncodingsClip(**section.fill(path, "min", "max"))
    return None
