"""COCO's own files: ground truth and results as JSON, in both directions.

COCO counts images in integers and boxes as `[x, y, width, height]`; both are converted here and
nowhere else. An image id that is an integer stays one in the file, any other is written as text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import (
    ImageResult,
    ImageTruth,
    boxes_from_xywh,
    boxes_to_xywh,
)


def from_coco_json(path: str | Path) -> tuple[list[ImageTruth], dict[int, str]]:
    """Reads a ground-truth file.

    Returns:
        Every image of the file in its order, those without boxes too, and the class names by id.

    Raises:
        UserError: the file is no COCO ground truth.
    """
    content = _read_json(path)
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
        raise UserError(
            "no COCO ground truth: it has no images, annotations and categories",
            where=str(path),
            fix="give an instances_*.json file",
        )
    by_image: dict[Any, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        if annotation["image_id"] not in by_image:
            raise UserError(
                f"annotation {annotation['id']} belongs to image {annotation['image_id']}, "
                "which the file does not list",
                where=str(path),
                fix="add the image to `images`, or remove the annotation",
            )
        by_image[annotation["image_id"]].append(annotation)
    truths = [_truth(image, by_image[image["id"]]) for image in content["images"]]
    return truths, {category["id"]: category["name"] for category in content["categories"]}


def results_from_coco_json(path: str | Path) -> list[ImageResult]:
    """Reads a result file, the flat list of detections that COCO's server takes.

    Raises:
        UserError: the file is no such list.
    """
    content = _read_json(path)
    if not isinstance(content, list):
        raise UserError("no COCO results: not a list of detections", where=str(path))
    by_image: dict[Any, list[dict[str, Any]]] = {}
    for number, detection in enumerate(content):
        missing = {"image_id", "category_id", "bbox", "score"} - set(detection)
        if missing:
            raise UserError(
                f"the detection has no {', '.join(sorted(missing))}",
                where=f"{path}: detection {number}",
            )
        by_image.setdefault(detection["image_id"], []).append(detection)
    return [
        ImageResult(
            image_id=str(image_id),
            boxes=_boxes(detections),
            scores=np.array([d["score"] for d in detections], np.float64),
            class_ids=np.array([d["category_id"] for d in detections], np.int64),
        )
        for image_id, detections in by_image.items()
    ]


def results_to_coco(results: Iterable[ImageResult]) -> list[dict[str, Any]]:
    """Returns the results as the list that COCO's server takes, ready for `json.dump`."""
    return [
        {
            "image_id": _image_id(result.image_id),
            "category_id": class_id,
            "bbox": box,
            "score": score,
        }
        for result in results
        for box, score, class_id in zip(
            boxes_to_xywh(result.boxes).tolist(),
            result.scores.tolist(),
            result.class_ids.tolist(),
            strict=True,
        )
    ]


def truths_to_coco(truths: Sequence[ImageTruth], class_names: Mapping[int, str]) -> dict[str, Any]:
    """Returns the ground truth as COCO's dictionary, ready for `json.dump`."""
    annotations: list[dict[str, Any]] = []
    for truth in truths:
        for box, class_id, crowd, area in zip(
            boxes_to_xywh(truth.boxes).tolist(),
            truth.class_ids.tolist(),
            truth.is_crowd.tolist(),
            truth.areas().tolist(),
            strict=True,
        ):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": _image_id(truth.image_id),
                    "category_id": class_id,
                    "bbox": box,
                    "area": area,
                    "iscrowd": int(crowd),
                }
            )
    return {
        "images": [
            {"id": _image_id(t.image_id), "width": t.width, "height": t.height} for t in truths
        ],
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in sorted(class_names.items())],
    }


def _read_json(path: str | Path) -> Any:  # noqa: ANN401
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise UserError(f"not JSON: {error}", where=str(path)) from error


def _truth(image: dict[str, Any], annotations: list[dict[str, Any]]) -> ImageTruth:
    return ImageTruth(
        image_id=str(image["id"]),
        width=image["width"],
        height=image["height"],
        boxes=_boxes(annotations),
        class_ids=np.array([a["category_id"] for a in annotations], np.int64),
        is_crowd=np.array([a.get("iscrowd", 0) for a in annotations], np.bool_),
        # Not COCO's, but some converters from VOC leave it; COCO itself passes over it.
        is_difficult=np.array([a.get("difficult", 0) for a in annotations], np.bool_),
        area=np.array([a.get("area", np.nan) for a in annotations], np.float64),
    )


def _boxes(rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return boxes_from_xywh(np.array([row["bbox"] for row in rows], np.float64))


def _image_id(text: str) -> int | str:
    # "000123" must stay text: as 123 it would no longer name the same image.
    return int(text) if text.isdecimal() and str(int(text)) == text else text
