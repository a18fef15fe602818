"""Ground truth and detections of an image, and the checks of them that all metrics share.

Boxes are `[ymin, xmin, ymax, xmax]` in pixels of the original image, class ids are the label
map's. They are float64, because rounding could move an IoU across a threshold.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.numerals import digits
from stillbox.printing import count_text

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
FloatType = TypeVar("FloatType", np.float32, np.float64)


@dataclass(frozen=True, kw_only=True)
class ImageTruth:
    """The ground truth of one image with N boxes."""

    image_id: str
    """Names the image; unique among those that are scored together."""
    width: int
    height: int
    boxes: FloatArray
    """`[N, 4]`, pixels."""
    class_ids: IntArray
    """`[N]`, label map ids."""
    is_crowd: BoolArray
    """`[N]`, crowds: detections inside are ignored."""
    is_difficult: BoolArray
    """`[N]`, VOC's difficult objects: its metrics ignore them, COCO's have none."""
    area: FloatArray
    """`[N]`, segment area in square pixels that decides small, medium or large; NaN: the box's."""

    def areas(self) -> FloatArray:
        """Returns `[N]` areas in square pixels, the box's own where the segment's is unknown."""
        return np.where(np.isnan(self.area), box_areas(self.boxes), self.area)


class RawDetections(NamedTuple):
    """N detections in one image, best first."""

    boxes: FloatArray
    """`[N, 4]`, `[ymin, xmin, ymax, xmax]` in pixels of the given image."""
    scores: FloatArray
    class_ids: IntArray
    """`[N]`, label map ids."""
    finite: bool = True
    """Whether the predictions for the image are finite; if not, there may be no detection."""

    def pick(self, keep: BoolArray | IntArray) -> "RawDetections":
        """Returns the detections that `keep`, a mask `[N]` or indices, chooses."""
        return RawDetections(self.boxes[keep], self.scores[keep], self.class_ids[keep], self.finite)


@dataclass(frozen=True, kw_only=True)
class ImageResult:
    """The K detections in one image."""

    image_id: str
    boxes: FloatArray
    """`[K, 4]`, pixels of the original image."""
    scores: FloatArray
    """`[K]`, confidences."""
    class_ids: IntArray
    """`[K]`, label map ids."""

    def at_least(self, min_score: float, limit: int | None = None) -> "ImageResult":
        """Returns the detections with a score of at least `min_score`, best first, `limit` at most.

        Equal scores keep their order.
        """
        order = np.argsort(-self.scores, kind="stable")
        chosen = order[self.scores[order] >= min_score][:limit]
        return ImageResult(
            image_id=self.image_id,
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            class_ids=self.class_ids[chosen],
        )


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """The size of one class in a scored set."""

    class_id: int
    truths: int
    """Boxes to find, without crowds or difficult ones."""
    detections: int
    """Detections of the class, ignored ones included."""


@dataclass(frozen=True, kw_only=True)
class SetCounts:
    """The size of a scored set."""

    images: int
    """Images that were scored, those without boxes too."""
    truths: int
    """Boxes to find, without crowds or difficult ones."""
    detections: int
    """Detections of classes that the label map has."""
    foreign_detections: int
    """Detections of classes that the label map lacks: not scored."""


def box_areas(boxes: NDArray[FloatType]) -> NDArray[FloatType]:
    """Returns `[N]` areas of boxes `[N, 4]`, in the square of their unit."""
    areas: NDArray[FloatType] = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def covered_matrix(boxes: NDArray[FloatType], others: NDArray[FloatType]) -> NDArray[FloatType]:
    """Returns the share of boxes `[N, 4]` that lies in others `[M, 4]`, `[N, M]`."""
    areas = np.broadcast_to(box_areas(boxes)[:, None], (len(boxes), len(others)))
    shared = shared_areas(boxes, others)
    return np.divide(shared, areas, out=np.zeros_like(shared), where=shared > 0)


