"""Data sets of both Model Makers: annotations are converted to records once, in a cache folder.

A cache is a folder with the shards `data-*.tfrecord`, the label map and `meta_data.yaml`, which is
written last. Caches of the originals are read too: `PREFIX-*.tfrecord` with
`PREFIX_meta_data.yaml` (TFLite Model Maker) or `PREFIX_metadata.yaml` (MediaPipe Model Maker).
"""

import csv
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.updating import Changes
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage, ImageRoot
from stillbox.records.conversion import LABEL_MAP_NAME, ConversionOptions, convert
from stillbox.records.files import write_whole
from stillbox.records.foreign_files import MAX_LIST_BYTES, number
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.records.problems import ConversionLog
from stillbox.records.source import ExampleSource
from stillbox.records.tfrecord import tfrecord_writer
from stillbox.textformat.yaml_tree import compose, read_text_file
from stillbox.untrusted import read_untrusted

_NAME, _META = "data", "meta_data.yaml"
_META_ENDINGS = ("_meta_data.yaml", "_metadata.yaml")
_SETS = ("TRAIN", "VAL", "TEST")
# Set, image, label, and four corners of two numbers each.
_CSV_CELLS, _CSV_CORNERS = 11, (4, 3, 8, 7)
_CLOUD = "gs://"

Reader = Callable[[ConversionLog], tuple[list[AnnotatedImage], LabelMap]]
"""Reads annotations; called only if there is no cache yet."""


@dataclass(frozen=True)
class RecordSet:
    """Records with their label map."""

    paths: tuple[str, ...]
    """Files of records, or patterns."""
    label_map: Path
    size: int
    """Number of images."""
    annotations: str = ""
    """COCO JSON with the ground truth; empty: the file of the records."""

    @property
    def names(self) -> dict[int, str]:
        """Class names by id, without the background."""
        return {item.id: item.name for item in LabelMap.from_file(self.label_map)}

    def changes(self, section: str) -> Changes:
        """Returns what makes these the records of `data.SECTION` in an experiment."""
        values: dict[str, object] = {"paths": self.paths, "label_map": str(self.label_map)}
        if section == "evaluation":
            values["annotations"] = self.annotations
        return {f"data.{section}.{name}": value for name, value in values.items()}

    def split(self, fraction: float) -> "tuple[RecordSet, RecordSet]":
        """Returns the first part of the records and the others, as new files beside the label map.

        Raises:
            UserError: a part would be empty.
        """
        first = int(self.size * fraction) if 0 < fraction < 1 else 0
        if not 0 < first < self.size:
            raise UserError(
                f"{fraction} of {count_text(self.size, 'image')} leaves one part empty",
                where="split",
                fix="give a fraction between 0 and 1, such as 0.8",
            )
        source = ExampleSource(self.paths)
        payloads = [(file, record) for file in source.files for record in range(len(file))]
        name = f"{source.fingerprint()}-{first}"
        folder = self.label_map.parent / "splits"
        folder.mkdir(exist_ok=True)
        parts = []
        for part, records in (("first", payloads[:first]), ("rest", payloads[first:])):
            path = folder / f"{part}-{name}.tfrecord"
            with tfrecord_writer(path) as write:
                for file, record in records:
                    write(file.read(record))
            parts.append(RecordSet((str(path),), self.label_map, len(records), self.annotations))
        return parts[0], parts[1]


