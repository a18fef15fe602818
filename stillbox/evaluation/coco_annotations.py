"""The way into the COCO scorer: the library's dictionaries."""

from collections.abc import Mapping, Sequence
from typing import Any

from stillbox.evaluation.results import ImageResult, ImageTruth, boxes_to_xywh


def truth_annotations(
    truths: Sequence[ImageTruth], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Writes every ground-truth box as an annotation of COCO's."""
    annotations: list[dict[str, Any]] = []
    for truth in truths:
        columns = zip(
            boxes_to_xywh(truth.boxes).tolist(),
            truth.class_ids.tolist(),
            truth.is_crowd.tolist(),
            truth.areas().tolist(),
            strict=True,
        )
        for box, class_id, crowd, area in columns:
            annotations.append(
                {
                    # Ids from 1: the matcher takes an id of 0 for "not matched".
                    "id": len(annotations) + 1,
                    "image_id": numbers[truth.image_id],
                    "category_id": class_id,
                    "bbox": box,
                    "iscrowd": int(crowd),
                    "area": area,
                }
            )
    return annotations


def result_annotations(
    results: Sequence[ImageResult], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Writes every detection as an annotation of COCO's."""
    annotations: list[dict[str, Any]] = []
    for result in results:
        boxes = boxes_to_xywh(result.boxes).tolist()
        columns = zip(boxes, result.scores.tolist(), result.class_ids.tolist(), strict=True)
        for box, score, class_id in columns:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": numbers[result.image_id],
                    "category_id": class_id,
                    "bbox": box,
                    "score": score,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    return annotations
