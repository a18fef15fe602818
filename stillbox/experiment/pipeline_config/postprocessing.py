"""`PostProcessing`, and the clipping of box encodings: predictions to detections."""

from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.calibration import read_calibration
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import BoxEncodingsClip, Nms, Postprocessing
from stillbox.experiment.sections import part

_read_nms = part(
    Nms,
    max_per_class="max_detections_per_class",
    max_total="max_total_detections",
    soft_sigma="soft_nms_sigma",
    class_agnostic="use_class_agnostic_nms",
    combined="use_combined_nms",
)


def read_postprocessing(
    section: MessageSection, path: str, predictor: MessageSection | None = None
) -> Postprocessing:
    """Reads a `PostProcessing`.

    Args:
        section: the message.
        path: its place in the experiment.
        predictor: the box predictor of an SSD, which may have a score converter, and the range that
            encodings are clipped to.
    """
    calibration, clip = None, None
    if section.has("calibration_config"):
        calibration = read_calibration(section.child("calibration_config"), f"{path}.calibration")
    converter = section.value("score_converter", f"{path}.score_converter")
    if predictor is not None:
        clip = _read_clip(predictor, f"{path}.box_encodings_clip")
        converter = _converter_before(predictor, converter, f"{path}.score_converter")
    nms = section.child("batch_non_max_suppression")
    return Postprocessing(
        box_encodings_clip=clip,
        score_converter=converter,
        calibration=calibration,
        nms=_read_nms(nms, f"{path}.nms", drop_at_threshold=_drops(nms, f"{path}.nms")),
        **section.fill(path, "logit_scale"),
    )


def _converter_before(predictor: MessageSection, converter: Any, path: str) -> Any:  # noqa: ANN401
    """Returns the score converter that a weight-shared predictor has, or else the given one."""
    section = predictor.child("weight_shared_convolutional_box_predictor")
    # The original applies the predictor's converter at inference alone, like the other one.
    if section.value("score_converter") != "sigmoid":
        return converter
    if converter != "identity":
        raise UserError(
            f"scores are converted twice: SIGMOID in the box predictor, {converter.upper()} "
            "behind it",
            where=section.where("score_converter"),
            fix="take one of them out",
        )
    return section.value("score_converter", path)


def _drops(section: MessageSection, path: str) -> bool:
    """Reads whether a box whose overlap is the threshold itself is dropped."""
    partitioned: bool = section.value("use_partitioned_nms", f"{path}.drop_at_threshold")
    if partitioned and not section.value("use_static_shapes"):
        section.note(
            "use_partitioned_nms",
            "use_partitioned_nms has no effect without use_static_shapes; "
            f"--set {path}.drop_at_threshold=true has its effect",
        )
        return False
    return partitioned


def _read_clip(predictor: MessageSection, path: str) -> BoxEncodingsClip | None:
    for name in ("convolutional_box_predictor", "weight_shared_convolutional_box_predictor"):
        if predictor.has(name) and predictor.child(name).has("box_encodings_clip_range"):
            section = predictor.child(name).child("box_encodings_clip_range")
            return BoxEncodingsClip(**section.fill(path, "min", "max"))
    return None
