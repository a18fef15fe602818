"""Detects in a part of the image files, which becomes one file of the table."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.predicting.backend import Pixels, Prepared
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from stillbox.records.parallel import ordered_map
from stillbox.scaling.image_files import ImageFile
from stillbox.scaling.table import DetectionTable, Row, detections_row


class PartCount(NamedTuple):
    """Results of a part."""

    predicted: int
    """Images with detections in the table."""
    bad: int
    """Images with an error in the table."""
    unread: list[str]
    """Images that could not be read, with the reason; not in the table."""


def write_part(
    predictor: Predictor, table: DetectionTable, images: Sequence[ImageFile], min_score: float
) -> PartCount:
    """Detects in images and adds their rows to a table as one file.

    Raises:
        OSError: the table cannot be written to.
    """
    unread: list[str] = []
    rows = sorted(_rows(predictor, images, min_score, unread), key=lambda row: str(row["image"]))
    if rows:
        table.write(rows)
    bad = sum("error" in row for row in rows)
    return PartCount(len(rows) - bad, bad, unread)


def _rows(
    predictor: Predictor, images: Sequence[ImageFile], min_score: float, unread: list[str]
) -> Iterator[Row]:
    """Yields the rows, batch by batch; adds images that cannot be read to `unread`."""

    def read(image: ImageFile) -> tuple[Pixels, Prepared] | UserError | OSError:
        try:
            pixels, _ = read_image(image.read())
            return pixels, predictor.backend.prepare(pixels)
        except (UserError, OSError) as error:
            return error

    batch: list[tuple[str, Pixels, Prepared]] = []

    def detect() -> Iterator[Row]:
        results = predictor.run([prepared for _, _, prepared in batch]) if batch else ()
        for (name, pixels, _), found in zip(batch, results, strict=True):
            detections = predictor.detections(pixels, found, name)
            yield detections_row(detections.at_least(min_score))
        batch.clear()

    for image, one in zip(images, ordered_map(read, images), strict=True):
        if isinstance(one, UserError):
            yield {"image": image.name, "error": one.what}
        elif isinstance(one, OSError):
            unread.append(f"{image.name}: {one}")
        else:
            batch.append((image.name, *one))
        if len(batch) == predictor.batch_size:
            yield from detect()
    yield from detect()
