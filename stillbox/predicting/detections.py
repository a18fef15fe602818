"""The detections of one image, with names, pictures and JSON."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.errors import UserError
from stillbox.evaluation.coco import results_to_coco
from stillbox.evaluation.pictures import draw_marks, picture_bytes, result_marks, save_picture
from stillbox.evaluation.results import ImageResult
from stillbox.printing import count_text, html_text

_SIDES = ("ymin", "xmin", "ymax", "xmax")


class Detection(NamedTuple):
    """One detected object."""

    name: str
    score: float
    box: tuple[float, float, float, float]
    """`ymin, xmin, ymax, xmax` in pixels of the image."""
    class_id: int
    """Label map id."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Detections:
    """N detections in one image, best first."""

    boxes: NDArray[np.float64]
    """`[N, 4]`, `[ymin, xmin, ymax, xmax]` in pixels of `image`."""
    scores: NDArray[np.float64]
    """`[N]`, falling."""
    class_ids: NDArray[np.int64]
    """`[N]`, label map ids."""
    class_names: Mapping[int, str]
    """By label map id."""
    image: NDArray[np.uint8]
    """`[H, W, 3]` RGB, upright."""
    source: str = ""
    """The image file; empty for an array."""

    @property
    def names(self) -> list[str]:
        """Class name of every detection, `[N]`."""
        return [self.class_names.get(int(i), f"class {i}") for i in self.class_ids]

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[Detection]:
        columns = self.scores.tolist(), self.boxes.tolist(), self.class_ids.tolist()
        for name, score, box, class_id in zip(self.names, *columns, strict=True):
            yield Detection(name, score, tuple(box), class_id)

    def __repr__(self) -> str:
        height, width = self.image.shape[:2]
        best = ", ".join(f"{detection.name} {detection.score:.2f}" for detection in islice(self, 3))
        more = ", ..." if len(self) > 3 else ""
        return (
            f"<{count_text(len(self), 'detection')} in {self.source or 'image'} {height}x{width}: "
            f"{best}{more}>"
        )

    def at_least(self, min_score: float) -> "Detections":
        """Returns the detections with a score of at least `min_score`."""
        return self.pick(self.scores >= min_score)

    def pick(self, keep: NDArray[np.bool_]) -> "Detections":
        """Returns the detections where `keep`, `[N]`, is true."""
        kept = {name: getattr(self, name)[keep] for name in ("boxes", "scores", "class_ids")}
        return replace(self, **kept)

    def draw(self, min_score: float = 0.3, *, max_boxes: int = 100) -> Image.Image:
        """Returns the image with the detections of at least `min_score` drawn on it."""
        marks = result_marks(
            self._result(), self.class_names, min_score=min_score, max_boxes=max_boxes
        )
        return Image.fromarray(draw_marks(self.image, marks))

    def save(self, path: str | Path, min_score: float = 0.3, *, max_boxes: int = 100) -> Path:
        """Writes the drawn image as PNG or JPEG, by the file name's suffix.

        Raises:
            UserError: another suffix, or the folder is not writable.
        """
        return save_picture(np.asarray(self.draw(min_score, max_boxes=max_boxes)), path)

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """Returns COCO result dictionaries: `image_id, category_id, bbox [x, y, w, h], score`."""
        return results_to_coco([replace(self._result(), image_id=str(image_id))])

    def to_supervision(self) -> Any:  # noqa: ANN401  # its package may be absent
        """Returns `supervision.Detections`, for its trackers, zones and annotators.

        Boxes are xmin, ymin, xmax, ymax; `data["class_name"]` has the names.

        Raises:
            UserError: the package supervision is not installed.
        """
        try:
            supervision = import_module("supervision")
        except ImportError as error:
            fix = "pip install supervision"
            raise UserError("supervision is not installed", fix=fix) from error
        return supervision.Detections(
            xyxy=self.boxes[:, [1, 0, 3, 2]].astype(np.float32),
            confidence=self.scores.astype(np.float32),
            class_id=self.class_ids.astype(int),
            data={"class_name": np.array(self.names, np.str_)},
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the image's size and its detections as objects of JSON."""
        return {
            "image": self.source,
            "height": self.image.shape[0],
            "width": self.image.shape[1],
            "detections": [
                {
                    "class_id": detection.class_id,
                    "class": detection.name,
                    "score": round(detection.score, 6),
                    "box": {
                        side: round(at, 2) for side, at in zip(_SIDES, detection.box, strict=True)
                    },
                }
                for detection in self
            ],
        }

    def _result(self) -> ImageResult:
        return ImageResult(
            image_id=self.source, boxes=self.boxes, scores=self.scores, class_ids=self.class_ids
        )

    def _repr_png_(self) -> bytes:
        return picture_bytes(np.asarray(self.draw()), "PNG")

    def _repr_html_(self) -> str:
        picture = base64.b64encode(picture_bytes(np.asarray(self.draw()), "JPEG")).decode()
        rows = "".join(
            f"<tr><td>{html_text(detection.name)}</td><td>{detection.score:.3f}</td>"
            f"<td>{', '.join(f'{at:.0f}' for at in detection.box)}</td></tr>"
            for detection in self.at_least(0.3)
        )
        return (
            f'<img src="data:image/jpeg;base64,{picture}" style="max-width:100%"/>'
            f"<table><tr><th>class</th><th>score</th><th>ymin, xmin, ymax, xmax</th></tr>{rows}"
            "</table>"
        )
