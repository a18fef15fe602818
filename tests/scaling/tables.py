"""Helpers of the tests of tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from stillbox.predicting.predictor import Predictor


def rows(output: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table by image; none of them twice."""
    rows_read = parquet.read_table(output).to_pylist()
    by_image = {row["image"]: row for row in rows_read}
    assert len(by_image) == len(rows_read)
    return by_image


def images_of(photos: Path) -> list[str]:
    images = sorted(map(str, photos.glob("deep/*")))
    assert len(images) == 10
    return images


def middle_score(predictor: Predictor, photos: Path) -> float:
    """A threshold that leaves about half of the detections."""
    detections = predictor.predict(images_of(photos), min_score=0)
    return float(np.median(np.concatenate([detection.scores for detection in detections])))


def agrees(table: dict, predictor: Predictor, photos: Path, min_score: float) -> None:
    """The table says of `photos` what the predictor says."""
    images = images_of(photos)
    bad = {str(photos / "broken.jpg"), str(photos / "empty.png")}
    assert table.keys() == bad | set(images)
    seen = 0
    for image, detections in zip(
        images, predictor.predict(images, min_score=min_score), strict=True
    ):
        row = table[image]
        assert row["error"] is None
        assert (row["height"], row["width"]) == detections.image.shape[:2]
        assert row["classes"] == detections.names
        assert row["class_ids"] == detections.class_ids.tolist()
        np.testing.assert_allclose(row["scores"], detections.scores, atol=1e-6)
        boxes = np.reshape(row["boxes"], (-1, 4))
        np.testing.assert_allclose(boxes, detections.boxes, atol=1e-3)
        seen += len(detections)
    assert seen > 0
    for image in bad:
        assert table[image]["error"].startswith("cannot be decoded: ")
        assert table[image]["boxes"] is None
