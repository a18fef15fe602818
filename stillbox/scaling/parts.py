"""Detects in a part of the image files, which becomes one file of the table."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stillbox.devices.processors import own_processors
from stillbox.errors import UserError
from stillbox.predicting.backend import Pixels
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import Selection
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
    predictor: Predictor, table: DetectionTable, images: Sequence[ImageFile], selection: Selection
) -> PartCount:
    """Detects in images and adds their rows to a table as one file.

    Raises:
        OSError: the table cannot be written to.
    """
    unread: list[str] = []
    rows = sorted(_rows(predictor, images, selection, unread), key=lambda row: str(row["image"]))
    if rows:
        table.write(rows)
    bad = sum("error" in row for row in rows)
    return PartCount(len(rows) - bad, bad, unread)


def _rows(
    predictor: Predictor, images: Sequence[ImageFile], selection: Selection, unread: list[str]
) -> Iterator[Row]:
    """Yields the rows; adds images that cannot be read to `unread`."""
    bad: list[Row] = []

    def on_bad(image: ImageFile, error: UserError | OSError) -> None:
        if isinstance(error, UserError):
            bad.append({"image": image.name, "error": error.what})
        else:
            unread.append(f"{image.name}: {error}")

    found = predictor.detect(images, _read, selection, on_bad=on_bad, workers=own_processors())
    yield from map(detections_row, found)
    yield from bad


def _read(image: ImageFile) -> tuple[Pixels, str]:
    return read_image(image.read())[0], image.name
