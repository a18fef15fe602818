"""The tiles of a set of images, and the part of a sample that a tile shows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.decode import ImageError
from stillbox.inputs.sample import Sample, Size, StoredSample
from stillbox.records.image_files import stored_size
from stillbox.records.parallel import ordered_map
from stillbox.records.source import ExampleSource
from stillbox.records.tile_grid import TileWindow, image_windows, visible_boxes


@dataclass(frozen=True)
class ImageTiles:
    """The tiles of all images of a set of records, numbered image by image."""

    settings: schema.Tiles
    sizes: NDArray[np.int64]
    """`[R, 2]`, height and width of the image of each record; 1 x 1 if it is not usable."""
    starts: NDArray[np.int64]
    """`[R + 1]`, the number of the first tile of each record, and of all tiles."""

    @classmethod
    def of_sizes(cls, settings: schema.Tiles, sizes: Sequence[Size]) -> "ImageTiles":
        """Returns the tiles of images of known sizes, at least one of each."""
        counts = [len(windows_of(settings, size)) for size in sizes]
        return cls(settings, np.array(sizes, np.int64), np.cumsum([0, *counts]))

    @classmethod
    def measure(cls, source: ExampleSource, settings: schema.Tiles) -> "ImageTiles":
        """Reads the size of every image from its header; no pixel is decoded."""
        return cls.of_sizes(
            settings, list(ordered_map(lambda record: _size(source, record), range(len(source))))
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def locate(self, tile: int) -> tuple[int, TileWindow]:
        """Returns the record of a tile, and its window in the record's image."""
        record = int(np.searchsorted(self.starts, tile, side="right")) - 1
        return record, self.windows(record)[tile - int(self.starts[record])]

    def windows(self, record: int) -> tuple[TileWindow, ...]:
        """Returns the windows of a record's image, in the order of its tiles."""
        height, width = self.sizes[record].tolist()
        return windows_of(self.settings, (height, width))


def windows_of(settings: schema.Tiles, size: Size) -> tuple[TileWindow, ...]:
    """Returns the windows of an image with a height and width in pixels."""
    return image_windows(*size, settings.side, settings.overlap, whole_image=settings.whole_image)


def _size(source: ExampleSource, record: int) -> Size:
    """Returns height and width of a record's image; loading an unusable one reports it."""
    try:
        example = source.example(record)
    except UserError:
        example = None
    height, width = stored_size(example) if example is not None else (1, 1)
    return max(height, 1), max(width, 1)


def tile_of(sample: Sample, window: TileWindow) -> Sample:
    """Returns what a window shows of an image, with the boxes that it shows enough of.

    Raises:
        ImageError: the image is smaller than its header says.
    """
    ymin, xmin, ymax, xmax = window
    height, width = sample.size
    if ymax > height or xmax > width:
        raise ImageError("the image is smaller than its header says")
    seen = visible_boxes(sample.boxes * np.array([height, width] * 2, np.float64), window)
    part = replace(sample.select(seen.kept), boxes=seen.boxes)
    if isinstance(part, StoredSample):
        return replace(part, stored=part.stored.crop(ymin, xmin, ymax - ymin, xmax - xmin))
    return replace(part, image=sample.image[ymin:ymax, xmin:xmax])
