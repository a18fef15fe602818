"""Rules about post-processing."""

import itertools
from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import (
    BoxEncodingsClip,
    ClassCurve,
    ClassCurveCalibration,
    ClassSigmoidCalibration,
    CurveCalibration,
    FasterRcnn,
    Nms,
    OneStage,
)
from stillbox.printing import count_text


@rule(Nms)
def nms_limits_are_ordered(nms: Nms) -> Iterator[Broken]:
    """A class has no more boxes than the image."""
    if nms.max_per_class > nms.max_total:
        what = f"max_per_class {nms.max_per_class} is more than max_total {nms.max_total}"
        yield Broken("max_per_class", what, "lower it, or raise max_total")


@rule(Nms)
def soft_nms_drops_nothing(nms: Nms) -> Iterator[Broken]:
    """Soft NMS lowers scores and has no threshold of overlaps."""
    if nms.soft_sigma > 0.0 and nms.drop_at_threshold:
        yield Broken(
            "drop_at_threshold",
            "drop_at_threshold together with soft_sigma: soft NMS drops no box for its overlap",
            "set one of them to its default",
        )


@rule(Nms)
def combined_nms_is_plain(nms: Nms) -> Iterator[Broken]:
    """`tf.image.combined_non_max_suppression` has no other variant."""
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
            name,
            f"{name} together with combined: combined NMS does not have it",
            f"set {name} to {default}, or combined to false",
        )
    if not nms.clip:
        yield Broken(
            "clip",
            "clip false together with combined: combined NMS clips to the network input",
            "set clip to true, or combined to false",
        )


@rule(Nms)
def clipping_has_an_effect(nms: Nms) -> Iterator[Broken]:
    """Details of clipping need clipping."""
    for name, default in {"clip_to": "image", "clip_margin": 0.0, "clip_first": False}.items():
        value = getattr(nms, name)
        if not nms.clip and value != default:
            what = f"{name} {value} while clip is false: nothing is clipped"
            yield Broken(name, what, "take it out, or set clip to true")


@rule(BoxEncodingsClip)
def encodings_are_clipped_to_a_range(clip: BoxEncodingsClip) -> Iterator[Broken]:
    """The range has more than one value."""
    if clip.min >= clip.max:
        what = f"box_encodings_clip from {clip.min} to {clip.max} leaves one value, or none"
        yield Broken("min", what, "give a min below max")


@rule(CurveCalibration, ClassCurve)
def calibration_curves_rise(curve: CurveCalibration | ClassCurve) -> Iterator[Broken]:
    """A curve has points, and one value for each score."""
    if len(curve.scores) != len(curve.calibrated):
        what = (
            f"{count_text(len(curve.scores), 'score')} and {len(curve.calibrated)} calibrated ones"
        )
        yield Broken("calibrated", what, "give one for each")
    if not curve.scores:
        yield Broken("scores", "a curve without points", "give at least one")
    if any(first >= second for first, second in itertools.pairwise(curve.scores)):
        yield Broken("scores", "the scores of a curve do not rise", "sort the points")


@rule(OneStage, FasterRcnn)
def calibrated_slots_exist(model: OneStage | FasterRcnn) -> Iterator[Broken]:
    """Calibration by class names slots of the head, each once."""
    # The second stage always has a slot of the background.
    boxes = model.boxes if isinstance(model, FasterRcnn) else model
    calibration = boxes.postprocessing.calibration if boxes is not None else None
    path, last = "postprocessing.calibration", model.num_classes
    if isinstance(model, FasterRcnn):
        path = f"boxes.{path}"
    elif not model.background_class:
        last -= 1
    if isinstance(calibration, ClassCurveCalibration):
        name, slots = "curves", [curve.slot for curve in calibration.curves]
    elif isinstance(calibration, ClassSigmoidCalibration):
        name, slots = "sigmoids", [sigmoid.slot for sigmoid in calibration.sigmoids]
    else:
        return
    seen: set[int] = set()
    for index, slot in enumerate(slots):
        place = f"{path}.{name}.{index}.slot"
        if not 0 <= slot <= last:
            yield Broken(place, f"there is no class slot {slot}", f"they are 0 to {last}")
        if slot in seen:
            yield Broken(place, f"class slot {slot} is calibrated twice", "take one of them out")
        seen.add(slot)
    if not slots:
        yield Broken(f"{path}.{name}", f"no {name}", "give one, or calibration: null")
