"""Rules about the way from predictions to detections."""

import itertools
from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, OneStageRule
from stillbox.experiment.schema import (
    Calibration,
    ClassCurve,
    ClassCurveCalibration,
    ClassSigmoidCalibration,
    CurveCalibration,
    FixedShapeResizer,
    OneStage,
)

_NMS = "model.postprocessing.nms"
_CALIBRATION = "model.postprocessing.calibration"


def nms_limits_are_ordered(model: OneStage) -> Iterator[Broken]:
    """No class may ask for more boxes than the image has (fact sheet 1.3)."""
    nms = model.postprocessing.nms
    if nms.max_per_class > nms.max_total:
        yield Broken(
            f"{_NMS}.max_per_class",
            f"max_per_class {nms.max_per_class} is more than max_total {nms.max_total}",
            "lower it, or raise max_total",
        )


def soft_nms_drops_nothing(model: OneStage) -> Iterator[Broken]:
    """Where scores fade there is no threshold of overlaps."""
    nms = model.postprocessing.nms
    if nms.soft_sigma > 0.0 and nms.drop_at_threshold:
        yield Broken(
            f"{_NMS}.drop_at_threshold",
            "drop_at_threshold together with soft_sigma: soft NMS drops no box for its overlap",
            "set one of them to its default",
        )


def combined_nms_is_plain(model: OneStage) -> Iterator[Broken]:
    """The original's combined operation knows no other variant (fact sheet 1.3)."""
    nms = model.postprocessing.nms
    if not nms.combined:
        return
    others = {
        "change_coordinate_frame": nms.change_coordinate_frame,
        "soft_sigma": nms.soft_sigma > 0.0,
        "class_agnostic": nms.class_agnostic,
    }
    for name in (name for name, given in others.items() if given):
        default = "0" if name == "soft_sigma" else "false"
        yield Broken(
            f"{_NMS}.{name}",
            f"{name} together with combined: combined NMS does not have it",
            f"set {name} to {default}, or combined to false",
        )
    if not nms.clip:
        yield Broken(
            f"{_NMS}.clip",
            "clip false together with combined: combined NMS clips to the network input",
            "set clip to true, or combined to false",
        )


def clipping_has_an_effect(model: OneStage) -> Iterator[Broken]:
    """How boxes are clipped is said where they are."""
    nms = model.postprocessing.nms
    defaults = {"clip_to": "image", "clip_margin": 0.0, "clip_first": False}
    for name, default in defaults.items():
        value = getattr(nms, name)
        if not nms.clip and value != default:
            yield Broken(
                f"{_NMS}.{name}",
                f"{name} {value} while clip is false: nothing is clipped",
                "take it out, or set clip to true",
            )


def encodings_are_clipped_to_a_range(model: OneStage) -> Iterator[Broken]:
    """The least value is no greater than the greatest."""
    clip = model.postprocessing.box_encodings_clip
    if clip is not None and clip.min >= clip.max:
        yield Broken(
            "model.postprocessing.box_encodings_clip.min",
            f"box_encodings_clip from {clip.min} to {clip.max} leaves one value, or none",
            "give a min below max",
        )


def calibration_curves_rise(model: OneStage) -> Iterator[Broken]:
    """A curve has points, and one value for each score."""
    calibration = model.postprocessing.calibration
    for path, curve in _curves(calibration):
        if len(curve.scores) != len(curve.calibrated):
            yield Broken(
                f"{path}.calibrated",
                f"{len(curve.scores)} scores and {len(curve.calibrated)} calibrated ones",
                "give one for each",
            )
        if not curve.scores:
            yield Broken(f"{path}.scores", "a curve without points", "give at least one")
        if any(first >= second for first, second in itertools.pairwise(curve.scores)):
            yield Broken(f"{path}.scores", "the scores of a curve do not rise", "sort the points")


def _curves(
    calibration: Calibration | None,
) -> Iterator[tuple[str, CurveCalibration | ClassCurve]]:
    if isinstance(calibration, CurveCalibration):
        yield _CALIBRATION, calibration
    if isinstance(calibration, ClassCurveCalibration):
        for index, curve in enumerate(calibration.curves):
            yield f"{_CALIBRATION}.curves.{index}", curve


def calibrated_slots_exist(model: OneStage) -> Iterator[Broken]:
    """What is calibrated class by class names slots of the head, each once."""
    calibration = model.postprocessing.calibration
    if isinstance(calibration, ClassCurveCalibration):
        name, slots = "curves", [curve.slot for curve in calibration.curves]
    elif isinstance(calibration, ClassSigmoidCalibration):
        name, slots = "sigmoids", [sigmoid.slot for sigmoid in calibration.sigmoids]
    else:
        return
    last = model.num_classes - 1 + model.background_class
    for index, slot in enumerate(slots):
        path = f"{_CALIBRATION}.{name}.{index}.slot"
        if not 0 <= slot <= last:
            yield Broken(path, f"there is no class slot {slot}", f"they are 0 to {last}")
        if slot in slots[:index]:
            yield Broken(path, f"class slot {slot} is calibrated twice", "take one of them out")
    if not slots:
        yield Broken(f"{_CALIBRATION}.{name}", f"no {name}", "give one, or calibration: null")


def frames_that_differ(model: OneStage) -> Iterator[tuple[str, str]]:
    """Yields a path and a sentence where boxes would not be relative to the image."""
    nms, resizer = model.postprocessing.nms, model.resizer
    if not nms.change_coordinate_frame and not isinstance(resizer, FixedShapeResizer):
        yield (
            f"{_NMS}.change_coordinate_frame",
            "detections stay relative to the padded network input, but whoever scores or draws "
            "them takes them as relative to the image, as in the original",
        )


POSTPROCESSING_RULES: tuple[OneStageRule, ...] = (
    nms_limits_are_ordered,
    soft_nms_drops_nothing,
    combined_nms_is_plain,
    clipping_has_an_effect,
    encodings_are_clipped_to_a_range,
    calibration_curves_rise,
    calibrated_slots_exist,
)
"""All of them."""
