"""Numbers of a model that have room for the objects of the fullest image."""

from collections.abc import Iterator

from stillbox.evaluation.coco import MOST_SCORED
from stillbox.evaluation.limit_audit import candidates_of_object, nms_path
from stillbox.experiment.schema import FasterRcnn, Model
from stillbox.experiment.updating import Changes

COCO_RULE = (
    f"COCO scores {MOST_SCORED} detections of a class in an image all the same, and predictions "
    "show all of them"
)


def fitted_limits(model: Model, most_boxes: int, given: Changes) -> Changes:
    """Returns the limits that have to be raised for images of so many objects, with new values.

    Args:
        model: with the changes that are given.
        most_boxes: objects of the fullest image, with room to spare.
        given: changes that a person asks for, which stay.
    """
    return {
        path: needed
        for path, value, needed in _limits(model, most_boxes, given)
        if 0 < value < needed and not _is_given(path, given)
    }


def is_fitted(path: str) -> bool:
    """Whether a plan fits a field of a model to the data and the length; `path` is within it."""
    return path.endswith(_FITTED)


_FITTED = (
    "batch_norm.decay",
    "nms.max_total",
    "nms.max_per_class",
    "nms.max_candidates_per_level",
    "nms.max_candidates_per_class",
    "proposals.max_proposals",
)


def _limits(model: Model, most_boxes: int, given: Changes) -> Iterator[tuple[str, int, int]]:
    """Yields path, value and needed value of each limit; a value of 0 is no limit."""
    if isinstance(model, FasterRcnn):
        yield "model.proposals.max_proposals", model.proposals.max_proposals, most_boxes
    nms, path = model.nms, nms_path(model)
    if nms is None or not path:
        return
    in_all = f"{path}.max_total"
    yield in_all, nms.max_total, most_boxes
    # A class has no more detections than the image.
    of_class = min(most_boxes, nms.max_total) if _is_given(in_all, given) else most_boxes
    yield f"{path}.max_per_class", nms.max_per_class, of_class
    candidates = most_boxes * candidates_of_object(model)
    yield f"{path}.max_candidates_per_level", nms.max_candidates_per_level, candidates
    yield f"{path}.max_candidates_per_class", nms.max_candidates_per_class, candidates


def _is_given(path: str, given: Changes) -> bool:
    """Whether a person asks for a value of a field, or of a section around it."""
    return any(path == key or path.startswith(f"{key}.") for key in given)
