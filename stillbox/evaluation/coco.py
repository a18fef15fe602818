"""COCO's numbers, AP for every class and precision curves, and COCO's JSON files.

hotcoco does the matching; it reproduces pycocotools bit for bit. As in
`pycocotools/cocoeval.py`: areas 32^2 and 96^2, IoU .50 to .95 in steps of .05, 101 recalls, at most
1, 10 or 100 detections of a class in an image. Without ground truth a number is `None`, not -1.

Boxes in files are `[x, y, width, height]`. An image id that is an integer stays one in the file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.calibration import Calibration, calibration_of
from stillbox.evaluation.results import (
    ClassCounts,
    FloatArray,
    ImageResult,
    ImageTruth,
    SetCounts,
    class_keys,
    number_images,
)
from stillbox.numerals import digits, whole
from stillbox.printing import json_text
from stillbox.records.foreign_files import number as parse_number
from stillbox.records.foreign_files import read_json
from stillbox.records.shapes import segment_box

_ALL, _SMALL, _MEDIUM, _LARGE = range(4)
_1, _10, _100 = range(3)
_IOU_50, _IOU_75 = 0, 5
MOST_SCORED = 100
"""Detections of a class in an image that count, those with the best scores."""
_LONGEST_SHOWN = 80
# Columns of a detection.
_SCORE, _CLASS = 5, 6


class _Number(NamedTuple):
    kind: str
    """Array of the library: `precision` or `recall`."""
    iou: int | None
    """Index of the IoU; None: their mean."""
    area: int
    """Index of the area range."""
    limit: int
    """Index of the number of detections of a class in an image."""
    original: str
    """Name in the Object Detection API, behind `DetectionBoxes_Precision/` or `..._Recall/`."""
    meaning: str


_NUMBERS = {
    "AP": _Number("precision", None, _ALL, _100, "mAP", "mean over IoU .50 to .95"),
    "AP50": _Number("precision", _IOU_50, _ALL, _100, "mAP@.50IOU", "IoU at least .50"),
    "AP75": _Number("precision", _IOU_75, _ALL, _100, "mAP@.75IOU", "IoU at least .75"),
    "APs": _Number(
        "precision", None, _SMALL, _100, "mAP (small)", "small objects, area below 32 x 32 pixels"
    ),
    "APm": _Number(
        "precision", None, _MEDIUM, _100, "mAP (medium)", "medium objects, area to 96 x 96 pixels"
    ),
    "APl": _Number(
        "precision", None, _LARGE, _100, "mAP (large)", "large objects, area above 96 x 96 pixels"
    ),
    "AR1": _Number("recall", None, _ALL, _1, "AR@1", "recall, at most 1 box of a class"),
    "AR10": _Number("recall", None, _ALL, _10, "AR@10", "recall, at most 10 boxes of a class"),
    "AR100": _Number("recall", None, _ALL, _100, "AR@100", "recall, at most 100 boxes of a class"),
    "ARs": _Number("recall", None, _SMALL, _100, "AR@100 (small)", "recall of small objects"),
    "ARm": _Number("recall", None, _MEDIUM, _100, "AR@100 (medium)", "recall of medium objects"),
    "ARl": _Number("recall", None, _LARGE, _100, "AR@100 (large)", "recall of large objects"),
}

SUMMARY_MEANINGS: dict[str, str] = {key: number.meaning for key, number in _NUMBERS.items()}
"""The keys of `CocoScores.summary`, in COCO's order, with their meaning."""
ORIGINAL_NAMES = {
    key: f"DetectionBoxes_{number.kind.capitalize()}/{number.original}"
    for key, number in _NUMBERS.items()
}
"""Names in the Object Detection API (`object_detection/metrics/coco_evaluation.py`)."""

NO_TRUTH = "no ground truth"
NO_TRUTH_OF_SIZE = "no ground truth of this size"


@dataclass(frozen=True, kw_only=True)
class ClassScores(ClassCounts):
    """The scores of one class; `None` throughout if it has no ground truth."""

    numbers: dict[str, float | None]
    """The twelve numbers of this class, under the keys of `SUMMARY_MEANINGS`."""
    precision50: FloatArray | None
    """`[101]`, precision at the recalls of `CocoScores.recalls`, IoU .50."""
    precision: FloatArray | None
    """`[101]`, the same as a mean over IoU .50 to .95."""


