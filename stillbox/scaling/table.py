"""A table of detections: a folder of Parquet files, one for each part of the image files."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.predicting.backend import Pixels
from stillbox.predicting.detections import Detections
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import Selection
from stillbox.references import Parameter
from stillbox.scaling.image_files import ImageFile, file_system

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.fs import FileSystem

TableRow = dict[str, object]
"""One image: its columns by name."""


@dataclass(frozen=True)
class DetectionTable:
    """A folder of Parquet files with a row for each image. It can be pickled.

    Columns: `image` (path or address), `height` and `width` in pixels, `boxes` (lists of ymin,
    xmin, ymax, xmax in pixels of the image), `scores`, `class_ids` (label map ids), `classes`
    (names) and `error`, the reason why an image cannot be used; its other columns are null.
    """

    filesystem: "FileSystem"
    path: str
    """On the file system."""
    place: str
    """Path or address as the user gave it."""
    made_by: str
    """Model and settings; a table has rows of one model only."""

    @classmethod
    def open(cls, place: str, made_by: str) -> Self:
        """Creates the folder if it is absent."""
        filesystem, path = file_system(place)
        filesystem.create_dir(path, recursive=True)
        return cls(filesystem, path, place, made_by)

    def images(self) -> set[str]:
        """Returns the images that are in the table.

        Raises:
            UserError: a file of the folder is damaged, or was made by another model.
        """
        from pyarrow import fs

        return {
            image
            for info in self.filesystem.get_file_info(fs.FileSelector(self.path))
            if info.base_name.startswith("part-") and info.extension == "parquet"
            for image in self._images_of(info.path)
        }

    def write(self, rows: Sequence[TableRow]) -> None:
        """Adds one file atomically; its name depends on the images only."""
        import pyarrow
        from pyarrow import parquet

        images = "\n".join(str(row["image"]) for row in rows)
        name = f"part-{hashlib.sha256(images.encode()).hexdigest()[:20]}.parquet"
        partial, final = f"{self.path}/.{name}.partial", f"{self.path}/{name}"
        schema = _schema().with_metadata({"made_by": self.made_by})
        parquet.write_table(
            pyarrow.Table.from_pylist(list(rows), schema=schema),
            partial,
            filesystem=self.filesystem,
            compression="zstd",
        )
        self.filesystem.move(partial, final)

    def _images_of(self, part: str) -> list[str]:
        import pyarrow
        from pyarrow import parquet

        try:
            table = parquet.read_table(part, columns=["image"], filesystem=self.filesystem)
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(
                f"cannot be read as a part of the table: {error}", where=part, fix="delete it"
            ) from error
        made_by = (table.schema.metadata or {}).get(b"made_by", b"something else").decode()
        if made_by != self.made_by:
            problem = f"the table was made by {made_by}, not by {self.made_by}"
            raise UserError(problem, where=self.place, fix=f"choose another {Parameter('output')}")
        return table.column("image").to_pylist()


def detections_row(detections: Detections) -> TableRow:
    """Returns the row of an image."""
    return {
        "image": detections.source,
        "height": detections.image.shape[0],
        "width": detections.image.shape[1],
        "boxes": detections.boxes.tolist(),
        "scores": detections.scores.tolist(),
        "class_ids": detections.class_ids.tolist(),
        "classes": detections.names,
    }


def _schema() -> "pyarrow.Schema":
    import pyarrow as pa

    return pa.schema(
        {
            "image": pa.string(),
            "height": pa.int32(),
            "width": pa.int32(),
            "boxes": pa.list_(pa.list_(pa.float32(), 4)),
            "scores": pa.list_(pa.float32()),
            "class_ids": pa.list_(pa.int64()),
            "classes": pa.list_(pa.string()),
            "error": pa.string(),
        }
    )


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
) -> Iterator[TableRow]:
    """Yields the rows; adds images that cannot be read to `unread`."""
    bad: list[TableRow] = []

    def on_bad(image: ImageFile, error: UserError | OSError) -> None:
        if isinstance(error, UserError):
            bad.append({"image": image.name, "error": error.what})
        else:
            unread.append(f"{image.name}: {error}")

    def read(image: ImageFile) -> tuple[Pixels, str]:
        return predictor.read(image.read())[0], image.name

    predictions = predictor.detect(images, read, selection, on_bad=on_bad, workers=own_processors())
    yield from map(detections_row, predictions)
    yield from bad
