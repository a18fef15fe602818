"""Detection in some image files, which become one file of a table."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.predicting.backend import Pixels, Prepared
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from stillbox.records.parallel import ordered_map
from stillbox.scaling.image_files import ImageFile
from stillbox.scaling.table import DetectionTable, Row, error_row, row


class PartCount(NamedTuple):
    """What became of the images of a part."""

    predicted: int
    """Images in which was detected."""
    bad: int
    """Images that are in the table with an error."""
    unread: list[str]
    """Images that could not be read, with the reason. They are not in the table."""


class _Read(NamedTuple):
    image: ImageFile
    pixels: Pixels
    prepared: Prepared


class PartWriter:
    """Detects in image files and writes them into a table.

    Args:
        predictor: compiles here, once.
        table: takes the rows.
        min_score: least score of a detection in the table.
    """

    def __init__(self, predictor: Predictor, table: DetectionTable, min_score: float) -> None:
        self._predictor, self._table, self._min_score = predictor, table, min_score
        predictor.warm_up()

    def write(self, images: Sequence[ImageFile]) -> PartCount:
        """Detects in images and adds their rows as one file.

        Raises:
            OSError: the table cannot be written to.
        """
        unread: list[str] = []
        rows = sorted(self._rows(images, unread), key=lambda one: one["image"])
        if rows:
            self._table.write(rows)
        bad = sum("error" in one for one in rows)
        return PartCount(len(rows) - bad, bad, unread)

    def _rows(self, images: Sequence[ImageFile], unread: list[str]) -> Iterator[Row]:
        waiting: list[_Read] = []
        for image, read in zip(images, ordered_map(self._read, images), strict=True):
            if isinstance(read, UserError):
                yield error_row(image.name, read.what)
            elif isinstance(read, OSError):
                unread.append(f"{image.name}: {read}")
            else:
                waiting.append(read)
            if len(waiting) == self._predictor.batch_size:
                yield from self._detect(waiting)
                waiting = []
        if waiting:
            yield from self._detect(waiting)

    def _read(self, image: ImageFile) -> _Read | UserError | OSError:
        try:
            pixels, _ = read_image(image.read())
            return _Read(image, pixels, self._predictor.backend.prepare(pixels))
        except (UserError, OSError) as error:
            return error

    def _detect(self, read: Sequence[_Read]) -> Iterator[Row]:
        found = self._predictor.run([one.prepared for one in read])
        for (image, pixels, _), one in zip(read, found, strict=True):
            detections = self._predictor.detections(pixels, one, image.name)
            yield row(detections.at_least(self._min_score))