@dataclass(frozen=True, kw_only=True)
class CocoScores(SetCounts):
    """COCO's scores of a set."""

    summary: dict[str, float | None]
    """The twelve numbers under the keys of `SUMMARY_MEANINGS`; `None`: no ground truth."""
    per_class: dict[str, ClassScores]
    """Every class of the label map by name, those without ground truth too."""
    recalls: FloatArray
    """`[101]`, the recalls 0, .01, ... 1 at which the precision curves are read."""
    crowds: int
    calibration: Calibration
    """Scores beside the share of correct detections."""

    def text(self, key: str) -> str:
        """Returns a number of the summary to three places, or why there is none."""
        value = self.summary[key]
        if value is not None:
            return f"{value:.3f}"
        return NO_TRUTH_OF_SIZE if _NUMBERS[key].area != _ALL and self.truths else NO_TRUTH


def score_coco(
    truths: Sequence[ImageTruth], results: Sequence[ImageResult], class_names: Mapping[int, str]
) -> CocoScores:
    """Scores the results of a detector as COCO does.

    `truths` has every image that counts; an image without a result has no detections. Only the
    classes of `class_names` (label map id -> name) are scored. A class or size without ground truth
    is left out of the means.

    Raises:
        UserError: see `number_images`.
    """
    matches = match_coco(truths, results, class_names)
    evaluated = matches.library.eval
    crowds = sum(annotation["iscrowd"] for annotation in matches.annotations)
    return CocoScores(
        summary=_summary(evaluated, slice(None)),
        per_class=_per_class(evaluated, matches, class_names),
        recalls=np.linspace(0.0, 1.0, 101),
        images=len(truths),
        truths=len(matches.annotations) - crowds,
        crowds=crowds,
        calibration=calibration_of(matches.library, matches.rows[:, _SCORE]),
        detections=len(matches.rows),
        foreign_detections=sum(len(result.scores) for result in results) - len(matches.rows),
    )


class CocoMatches(NamedTuple):
    """The matches of a detector's results with their ground truth."""

    library: Any
    """hotcoco's `COCOeval` of classes with ground truth, evaluated and accumulated.

    Its `eval` holds `precision`, `[10 IoUs, 101 recalls, classes, 4 area ranges, 3 detection
    limits]`, and `recall`, the same without the second axis; -1 stands for "no ground truth".
    """
    numbers: Mapping[str, int]
    """The library's number of each image by its id."""
    class_ids: Sequence[int]
    """Classes with ground truth, as in the library's arrays."""
    annotations: list[dict[str, Any]]
    """The ground truth, as in COCO's JSON."""
    rows: FloatArray
    """`[N, 7]` detections of known classes: image, x, y, width, height, score, class."""


def match_coco(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    only: int | None = None,
) -> CocoMatches:
    """Matches the results of a detector, of the class `only` if it is given; see `score_coco`.

    Raises:
        UserError: see `number_images`.
    """
    # Imported here: predictions are written without it.
    import hotcoco

    numbers = number_images(truths, results, class_names)
    names = class_names if only is None else {only: class_names[only]}
    expected = truths_to_coco(truths, names, numbers)
    annotations = [each for each in expected["annotations"] if each["category_id"] in names]
    # The library's arrays have 97 kB for a class; without ground truth a class has no numbers.
    wanted = sorted({annotation["category_id"] for annotation in annotations})
    expected["annotations"] = annotations
    expected["categories"] = [each for each in expected["categories"] if each["id"] in wanted]
    rows = _rows(results, numbers)
    rows = rows[np.isin(rows[:, _CLASS], list(names))]
    truth = hotcoco.COCO(expected)
    detected = truth.loadRes(rows[np.isin(rows[:, _CLASS], wanted)])
    library = hotcoco.COCOeval(truth, detected, "bbox")
    library.evaluate()
    library.accumulate()
    return CocoMatches(library, numbers, wanted, annotations, rows)


def _rows(results: Sequence[ImageResult], numbers: Mapping[str, int]) -> FloatArray:
    """Returns `[N, 7]` detections: image, x, y, width, height, score, class."""
    rows = [np.empty((0, _CLASS + 1))]
    for result in results:
        image = np.full(len(result.scores), numbers[result.image_id])
        columns = image, coco_boxes(result.boxes), result.scores, result.class_ids
        rows.append(np.column_stack(columns))
    return np.concatenate(rows)


def _mean(values: FloatArray) -> float | None:
    scored = values[values > -1]
    return float(scored.mean()) if scored.size else None


def _summary(evaluated: dict[str, Any], classes: slice | int) -> dict[str, float | None]:
    summary = {}
    for key, number in _NUMBERS.items():
        values = evaluated[number.kind][..., classes, number.area, number.limit]
        summary[key] = _mean(values if number.iou is None else values[number.iou])
    return summary