def fingerprint(files: Iterable[Path], *settings: object) -> str:
    """Returns a name for a set of files, by names, sizes and times, and for settings."""
    digest = hashlib.sha256(repr(settings).encode(errors="surrogateescape"))
    for file in sorted(files):
        state = file.stat()
        line = f"{file.name}\0{state.st_size}\0{state.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def cached(
    cache_dir: str | None,
    prefix: str,
    read: Reader,
    *,
    shards: int,
    most: int | None = None,
    skip_empty: bool = False,
) -> RecordSet:
    """Returns the records in a cache, after writing them if they are not there.

    Args:
        cache_dir: parent of the cache; None: a new temporary folder, which is kept.
        prefix: name of the cache.
        read: reads the annotations.
        shards: files, at most one for each image.
        most: images that are kept, the first ones; None: all.
        skip_empty: leave out images without a usable box.

    Raises:
        UserError: no image can be used.
    """
    for name, value in (("num_shards", shards), ("max_num_images", most)):
        if value is not None and value < 1:
            raise UserError(f"{value} is too few", where=name, fix="give 1 or more")
    parent = Path(cache_dir or tempfile.mkdtemp(prefix="model_maker_"))
    if Path(prefix).name != prefix or prefix in ("", ".", ".."):
        sentence = f"{prefix!r} is not the name of a folder"
        raise UserError(
            sentence, where="cache_prefix_filename", fix="give a plain name such as train"
        )
    folder = parent / prefix
    if not (folder / _META).is_file():
        log = ConversionLog("drop", "fix")
        items, label_map = read(log)
        options = ConversionOptions(
            shards=shards,
            shard_names="tfrecord",
            skip_images_without_boxes=skip_empty,
            overwrite=True,
        )
        # What a stopped conversion of other annotations has left.
        (folder / LABEL_MAP_NAME).unlink(missing_ok=True)
        report = convert(items[:most], label_map, folder, _NAME, options=options, log=log)
        for line in log.lines():
            say_aside(line)
        size = report.images_written
        classes = "".join(f"  {item.id}: {json.dumps(item.name)}\n" for item in label_map)
        write_whole(folder / _META, f"label_map:\n{classes}size: {size}\n".encode())
    return open_cache(folder)


def open_cache(prefix: str | Path) -> RecordSet:
    """Opens a cache.

    Args:
        prefix: its folder; of a cache of the originals, folder and beginning of the file names.

    Raises:
        UserError: there is none, or it is damaged.
    """
    prefix = Path(prefix)
    if (prefix / _META).is_file():
        size, _ = _meta(prefix / _META)
        return RecordSet((str(prefix / f"{_NAME}-*.tfrecord"),), prefix / LABEL_MAP_NAME, size)
    for ending in _META_ENDINGS:
        meta = prefix.with_name(prefix.name + ending)
        if meta.is_file():
            size, label_map = _meta(meta)
            path = prefix.with_name(f"{prefix.name}_{LABEL_MAP_NAME}")
            write_whole(path, label_map.to_text().encode())
            return RecordSet((f"{prefix}*.tfrecord",), path, size)
    raise UserError(
        "there is no cache of records",
        where=str(prefix),
        fix="give cache_dir and cache_prefix_filename of the call that wrote it, joined by /",
    )


def _meta(path: Path) -> tuple[int, LabelMap]:
    root = compose(read_text_file(path, fix="convert the data again"), str(path)).plain()
    try:
        assert isinstance(root, dict)
        stored, classes = root["size"], root["label_map"]
        assert isinstance(stored, int) and isinstance(classes, dict)
        size, names = stored, {int(key): str(name) for key, name in classes.items()}
    except (AssertionError, KeyError, ValueError) as error:
        sentence = "the file has no size and label_map"
        raise UserError(sentence, where=str(path), fix="convert the data again") from error
    return size, label_map_of(names, str(path))


def label_map_of(names: Mapping[int, str] | Sequence[str], where: str) -> LabelMap:
    """Returns a label map; a list of names is numbered from 1, `background` with id 0 is left out.

    Raises:
        UserError: an id or a name occurs twice or has the wrong type, or another class has id 0.
    """
    pairs = names.items() if isinstance(names, Mapping) else enumerate(names, start=1)
    items = []
    for class_id, name in pairs:
        if type(class_id) is not int or not isinstance(name, str):
            sentence = f"{class_id!r}: {name!r} is no class"
            raise UserError(
                sentence, where=where, fix="give numbers and names: {1: 'person', 2: 'dog'}"
            )
        if class_id or name != "background":
            items.append(LabelMapItem(class_id, name))
    # Read back, so that what a file may not hold is refused here.
    return LabelMap.from_text(LabelMap(tuple(items), where).to_text(), where)


