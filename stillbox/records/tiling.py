"""Cuts the images of records into overlapping tiles, for training on large images."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.errors import UserError
from stillbox.object_storage import object_at, url_of
from stillbox.printing import count_text, json_text
from stillbox.records.conversion import LABEL_MAP_NAME, check_label_map, keep_label_map
from stillbox.records.example import Example
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import write_whole
from stillbox.records.image_files import encode_image, inspect_image, open_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.pixels import in_eight_bits
from stillbox.records.problems import BadRecordError, Problem, RecordPolicy
from stillbox.records.source import ExampleSource, expand
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import sharded_writer
from stillbox.records.tile_grid import (
    LEAST_VISIBLE,
    TileWindow,
    check_grid,
    tile_windows,
    visible_boxes,
)
from stillbox.references import Parameter

_PER_BOX = ("class_ids", "weights", "is_crowd", "difficult")
# Rounding of coordinates to float32 must not make a whole box a cut one.
_WHOLE = 1 - 1e-4


@dataclass(frozen=True, kw_only=True)
class TileOptions:
    """How records are cut.

    Raises:
        UserError: a value is impossible.
    """

    tile: int
    """Side of a tile in pixels."""
    overlap: float = 0.2
    """Least share of a tile's side that its neighbour covers too."""
    min_visible: float = LEAST_VISIBLE
    """A box is left out of a tile that shows less than this share of its area."""
    skip_tiles_without_boxes: bool = False

    def __post_init__(self) -> None:
        check_grid(self.tile, self.overlap)
        if not 0 < self.min_visible <= 1:
            problem, where = (
                f"{self.min_visible:g} is no share of a box",
                f"{Parameter('min_visible')}",
            )
            raise UserError(problem, where=where, fix="give more than 0 and at most 1, such as 0.1")


@dataclass(kw_only=True)
class TileReport:
    """The numbers of images and boxes before and after."""

    name: str
    settings: TileOptions
    images: int = 0
    boxes: int = 0
    tiles: int = 0
    tiles_without_boxes: int = 0
    boxes_written: int = 0
    """A box in the overlap of tiles counts in each."""
    boxes_cut: int = 0
    """Boxes that a tile clips."""
    boxes_lost: int = 0
    """Boxes that no tile shows enough of."""
    problems: list[Problem] = field(default_factory=list)

    def to_text(self) -> str:
        """Returns the counts and problems in lines."""
        lines = [
            f"{count_text(self.images, 'image')} with {count_text(self.boxes, 'box')}",
            f"{count_text(self.tiles, 'tile')}, {self.tiles_without_boxes:,} of them without a box",
            f"{count_text(self.boxes_written, 'box')} in the tiles, {self.boxes_cut:,} of them cut",
            f"{count_text(self.boxes_lost, 'box')} in no tile",
        ]
        return "\n".join([*lines, *map(str, self.problems)]) + "\n"


@dataclass(frozen=True)
class _Cut:
    """The tiles of one image."""

    boxes: int
    tiles: list[Example]
    cut: int
    lost: int