def _per_class(
    evaluated: dict[str, Any], matches: CocoMatches, class_names: Mapping[int, str]
) -> dict[str, ClassScores]:
    truths = Counter(a["category_id"] for a in matches.annotations if not a["iscrowd"])
    detections = Counter(matches.rows[:, _CLASS].astype(int).tolist())
    columns = {class_id: column for column, class_id in enumerate(matches.class_ids)}
    nothing = dict.fromkeys(_NUMBERS)
    scores = {}
    for class_id, key in class_keys(class_names).items():
        column = columns.get(class_id)
        curves = None if column is None else evaluated["precision"][:, :, column, _ALL, _100]
        if curves is not None and not (curves > -1).any():
            curves = None
        scores[key] = ClassScores(
            class_id=class_id,
            truths=truths[class_id],
            detections=detections[class_id],
            numbers=nothing if column is None else _summary(evaluated, column),
            precision50=None if curves is None else curves[_IOU_50].copy(),
            precision=None if curves is None else curves.mean(axis=0),
        )
    return scores


class _Object(NamedTuple):
    """An annotation or a detection."""

    bbox: list[float]
    class_id: int
    crowd: bool
    difficult: bool
    """Some converters from VOC write it; COCO's own tools ignore it."""
    area: float
    score: float


def from_coco_json(path: str | Path) -> tuple[list[ImageTruth], dict[int, str]]:
    """Reads a ground-truth file.

    Returns:
        Every image of the file in its order, those without boxes too, and the class names by id.

    Raises:
        UserError: the file is no COCO ground truth.
    """
    return _read_truths(path)[1:]


def by_record(path: str | Path) -> tuple[dict[str, ImageTruth], dict[int, str]]:
    """Reads a ground-truth file by the ids that records may have.

    Returns:
        The images by `source_id`, which `data export coco` writes, or else by id and by the name of
        the file; and the class names by id.

    Raises:
        UserError: the file is no COCO ground truth.
    """
    images, truths, class_names = _read_truths(path)
    if any("source_id" in image for image in images):
        # The file's own numbers may be the ids of other records.
        return _unique("source_id", images, truths), class_names
    by_id = {truth.image_id: truth for truth in truths}
    return _unique("file_name", images, truths) | by_id, class_names


def _unique(
    key: str, images: Sequence[dict[str, Any]], truths: Sequence[ImageTruth]
) -> dict[str, ImageTruth]:
    """Returns the images that alone have a value of a key, by that value."""
    values = [_text(image[key]) if key in image else None for image in images]
    times = Counter(values)
    return {
        value: truth
        for value, truth in zip(values, truths, strict=True)
        if value is not None and times[value] == 1
    }


def _read_truths(
    path: str | Path,
) -> tuple[list[dict[str, Any]], list[ImageTruth], dict[int, str]]:
    content: Any = read_json(Path(path))
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
        problem = "no COCO ground truth: it has no images, annotations and categories"
        raise UserError(problem, where=str(path), fix="give an instances_*.json file")
    with _complete(path, "ground truth"):
        by_image = _by_image(content, path)
        truths = [_truth(image, by_image[_text(image["id"])]) for image in content["images"]]
        names = {_whole(c["id"], "id"): str(c["name"]) for c in content["categories"]}
    return content["images"], truths, names


def _by_image(content: dict[str, Any], path: str | Path) -> dict[str, list[_Object]]:
    by_image: dict[str, list[_Object]] = {_text(image["id"]): [] for image in content["images"]}
    for number, annotation in enumerate(content["annotations"]):
        where, image_id = f"{path}: annotations[{number}]", _text(annotation["image_id"])
        if image_id not in by_image:
            name = f"annotation {annotation.get('id')}"
            problem = f"{name} belongs to image {image_id}, which the file does not list"
            fix = "add the image to `images`, or remove the annotation"
            raise UserError(problem, where=where, fix=fix)
        by_image[image_id].append(_read_object(annotation, where))
    return by_image


def results_from_coco_json(path: str | Path) -> list[ImageResult]:
    """Reads a result file, a flat list of detections.

    Raises:
        UserError: the file is no such list.
    """
    content: Any = read_json(Path(path))
    if not isinstance(content, list):
        raise UserError("no COCO results: not a list of detections", where=str(path))
    by_image: dict[str, list[_Object]] = {}
    with _complete(path, "results"):
        for number, detection in enumerate(content):
            where = f"{path}: detection {number}"
            missing = sorted({"image_id", "category_id", "bbox", "score"} - set(detection))
            if missing:
                raise UserError(f"the detection has no {', '.join(missing)}", where=where)
            detected = _read_object(detection, where)
            by_image.setdefault(_text(detection["image_id"]), []).append(detected)
        return [
            ImageResult(
                image_id=image_id,
                boxes=_boxes(objects),
                scores=np.array([detected.score for detected in objects], np.float64),
                class_ids=np.array([detected.class_id for detected in objects], np.int64),
            )
            for image_id, objects in by_image.items()
        ]


