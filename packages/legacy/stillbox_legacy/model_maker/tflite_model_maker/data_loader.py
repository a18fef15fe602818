"""Records of images with boxes, and the readers that make them."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage, only_boxes
from stillbox.records.files import write_whole
from stillbox.records.formats.voc import read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.source import ExampleSource, expand
from stillbox.textformat.yaml_tree import compose, read_text_file
from stillbox_legacy.model_maker.datasets import (
    CsvImages,
    RecordSet,
    cached,
    fingerprint,
    items_of_rows,
    label_map_of,
    open_cache,
    read_automl_csv,
    refuse_cloud,
)

Labels = Sequence[str] | Mapping[int, str] | str
_VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
)
_NAMED = {"voc": _VOC.split(), "waymo": ["vehicle", "pedestrian", "cyclist"]}


def _label_map(labels: Labels) -> LabelMap:
    if not isinstance(labels, str):
        return label_map_of(labels, "label_map")
    if labels == "coco":
        return LabelMap.from_file("coco")
    if labels in _NAMED:
        return label_map_of(_NAMED[labels], labels)
    if not labels.endswith((".yaml", ".yml")):
        fix = nearest(labels, ("coco", *_NAMED)) + ", or a YAML file, a list or a dictionary"
        raise UserError(f"there are no classes {labels!r}", where="label_map", fix=fix)
    names = compose(read_text_file(Path(labels), fix="write id: name in lines"), labels).plain()
    try:
        assert isinstance(names, dict)
        return label_map_of({int(key): str(name) for key, name in names.items()}, labels)
    except (AssertionError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        sentence = "the file has no ids and names"
        raise UserError(sentence, where=labels, fix="write id: name in lines") from error


class DataLoader:
    """Records of images with boxes.

    Args:
        tfrecord_file_patten: files of records, as `cache/train*.tfrecord`.
        size: number of images.
        label_map: names of the classes by id from 1, or in a list; `coco`, `voc`, `waymo`, or a
            YAML file.
        annotations_json_file: COCO JSON with the ground truth of an evaluation; None: the
            file of the records.

    Raises:
        UserError: there are no such files or classes.
    """

    def __init__(
        self,
        tfrecord_file_patten: str,
        size: int,
        label_map: Labels,
        annotations_json_file: str | None = None,
    ) -> None:
        classes = _label_map(label_map)
        (first, *_) = expand([tfrecord_file_patten])
        path = Path(first.parent, f"{first.name}_label_map.pbtxt")
        write_whole(path, classes.to_text().encode())
        counted = len(ExampleSource([tfrecord_file_patten]))
        if counted != size:
            say_aside(f"{tfrecord_file_patten}: {count_text(counted, 'image')}, not size={size}")
        self._hold(RecordSet((tfrecord_file_patten,), path, counted, annotations_json_file or ""))

    def _hold(self, records: RecordSet) -> "DataLoader":
        self.records = records
        self.tfrecord_file_patten = records.paths[0]
        self.label_map = records.names
        self.annotations_json_file = records.annotations or None
        return self

    @classmethod
    def _of(cls, records: RecordSet) -> "DataLoader":
        return cls.__new__(cls)._hold(records)

    @classmethod
    def from_pascal_voc(
        cls,
        images_dir: str,
        annotations_dir: str,
        label_map: Labels,
        annotation_filenames: Collection[str] | None = None,
        ignore_difficult_instances: bool = False,
        num_shards: int = 100,
        max_num_images: int | None = None,
        cache_dir: str | None = None,
        cache_prefix_filename: str | None = None,
    ) -> "DataLoader":
        """Reads Pascal VOC XML.

        Args:
            images_dir: folder of the images.
            annotations_dir: folder of the XML files; it may be the same.
            label_map: see `DataLoader`. Boxes of other classes are counted and left out.
            annotation_filenames: names of XML files without their ending; None: all.
            ignore_difficult_instances: leave out what is marked as difficult.
            num_shards: files of records, at most one for each image.
            max_num_images: images that are kept, the first ones.
            cache_dir: folder of the caches; None: a new temporary one, which is kept.
            cache_prefix_filename: name of the cache, which is used as it is if it is there; None: a
                name that depends on the files and the arguments.

        Raises:
            UserError: a folder is missing, or no image can be used.
        """
        for name, folder in (("images_dir", images_dir), ("annotations_dir", annotations_dir)):
            refuse_cloud(str(folder), name)
        classes, stems = _label_map(label_map), annotation_filenames
        prefix = cache_prefix_filename or fingerprint(
            [*Path(annotations_dir).glob("*.xml"), *Path(images_dir).glob("*")],
            *(classes.items, sorted(stems or ()), ignore_difficult_instances),
            *(num_shards, max_num_images),
        )

        def read(log: ConversionLog) -> tuple[list[AnnotatedImage], LabelMap]:
            wanted = list(stems) if stems else None
            items, _ = read_voc(annotations_dir, images_dir, log, stems=wanted, label_map=classes)
            if ignore_difficult_instances:
                items = [only_boxes(item, ~item.difficult) for item in items]
            return items, classes

        records = cached(cache_dir, prefix, read, shards=num_shards, most=max_num_images)
        return cls._of(records)

    @classmethod
    def from_csv(
        cls,
        filename: str,
        images_dir: str | None = None,
        delimiter: str = ",",
        quotechar: str = '"',
        num_shards: int = 10,
        max_num_images: int | None = None,
        cache_dir: str | None = None,
        cache_prefix_filename: str | None = None,
    ) -> "list[DataLoader | None]":
        """Reads the CSV format of Cloud AutoML: set, image, label, and corners in 0..1.

        Returns:
            Training, validation and test data; None where the file has none.

        Args:
            filename: the CSV file on this machine.
            images_dir: folder that the names of images are relative to; None: they are absolute,
                or relative to the working directory.
            delimiter: between cells.
            quotechar: around cells that hold the delimiter.
            num_shards: see `from_pascal_voc`, likewise the following ones.
            max_num_images: of each set.
            cache_dir: folder of the caches.
            cache_prefix_filename: `train_`, `val_` and `test_` are put before it.

        Raises:
            UserError: the file cannot be read, or a row is too short.
        """
        refuse_cloud(str(filename), "filename")
        path = Path(filename)
        rows, classes = read_automl_csv(path, delimiter, quotechar)
        prefix = cache_prefix_filename or fingerprint(
            [path], images_dir, delimiter, quotechar, num_shards, max_num_images
        )
        loaders: list[DataLoader | None] = []
        for name, images in rows.items():

            def read(
                log: ConversionLog, images: CsvImages = images
            ) -> tuple[list[AnnotatedImage], LabelMap]:
                return items_of_rows(images, classes, path, images_dir), classes

            where = f"{name.lower()}_{prefix}"
            if not images:
                loaders.append(None)
                continue
            records = cached(cache_dir, where, read, shards=num_shards, most=max_num_images)
            loaders.append(cls._of(records))
        return loaders

    @classmethod
    def from_cache(cls, cache_prefix: str) -> "DataLoader":
        """Opens a cache, also one that the original has written.

        Raises:
            UserError: there is none.
        """
        return cls._of(open_cache(cache_prefix))

    @property
    def size(self) -> int:
        """Number of images."""
        return self.records.size

    def __len__(self) -> int:
        return self.records.size

    def split(self, fraction: float) -> "tuple[DataLoader, DataLoader]":
        """Returns the first part of the images, and the others.

        Raises:
            UserError: a part would be empty.
        """
        first, rest = self.records.split(fraction)
        return self._of(first), self._of(rest)
