"""Scores a set with libraries of other people; run by `scoring.py` in their environment.

    python scoring_peers.py SET.npz

Prints one JSON object: seconds and AP by library. Every library starts from the form that it reads
fastest, in memory.
"""

import contextlib
import io
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import faster_coco_eval
import hotcoco
import numpy as np
import pycocotools.coco
import pycocotools.cocoeval
from numpy.typing import NDArray

Content = dict[str, Any]


def main() -> None:
    """Prints the seconds of each library."""
    columns = np.load(sys.argv[1])
    truth, rows = ground_truth(columns["truths"]), columns["found"]
    detections = dictionaries(rows)
    seconds = {}
    for name, given, score in (
        ("pycocotools", detections, with_pycocotools),
        ("faster-coco-eval", detections, with_faster_coco_eval),
        ("hotcoco", rows, with_hotcoco),
    ):
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            precision = np.asarray(score(truth, given))[..., 0, 2]
        took = time.perf_counter() - began
        seconds[f"{name} {version(name)}"] = (took, float(precision[precision > -1].mean()))
    print(json.dumps(seconds))


def ground_truth(rows: NDArray[np.float64]) -> Content:
    """Returns COCO's ground truth from `[N, 6]`: image, x, y, width, height, class."""
    annotations = [
        {
            "id": number,
            "image_id": int(image),
            "category_id": int(class_id),
            "bbox": [x, y, width, height],
            "area": width * height,
            "iscrowd": 0,
        }
        for number, (image, x, y, width, height, class_id) in enumerate(rows.tolist(), start=1)
    ]
    return {
        "images": [{"id": int(i), "width": 800, "height": 800} for i in np.unique(rows[:, 0])],
        "annotations": annotations,
        "categories": [{"id": int(i), "name": f"class {i}"} for i in np.unique(rows[:, 5])],
    }


def dictionaries(rows: NDArray[np.float64]) -> list[Content]:
    """Returns detections `[N, 7]` (image, x, y, width, height, score, class) as COCO lists them."""
    return [
        {"image_id": int(row[0]), "bbox": row[1:5], "score": row[5], "category_id": int(row[6])}
        for row in rows.tolist()
    ]


def with_pycocotools(truth: Content, detections: list[Content]) -> Any:  # noqa: ANN401
    """Returns precision `[10, 101, classes, 4, 3]`."""
    expected = pycocotools.coco.COCO()
    expected.dataset = truth
    expected.createIndex()
    evaluation = pycocotools.cocoeval.COCOeval(expected, expected.loadRes(detections), "bbox")
    return _precision(evaluation)


def with_faster_coco_eval(truth: Content, detections: list[Content]) -> Any:  # noqa: ANN401
    """Returns precision `[10, 101, classes, 4, 3]`."""
    expected = faster_coco_eval.COCO(truth)
    return _precision(
        faster_coco_eval.COCOeval_faster(expected, expected.loadRes(detections), "bbox")
    )


def with_hotcoco(truth: Content, detections: NDArray[np.float64]) -> Any:  # noqa: ANN401
    """Returns precision `[10, 101, classes, 4, 3]`."""
    expected = hotcoco.COCO(truth)
    return _precision(hotcoco.COCOeval(expected, expected.loadRes(detections), "bbox"))


def _precision(evaluation: Any) -> Any:  # noqa: ANN401
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation.eval["precision"]


if __name__ == "__main__":
    main()