def results_to_coco(results: Iterable[ImageResult]) -> list[dict[str, Any]]:
    """Returns COCO's list of detections."""
    entries = []
    for result in results:
        image_id = _number(result.image_id)
        columns = coco_boxes(result.boxes), result.scores, result.class_ids
        for box, score, class_id in zip(*(column.tolist() for column in columns), strict=True):
            entries.append(
                {"image_id": image_id, "category_id": class_id, "bbox": box, "score": score}
            )
    return entries


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
    """Returns COCO's ground truth, with the images' own ids or the ids of `image_ids`."""
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
def _complete(path: str | Path, content: str) -> Iterator[None]:
    """Turns the exceptions of malformed entries into one error."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = f"an entry has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"no COCO {content}: {reason}", where=str(path)) from error


def _read_object(entry: dict[str, Any], where: str) -> _Object:
    """Reads an entry, without bbox the box around its segment; numbers may be spelt as text.

    Raises:
        UserError: it has no box or no class.
    """
    bbox = entry.get("bbox")
    numbers = [parse_number(side) for side in bbox] if isinstance(bbox, list) else []
    if len(numbers) != 4 or not all(map(isfinite, numbers)):
        ymin, xmin, ymax, xmax = segment_box(entry.get("segmentation"))
        numbers = [xmin, ymin, xmax - xmin, ymax - ymin]
    if not all(map(isfinite, numbers)):
        raise _no_box(entry, where)
    class_id = whole(entry.get("category_id"))
    if class_id is None:
        problem = f"the category_id is {_shown(entry.get('category_id'))}, not a whole number"
        raise UserError(
            problem, where=_named(where, entry), fix="give the id of one of `categories`"
        )
    flags = (entry.get(name) for name in ("iscrowd", "difficult"))
    crowd, difficult = (flag is True or parse_number(flag) > 0 for flag in flags)
    area, score = (parse_number(entry.get(name)) for name in ("area", "score"))
    return _Object(numbers, class_id, crowd, difficult, area, score)


def _no_box(entry: dict[str, Any], where: str) -> UserError:
    state = f"is {_shown(entry['bbox'])}" if "bbox" in entry else "is missing"
    problem = f"the bbox {state}, not the four numbers x, y, width and height"
    fix = "write its box, or leave the entry out"
    return UserError(problem, where=_named(where, entry), fix=fix)


def _named(where: str, entry: dict[str, Any]) -> str:
    names = (f"{name} {_shown(entry[name])}" for name in ("id", "image_id") if name in entry)
    return f"{where} ({', '.join(names)})"


def _shown(value: object) -> str:
    return json_text(value, indent=None)[:_LONGEST_SHOWN]


def _truth(image: dict[str, Any], objects: list[_Object]) -> ImageTruth:
    return ImageTruth(
        image_id=_text(image["id"]),
        width=_whole(image["width"], "width"),
        height=_whole(image["height"], "height"),
        boxes=_boxes(objects),
        class_ids=np.array([entry.class_id for entry in objects], np.int64),
        is_crowd=np.array([entry.crowd for entry in objects], np.bool_),
        is_difficult=np.array([entry.difficult for entry in objects], np.bool_),
        area=np.array([entry.area for entry in objects], np.float64),
    )


def _boxes(objects: list[_Object]) -> FloatArray:
    x, y, width, height = np.array([entry.bbox for entry in objects], np.float64).reshape(-1, 4).T
    return np.stack([y, x, y + height, x + width], axis=1)


def _whole(value: object, name: str) -> int:
    """Returns a whole number of an entry; `ValueError` says that it is none."""
    number = whole(value)
    if number is None:
        raise ValueError(f"the {name} is {_shown(value)}, not a whole number")
    return number


def _text(image_id: object) -> str:
    """Returns an id as text: 7, "7" and 7.0, as tables write it, are one image."""
    if isinstance(image_id, float) and image_id.is_integer():
        return str(int(image_id))
    return str(image_id)


def coco_boxes(boxes: FloatArray) -> FloatArray:
    """Returns boxes `[N, 4]` as COCO writes them: x, y, width, height."""
    ymin, xmin, ymax, xmax = boxes.reshape(-1, 4).T
    return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1)


def _number(image_id: str) -> int | str:
    # "000123" must stay text: 123 is another id.
    number = digits(image_id)
    return image_id if number is None or str(number) != image_id else number
