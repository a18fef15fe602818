"""The data sets of MediaPipe Model Maker's object detector."""

from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.formats.coco import read_coco
from stillbox.records.formats.voc import read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox_legacy.model_maker.datasets import Reader, RecordSet, cached, fingerprint, open_cache

_IMAGES_PER_SHARD, _MOST_SHARDS = 100, 10


class Dataset:
    """Images with boxes, and the names of their classes; the background has the id 0.

    Args:
        records: the images as records.
    """

    def __init__(self, records: RecordSet) -> None:
        self.records = records

    @classmethod
    def from_coco_folder(
        cls, data_dir: str, max_num_images: int | None = None, cache_dir: str | None = None
    ) -> "Dataset":
        """Reads `labels.json` and the images in `images` (or `data`).

        Args:
            data_dir: folder of both.
            max_num_images: images that are kept, the first ones; None: all.
            cache_dir: folder of the caches; None: a new temporary one, which is kept.

        Raises:
            UserError: a file is missing, a class other than the background has id 0, or no image
                can be used.
        """
        folder = Path(data_dir)
        labels, images = folder / "labels.json", _images(folder)
        if not labels.is_file():
            fix = "give a folder with labels.json and images"
            raise UserError("there is no labels.json", where=data_dir, fix=fix)

        def read(log: ConversionLog) -> tuple[list[AnnotatedImage], LabelMap]:
            return read_coco(labels, images, log)

        files = [labels, *images.iterdir()]
        return cls._cached(cache_dir, files, read, len(files) - 1, max_num_images)

    @classmethod
    def from_pascal_voc_folder(
        cls, data_dir: str, max_num_images: int | None = None, cache_dir: str | None = None
    ) -> "Dataset":
        """Reads the XML files in `Annotations` and the images in `images` (or `data`).

        Classes are sorted by name. For the arguments see `from_coco_folder`.

        Raises:
            UserError: a folder is missing, or no image can be used.
        """
        folder = Path(data_dir)
        annotations, images = folder / "Annotations", _images(folder)

        def read(log: ConversionLog) -> tuple[list[AnnotatedImage], LabelMap]:
            return read_voc(annotations, images, log)

        files = list(annotations.glob("*.xml"))
        return cls._cached(cache_dir, [*files, *images.iterdir()], read, len(files), max_num_images)

    @classmethod
    def _cached(
        cls, cache_dir: str | None, files: list[Path], read: Reader, count: int, most: int | None
    ) -> "Dataset":
        shards = max(1, min(-(-count // _IMAGES_PER_SHARD), _MOST_SHARDS))
        prefix = fingerprint(files, shards, most)
        # Images without boxes are left out, as in the original.
        records = cached(cache_dir, prefix, read, shards=shards, most=most, skip_empty=True)
        return cls(records)

    @classmethod
    def from_cache(cls, tfrecord_cache_files: object) -> "Dataset":
        """Opens a cache, also one of the original: its folder and prefix, or an object with them.

        Raises:
            UserError: there is none.
        """
        prefix = getattr(tfrecord_cache_files, "cache_prefix", tfrecord_cache_files)
        return cls(open_cache(str(prefix)))

    @property
    def size(self) -> int:
        """Number of images."""
        return self.records.size

    def __len__(self) -> int:
        return self.records.size

    @property
    def label_names(self) -> list[str]:
        """Names of the classes in the order of their ids, the background first."""
        return ["background", *(name for _, name in sorted(self.records.names.items()))]

    @property
    def num_classes(self) -> int:
        """Number of classes with the background."""
        return len(self.label_names)

    def split(self, fraction: float) -> "tuple[Dataset, Dataset]":
        """Returns the first part of the images, and the others.

        Raises:
            UserError: a part would be empty.
        """
        first, rest = self.records.split(fraction)
        return type(self)(first), type(self)(rest)


def _images(folder: Path) -> Path:
    for name in ("images", "data"):
        if (folder / name).is_dir():
            return folder / name
    raise UserError(
        "there is no folder of images", where=str(folder), fix="put the images into images/"
    )