def iou_matrix(boxes: NDArray[FloatType], others: NDArray[FloatType]) -> NDArray[FloatType]:
    """Returns the IoU of every pair, `[N, M]`; boxes `[N, 4]`, others `[M, 4]`."""
    shared = shared_areas(boxes, others)
    union = box_areas(boxes)[:, None] + box_areas(others)[None] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def shared_areas(boxes: NDArray[FloatType], others: NDArray[FloatType]) -> NDArray[FloatType]:
    """Returns the area that every pair shares, `[N, M]`; boxes `[N, 4]`, others `[M, 4]`."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas: NDArray[FloatType] = np.maximum(high - low, 0).prod(axis=-1)
    return areas


def number_images(
    truths: Sequence[ImageTruth], results: Sequence[ImageResult], class_names: Mapping[int, str]
) -> dict[str, int]:
    """Returns a number, from 1, for every image id, and refuses what cannot be scored.

    Of two detections with the same score, the one in the image with the lower number comes first,
    which changes AP in the fifth decimal. The numbers therefore are in the order of the ids, as in
    pycocotools, and not in the order in which images arrive.

    Raises:
        UserError: no image, an image twice, a result without ground truth, a box or score that is
            not finite, or ground truth of a class that `class_names` lacks.
    """
    if not truths:
        fix = "give an evaluation set with at least one record"
        raise UserError("there is no image to score", fix=fix)
    _refuse_repeats([truth.image_id for truth in truths], "ground truth")
    _refuse_repeats([result.image_id for result in results], "result")
    ordered = sorted((truth.image_id for truth in truths), key=_id_order)
    numbers = {image_id: number for number, image_id in enumerate(ordered, start=1)}
    foreign = [r.image_id for r in results if r.image_id not in numbers]
    if foreign:
        raise UserError(
            f"{count_text(len(foreign), 'result')} of images without ground truth, {foreign[0]!r} "
            "among them",
            fix="score the results against the set that they were made from",
        )
    _refuse_unknown_classes(truths, class_names)
    _refuse_infinite_results(results)
    return numbers


def class_keys(class_names: Mapping[int, str]) -> dict[int, str]:
    """Returns a unique name by label map id; ids ascend."""
    shared = Counter(class_names.values())
    return {
        class_id: name if shared[name] == 1 else f"{name} (id {class_id})"
        for class_id, name in sorted(class_names.items())
    }


def _refuse_unknown_classes(truths: Sequence[ImageTruth], class_names: Mapping[int, str]) -> None:
    for truth in truths:
        for class_id in truth.class_ids.tolist():
            if class_id not in class_names:
                problem = f"the label map has no class with id {class_id}"
                fix = "use the label map that the records were made with"
                raise UserError(problem, where=f"ground truth of image {truth.image_id!r}", fix=fix)


def _refuse_infinite_results(results: Sequence[ImageResult]) -> None:
    for result in results:
        if not np.isfinite(result.scores).all() or not np.isfinite(result.boxes).all():
            problem = "a detection has a box or score that is not a finite number"
            fix = "look at the training log: the weights themselves are probably not finite"
            raise UserError(problem, where=f"results of image {result.image_id!r}", fix=fix)


def _id_order(image_id: str) -> tuple[int, int, str]:
    number = digits(image_id)
    return (1, 0, image_id) if number is None else (0, number, "")


def _refuse_repeats(image_ids: list[str], kind: str) -> None:
    repeated = [name for name, count in Counter(image_ids).items() if count > 1]
    if repeated:
        raise UserError(
            f"{len(repeated)} image ids have more than one {kind}, {repeated[0]!r} among them",
            fix="give every image an id of its own (`image/source_id` in a record)",
        )


class NotFiniteError(UserError):
    """The model's predictions are not finite: a fault of its weights, not of the image."""


def not_finite(image: str) -> NotFiniteError:
    """Returns the error for an image with predictions that are not finite.

    Suppression takes NaN for no candidate: without this check such a model finds no object.
    """
    return NotFiniteError(
        "the model's predictions for this image are not finite (NaN or infinity)",
        where=image,
        fix="check the weights: take an earlier checkpoint, train again with a lower learning "
        "rate or with gradient clipping; if evaluation.precision is bfloat16, try float32",
    )