def tile_records(
    paths: Sequence[str],
    output: Path,
    name: str,
    options: TileOptions,
    *,
    label_map: LabelMap | None = None,
    use_display_name: bool = False,
    shards: int = 0,
    overwrite: bool = False,
    bad_records: RecordPolicy = "drop",
    workers: int = 0,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> TileReport:
    """Writes a set of records with a tile of the originals' images in each, and `NAME.report.json`.

    Boxes are clipped to their tile; clipped ones are marked as truncated. An image that fits into
    one tile is kept as it is.

    Args:
        label_map: the records'; default: `label_map.pbtxt` beside the first, if it exists.
        use_display_name: match class texts against display names; names are written.
        shards: number of files; 0: as many as the originals.
        workers: threads; 0: one for each core.
        on_record: gets the numbers of records done and in all.

    Raises:
        UserError: there is no record, no record is usable, or the folder holds a set of this name
            or another label map.
    """
    if label_map is None:
        label_map = _label_map_beside(expand(paths)[0])
    if label_map is not None:
        check_label_map(output, label_map)
    refuse_others(output, [f"{name}.report.json"])
    source = ExampleSource(
        paths,
        label_map,
        use_display_name=use_display_name,
        bad_records=bad_records,
        drop=f"give {Parameter('bad_records', 'drop')}",
    )
    report = TileReport(name=name, settings=options)
    with sharded_writer(output, name, shards or len(source.files), overwrite=overwrite) as write:
        cuts = ordered_map(partial(_cut_record, source, options), range(len(source)), workers)
        for done, cut in enumerate(cuts, start=1):
            on_record(done, len(source))
            if cut is not None:
                _count(report, cut)
                for example in cut.tiles:
                    write(serialize_example(example, label_map))
        _refuse_empty(source, report)
        claim_files(output, [f"{name}.report.json"])
        if label_map is not None:
            keep_label_map(output, label_map)
    report.problems = list(source.problems)
    write_whole(output / f"{name}.report.json", f"{json_text(asdict(report))}\n".encode())
    return report


def _refuse_empty(source: ExampleSource, report: TileReport) -> None:
    """Refuses records without a known class, or without a tile to write."""
    if not report.boxes:
        source.refuse_unknown_classes(
            f"see {Parameter('label_map')} and {Parameter('use_display_name')}"
        )
    if report.tiles:
        return
    problem = f"none of {count_text(len(source), 'record')} can be used"
    fix = "stillbox data check shows what is wrong with them"
    if report.images:
        problem = "no tile has a box"
        fix = (
            f"leave {Parameter('skip_tiles_without_boxes')} out, or see {Parameter('min_visible')}"
        )
    raise UserError(f"no tile was written: {problem}", where=source.where, fix=fix)


def _label_map_beside(record: PurePath) -> LabelMap | None:
    """Returns the label map in the folder of a record, which may be at a URL, if there is one."""
    file = str(record.with_name(LABEL_MAP_NAME))
    if url := url_of(file):
        folder, name = object_at(url)
        return LabelMap.from_file(url) if folder.find(name) else None
    return LabelMap.from_file(file) if Path(file).is_file() else None


def tile_example(example: Example, options: TileOptions) -> Iterator[Example]:
    """Yields the example of each tile, with boxes normalised to the tile.

    Raises:
        BadRecordError: the image cannot be decoded.
    """
    info = inspect_image(example.encoded)
    windows = tile_windows(info.height, info.width, options.tile, options.overlap)
    if len(windows) == 1:
        yield example
        return
    size = np.array([info.height, info.width] * 2, np.float64)
    boxes = example.boxes * size
    target = "PNG" if info.format == "PNG" else "JPEG"
    with open_image(io.BytesIO(example.encoded)) as image:
        plain = in_eight_bits(image)  # by all of its pixels, not by a tile's
        for window in windows:
            yield _tile(example, plain, target, boxes, window, options)


def _tile(
    example: Example,
    image: Image.Image,
    target: str,
    boxes: NDArray[np.float64],
    window: TileWindow,
    options: TileOptions,
) -> Example:
    ymin, xmin, ymax, xmax = window
    kept, inside, shares = visible_boxes(boxes, window, options.min_visible)
    stem, _, suffix = example.filename.rpartition(".")
    return replace(
        example,
        image_id=f"{example.image_id}@{xmin},{ymin}",
        filename=f"{stem}@{xmin},{ymin}.{suffix}" if stem else example.filename,
        encoded=encode_image(image.crop((xmin, ymin, xmax, ymax)), target),
        height=ymax - ymin,
        width=xmax - xmin,
        boxes=inside,
        truncated=example.truncated[kept] | (shares < _WHOLE),
        area=(example.area[kept] * shares).astype(np.float32),
        **{name: getattr(example, name)[kept] for name in _PER_BOX},
    )


def _cut_record(source: ExampleSource, options: TileOptions, index: int) -> _Cut | None:
    example = source.example(index)
    if example is None:
        return None
    try:
        # Boxes are told apart by numbers in place of their weights.
        count = len(example.boxes)
        numbered = replace(example, weights=np.arange(count, dtype=np.float32))
        tiles = list(tile_example(numbered, options))
    except BadRecordError as error:
        source.reject(index, error.reason, error.detail)
        return None
    named, cut, seen = [], 0, np.zeros(count, np.bool_)
    for tile in tiles:
        boxes = tile.weights.astype(np.int64)
        cut += int((tile.truncated & ~example.truncated[boxes]).sum())
        seen[boxes] = True
        if len(boxes) or not options.skip_tiles_without_boxes:
            named.append(replace(tile, weights=example.weights[boxes]))
    return _Cut(count, named, cut, int((~seen).sum()))


def _count(report: TileReport, cut: _Cut) -> None:
    report.images += 1
    report.boxes += cut.boxes
    report.tiles += len(cut.tiles)
    report.tiles_without_boxes += sum(not len(tile.boxes) for tile in cut.tiles)
    report.boxes_written += sum(len(tile.boxes) for tile in cut.tiles)
    report.boxes_cut += cut.cut
    report.boxes_lost += cut.lost
