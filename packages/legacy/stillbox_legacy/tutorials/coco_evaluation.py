"""`object_detection.metrics.coco_evaluation`: COCO's numbers of boxes that a notebook collects."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from stillbox.evaluation.coco import ORIGINAL_NAMES, CocoScores, score_coco
from stillbox.evaluation.results import ImageResult, ImageTruth, box_areas

Arrays = Mapping[str, Any]
_NO_TRUTH = -1.0


class CocoDetectionEvaluator:
    """Collects ground truth and detections, image by image, and scores them.

    Args:
        categories: dictionaries with `id` and `name`.
        include_metrics_per_category: add the AP of each class.
        all_metrics_per_category: add all numbers of each class.
    """

    def __init__(
        self,
        categories: Sequence[Mapping[str, Any]],
        include_metrics_per_category: bool = False,
        all_metrics_per_category: bool = False,
    ) -> None:
        self._names = {int(category["id"]): str(category["name"]) for category in categories}
        self._per_class = include_metrics_per_category
        self._all = all_metrics_per_category
        self.clear()

    def clear(self) -> None:
        """Forgets all images."""
        self._truths: dict[Hashable, ImageTruth] = {}
        self._results: dict[Hashable, ImageResult] = {}

    def add_single_ground_truth_image_info(
        self, image_id: Hashable, groundtruth_dict: Arrays
    ) -> None:
        """Adds the ground truth of an image; one that is known already is left as it is.

        Args:
            image_id: of the image.
            groundtruth_dict: `groundtruth_boxes` `[N, 4]` in pixels, `groundtruth_classes` `[N]`,
                and, if there are any, `groundtruth_is_crowd` and `groundtruth_area` `[N]`.
        """
        if image_id in self._truths:
            return
        boxes = np.asarray(groundtruth_dict["groundtruth_boxes"], np.float64).reshape(-1, 4)
        classes = np.asarray(groundtruth_dict["groundtruth_classes"], np.int64)
        kept = np.isin(classes, list(self._names))
        crowds = _column(groundtruth_dict.get("groundtruth_is_crowd"), np.zeros(len(boxes)))
        areas = _column(groundtruth_dict.get("groundtruth_area"), box_areas(boxes))
        self._truths[image_id] = ImageTruth(
            image_id=str(image_id),
            width=0,
            height=0,
            boxes=boxes[kept],
            class_ids=classes[kept],
            is_crowd=crowds[kept].astype(np.bool_),
            is_difficult=np.zeros(int(kept.sum()), np.bool_),
            area=areas[kept],
        )

    def add_single_detected_image_info(self, image_id: Hashable, detections_dict: Arrays) -> None:
        """Adds the detections of an image; further ones of the same image are left out.

        Args:
            image_id: of an image with ground truth.
            detections_dict: `detection_boxes` `[K, 4]` in pixels, `detection_scores` `[K]` and
                `detection_classes` `[K]`.

        Raises:
            ValueError: the image has no ground truth.
        """
        if image_id not in self._truths:
            raise ValueError(f"Missing groundtruth for image id: {image_id}")
        if image_id in self._results:
            return
        self._results[image_id] = ImageResult(
            image_id=str(image_id),
            boxes=np.asarray(detections_dict["detection_boxes"], np.float64).reshape(-1, 4),
            scores=np.asarray(detections_dict["detection_scores"], np.float64),
            class_ids=np.asarray(detections_dict["detection_classes"], np.int64),
        )

    def evaluate(self) -> dict[str, float]:
        """Returns the numbers by the names of the original; -1 without ground truth.

        Raises:
            UserError: there is no image, or a box is not finite.
        """
        truths, results = list(self._truths.values()), list(self._results.values())
        scores = score_coco(truths, results, self._names)
        numbers = {name: _number(scores.summary[key]) for key, name in ORIGINAL_NAMES.items()}
        return {**numbers, **self._by_class(scores)}

    def _by_class(self, scores: CocoScores) -> dict[str, float]:
        metrics = {}
        for name, scored in scores.per_class.items() if self._per_class or self._all else ():
            numbers = scored.numbers
            metrics[f"DetectionBoxes_PerformanceByCategory/mAP/{name}"] = _number(numbers["AP"])
            for key, original in ORIGINAL_NAMES.items() if self._all else ():
                kind, _, rest = original.partition("/")
                metrics[f"{kind} {rest} ByCategory/{name}"] = _number(numbers[key])
        return metrics


def _column(given: Any, default: np.ndarray) -> np.ndarray:  # noqa: ANN401
    """Returns an array that may be absent or empty."""
    array = default if given is None else np.asarray(given)
    return array if len(array) == len(default) else default


def _number(value: float | None) -> float:
    return _NO_TRUTH if value is None else float(value)