CsvImages = dict[str, list[list[str]]]
"""Rows by image."""


def read_automl_csv(
    path: Path, delimiter: str, quotechar: str
) -> tuple[dict[str, CsvImages], LabelMap]:
    """Reads the CSV format of Cloud AutoML: set, image, label, and four corners x, y in 0..1.

    Of the corners the first and the third count, as in the original. Classes are numbered in the
    order of their first row.

    Raises:
        UserError: a row is too short, or there is no class.
    """
    text = read_untrusted(path, most=MAX_LIST_BYTES).decode("utf-8-sig", errors="replace")
    rows: dict[str, CsvImages] = {name: {} for name in _SETS}
    names: dict[str, None] = {}
    passed = 0
    for number_of_line, line in _lines(text, path, delimiter, quotechar):
        if not line:
            continue
        if len(line) < _CSV_CELLS - 2:
            raise UserError(
                f"the row has {count_text(len(line), 'cell')}",
                where=f"{path}:{number_of_line}",
                fix="write set,image,label,xmin,ymin,,,xmax,ymax,, in each row",
            )
        name, image, label = (cell.strip() for cell in line[:3])
        names.setdefault(label)
        subset = next((prefix for prefix in _SETS if name.startswith(prefix)), None)
        if subset is None:
            passed += 1
        else:
            rows[subset].setdefault(image, []).append(line)
    if not names:
        fix = "write set,image,label,xmin,ymin,,,xmax,ymax,, in each row"
        raise UserError("the file has no row", where=str(path), fix=fix)
    if passed:
        sets = ", ".join(_SETS)
        say_aside(f"{path}: {count_text(passed, 'row')} of no set ({sets}) passed over")
    return rows, label_map_of(list(names), str(path))


def _lines(
    text: str, path: Path, delimiter: str, quotechar: str
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each line of a CSV file with its number."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quotechar)
    try:
        for line in reader:
            yield reader.line_num, line
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise UserError(f"this is not CSV: {error}", where=where, fix="close each quote") from error


def items_of_rows(
    rows: CsvImages, label_map: LabelMap, path: Path, images: str | None
) -> list[AnnotatedImage]:
    """Returns the annotations of one set of a CSV file.

    Args:
        rows: by image.
        path: the file, for messages.
        images: folder that the images are in and may not leave; None: names are absolute, or
            relative to the working directory.

    Raises:
        UserError: an image lies in Google Cloud Storage, or outside of the folder.
    """
    root = ImageRoot(images) if images else None
    items = []
    for name, lines in rows.items():
        refuse_cloud(name, f"{path}: {name}")
        file = root.path(name, path) if root else Path(name)
        boxes = [[number(line[cell].strip()) for cell in _CSV_CORNERS] for line in lines]
        items.append(
            AnnotatedImage(
                path=file,
                where=f"{path.name}: {name}",
                image_id=file.name,
                filename=file.name,
                height=0,
                width=0,
                relative=True,
                pixel_boxes=np.array(boxes, np.float64).reshape(-1, 4),
                class_ids=np.array([label_map.find(line[2].strip()) for line in lines], np.int32),
            )
        )
    return items


def refuse_cloud(name: str, where: str) -> None:
    """Refuses an address of Google Cloud Storage.

    Raises:
        UserError: it is one.
    """
    if name.startswith(_CLOUD):
        public = name.replace(_CLOUD, "https://storage.googleapis.com/", 1)
        raise UserError(
            "files in Google Cloud Storage are not opened from here",
            where=where,
            fix="download CSV and images (`gcloud storage cp`; a public file is also at "
            f"{public}), write local paths into the CSV, or give images_dir",
        )
