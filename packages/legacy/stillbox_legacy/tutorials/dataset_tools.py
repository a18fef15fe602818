"""Annotations of public data sets, in the folders that the original's converters read.

Source: `object_detection/dataset_tools/create_{pascal,pet}_tf_record.py`.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.records.annotations import AnnotatedImage, ImageRoot
from stillbox.records.foreign_files import read_lines
from stillbox.records.formats.voc import annotated, read_image_set, read_voc, read_voc_file
from stillbox.records.image_files import IMAGE_SUFFIXES
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError, ConversionLog

YEARS = ("VOC2007", "VOC2012", "merged")
SETS = ("train", "val", "trainval", "test")
# The original takes any class's list of all images; it takes this one.
_ANY_CLASS = "aeroplane"


def read_pascal(
    data: Path, year: str, image_set: str, annotations: str, label_map: LabelMap, log: ConversionLog
) -> list[AnnotatedImage]:
    """Reads a set of Pascal VOC.

    Args:
        data: the folder `VOCdevkit`, or one that has `ImageSets` itself.
        year: one of `YEARS`; `merged` takes both.
        image_set: one of `SETS`.
        annotations: name of the folder of XML files in the folder of the year.
        label_map: the classes.
        log: gets what is left out.

    Raises:
        UserError: a folder or list is absent.
    """
    items = []
    for folder in YEARS[:2] if year == "merged" else (year,):
        root = data / folder
        if not root.is_dir() and (data / "ImageSets").is_dir():
            root = data
        if not root.is_dir():
            raise UserError(
                "there is no such folder", where=str(root), fix="--data_dir is that of VOCdevkit"
            )
        lists = root / "ImageSets" / "Main"
        name = f"{_ANY_CLASS}_{image_set}"
        stems = read_image_set(root, name if (lists / f"{name}.txt").is_file() else image_set)
        more, _ = read_voc(
            root / annotations, root / "JPEGImages", log, stems=stems, label_map=label_map
        )
        items += more
    return items


class PetSets(NamedTuple):
    """The annotations of the Oxford-IIIT Pets, divided as the original does."""

    train: Sequence[AnnotatedImage]
    validation: Sequence[AnnotatedImage]


_SEED, _TRAIN_SHARE = 42, 0.7
_BREED = re.compile(r"([A-Za-z_]+)(?:_[0-9]+)")


def read_pets(data: Path, label_map: LabelMap, log: ConversionLog) -> PetSets:
    """Reads the heads of the pets: boxes of XML files, and the breed in the image's name.

    Args:
        data: the folder with `images` and `annotations`.
        label_map: the breeds.
        log: gets the images without an annotation.

    Raises:
        UserError: a folder or list is absent.
    """
    listed = data / "annotations" / "trainval.txt"
    if not listed.is_file() or not (data / "images").is_dir():
        raise UserError(
            "the data set of pets is not there: it has images and annotations/trainval.txt",
            where=str(data),
            fix="unpack images.tar.gz and annotations.tar.gz there, or give another --data_dir",
        )
    stems = [line.split()[0] for line in read_lines(listed)]
    # The same calls as in the original, and thus the same division.
    random.Random(_SEED).shuffle(stems)
    count = int(_TRAIN_SHARE * len(stems))
    root = ImageRoot(data / "images")
    by_stem = {
        file.stem: file.name
        for file in sorted((data / "images").iterdir(), reverse=True)
        if file.suffix.lower() in IMAGE_SUFFIXES
    }
    train, validation = (
        [item for stem in part if (item := _pet(data, root, by_stem, stem, label_map, log))]
        for part in (stems[:count], stems[count:])
    )
    return PetSets(train, validation)


def _pet(
    data: Path,
    root: ImageRoot,
    by_stem: dict[str, str],
    stem: str,
    label_map: LabelMap,
    log: ConversionLog,
) -> AnnotatedImage | None:
    file = data / "annotations" / "xmls" / f"{stem}.xml"
    if not ImageRoot(data / "annotations" / "xmls").holds(file) or not file.is_file():
        log.bad_record("annotation file is missing", str(file))
        return None
    try:
        tree = read_voc_file(file)
    except BadRecordError as error:
        log.bad_record(error.reason, str(file), error.detail)
        return None
    match = _BREED.fullmatch(stem)
    if match is None:
        raise UserError(
            f"{stem!r} does not begin with a breed",
            where=str(file),
            fix="images of the pets are named like Abyssinian_1.jpg",
        )
    for name in tree.iterfind("object/name"):
        name.text = match[1]
    path = root.path(by_stem.get(stem, f"{stem}.jpg"), file)
    return annotated(tree, f"xmls/{file.name}", path, label_map)
