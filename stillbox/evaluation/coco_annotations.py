"""The way into the COCO scorer: checks that nothing is lost, and the library's dictionaries."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import ImageResult, ImageTruth, boxes_to_xywh


def number_images(truths: Sequence[ImageTruth], results: Sequence[ImageResult]) -> dict[str, int]:
    """Gives every image id a number from 1, and refuses what would be counted twice or not at all.

    Of two detections with the same score, the one in the image with the lower number comes first,
    which moves AP in the fifth place. The numbers therefore follow the ids, as in pycocotools, and
    not the order in which the images happen to arrive.

    Raises:
        UserError: no image, an image twice, or a result for an image without ground truth.
    """
    if not truths:
        raise UserError(
            "there is no image to score", fix="give an evaluation set with at least one record"
        )
    _refuse_repeats([truth.image_id for truth in truths], "ground truth")
    _refuse_repeats([result.image_id for result in results], "result")
    ordered = sorted((truth.image_id for truth in truths), key=_id_order)
    numbers = {image_id: number for number, image_id in enumerate(ordered, start=1)}
    strangers = [r.image_id for r in results if r.image_id not in numbers]
    if strangers:
        raise UserError(
            f"{len(strangers)} results belong to images without ground truth, "
            f"{strangers[0]!r} among them",
            fix="score the results against the set that they were made from",
        )
    return numbers


def _id_order(image_id: str) -> tuple[int, int, str]:
    return (0, int(image_id), "") if image_id.isdecimal() else (1, 0, image_id)


def _refuse_repeats(image_ids: list[str], what: str) -> None:
    repeated = [name for name, count in Counter(image_ids).items() if count > 1]
    if repeated:
        raise UserError(
            f"{len(repeated)} image ids have more than one {what}, {repeated[0]!r} among them",
            fix="give every image an id of its own (`image/source_id` in a record)",
        )


def truth_annotations(
    truths: Sequence[ImageTruth], numbers: Mapping[str, int], class_names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Writes every ground-truth box as an annotation of COCO's.

    Raises:
        UserError: a box of a class that the label map lacks.
    """
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
            if class_id not in class_names:
                raise UserError(
                    f"the label map has no class with id {class_id}",
                    where=f"ground truth of image {truth.image_id!r}",
                    fix="use the label map that the records were made with",
                )
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
    """Writes every detection as an annotation of COCO's.

    Raises:
        UserError: a box or score is not a finite number.
    """
    annotations: list[dict[str, Any]] = []
    for result in results:
        if not np.isfinite(result.scores).all() or not np.isfinite(result.boxes).all():
            raise UserError(
                "a detection has a box or score that is not a finite number",
                where=f"results of image {result.image_id!r}",
                fix="look at the training log: the weights themselves are probably not finite",
            )
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
