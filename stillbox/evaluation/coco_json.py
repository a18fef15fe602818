"""COCO's files: ground truth and results as JSON, read and written.

Boxes are `[x, y, width, height]` there. An image id that is an integer stays one in the file, any
other is written as text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import FloatArray, ImageResult, ImageTruth
from stillbox.records.annotations import read_json


def from_coco_json(path: str | Path) -> tuple[list[ImageTruth], dict[int, str]]:
    """Reads a ground-truth file.

    Returns:
        Every image of the file in its order, those without boxes too, and the class names by id.
    """
    content: Any = read_json(Path(path))
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
        raise UserError(
            "no COCO ground truth: it has no images, annotations and categories",
            where=str(path),
            fix="give an instances_*.json file",
        )
    with _complete(path, "ground truth"):
        by_image: dict[Any, list[dict[str, Any]]] = {i["id"]: [] for i in content["images"]}
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
        names = {int(c["id"]): str(c["name"]) for c in content["categories"]}
    return truths, names


def results_from_coco_json(path: str | Path) -> list[ImageResult]:
    """Reads a result file, a flat list of detections."""
    content: Any = read_json(Path(path))
    if not isinstance(content, list):
        raise UserError("no COCO results: not a list of detections", where=str(path))
    by_image: dict[Any, list[dict[str, Any]]] = {}
    with _complete(path, "results"):
        for number, detection in enumerate(content):
            missing = sorted({"image_id", "category_id", "bbox", "score"} - set(detection))
            if missing:
                what = f"the detection has no {', '.join(missing)}"
                raise UserError(what, where=f"{path}: detection {number}")
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
    """Returns COCO's list of detections."""
    found = []
    for result in results:
        image_id = _number(result.image_id)
        columns = coco_boxes(result.boxes), result.scores, result.class_ids
        for box, score, class_id in zip(*(one.tolist() for one in columns), strict=True):
            found.append(
                {"image_id": image_id, "category_id": class_id, "bbox": box, "score": score}
            )
    return found


def encode_results(results: Iterable[ImageResult]) -> bytes:
    """Returns `results_to_coco` as JSON, a line for each image with detections."""
    encode = msgspec.json.Encoder().encode
    images = (encode(results_to_coco([result]))[1:-1] for result in results)
    return b"[" + b",\n".join(filter(None, images)) + b"]"


def truths_to_coco(
    truths: Sequence[ImageTruth],
    class_names: Mapping[int, str],
    image_ids: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Returns COCO's ground truth, with the images' own ids or those of `image_ids`."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for truth in truths:
        image_id = image_ids[truth.image_id] if image_ids else _number(truth.image_id)
        images.append({"id": image_id, "width": truth.width, "height": truth.height})
        areas, crowds = truth.areas().tolist(), truth.is_crowd.tolist()
        columns = (coco_boxes(truth.boxes).tolist(), truth.class_ids.tolist(), crowds, areas)
        for box, class_id, crowd, area in zip(*columns, strict=True):
            annotation = {
                # From 1: matchers take an id of 0 for "not matched".
                "id": len(annotations) + 1,
                "image_id": image_id,
                "category_id": class_id,
                "bbox": box,
                "area": area,
                "iscrowd": int(crowd),
            }
            annotations.append(annotation)
    categories = [{"id": i, "name": name} for i, name in sorted(class_names.items())]
    return {"images": images, "annotations": annotations, "categories": categories}


@contextmanager
def _complete(path: str | Path, what: str) -> Iterator[None]:
    """Turns what an entry of another form causes into one error."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = f"an entry has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"no COCO {what}: {reason}", where=str(path)) from error


def _truth(image: dict[str, Any], annotations: list[dict[str, Any]]) -> ImageTruth:
    return ImageTruth(
        image_id=str(image["id"]),
        width=int(image["width"]),
        height=int(image["height"]),
        boxes=_boxes(annotations),
        class_ids=np.array([a["category_id"] for a in annotations], np.int64),
        is_crowd=np.array([a.get("iscrowd", 0) for a in annotations], np.bool_),
        # Written by some converters from VOC; COCO's own tools ignore it.
        is_difficult=np.array([a.get("difficult", 0) for a in annotations], np.bool_),
        area=np.array([a.get("area", np.nan) for a in annotations], np.float64),
    )


def _boxes(rows: list[dict[str, Any]]) -> FloatArray:
    x, y, width, height = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4).T
    return np.stack([y, x, y + height, x + width], axis=1)


def coco_boxes(boxes: FloatArray) -> FloatArray:
    """Returns boxes `[N, 4]` as COCO writes them: x, y, width, height."""
    ymin, xmin, ymax, xmax = boxes.reshape(-1, 4).T
    return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1)


def _number(image_id: str) -> int | str:
    # "000123" must stay text: as 123 it would no longer name the same image.
    return int(image_id) if image_id.isdecimal() and str(int(image_id)) == image_id else image_id
