"""Helpers of the tests of tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from stillbox.predicting.predictor import Predictor


def rows(output: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table by image; none of them twice."""
    found = parquet.read_table(output).to_pylist()
    by_image = {row["image"]: row for row in found}
    assert len(by_image) == len(found)
    return by_image


def images_of(photos: Path) -> list[str]:
    images = sorted(map(str, photos.glob("deep/*")))
    assert len(images) == 10
    return images


def middle_score(predictor: Predictor, photos: Path) -> float:
    """A threshold that leaves about half of the detections."""
    found = predictor.predict(images_of(photos), min_score=0)
    return float(np.median(np.concatenate([one.scores for one in found])))


def agrees(table: dict, predictor: Predictor, photos: Path, min_score: float) -> None:
    """The table says of `photos` what the predictor says."""
    images = images_of(photos)
    bad = {str(photos / "broken.jpg"), str(photos / "empty.png")}
    assert table.keys() == bad | set(images)
    seen = 0
    for image, found in zip(images, predictor.predict(images, min_score=min_score), strict=True):
        row = table[image]
        assert row["error"] is None
        assert (row["height"], row["width"]) == found.image.shape[:2]
        assert row["classes"] == found.names
        assert row["class_ids"] == found.class_ids.tolist()
        np.testing.assert_allclose(row["scores"], found.scores, atol=1e-6)
        boxes = np.reshape(row["boxes"], (-1, 4))
        np.testing.assert_allclose(boxes, found.boxes, atol=1e-3)
        seen += len(found)
    assert seen > 0
    for image in bad:
        assert table[image]["error"].startswith("cannot be decoded: ")
        assert table[image]["boxes"] is None
