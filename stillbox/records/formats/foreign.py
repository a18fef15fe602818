"""Formats that are named and not converted."""

from functools import partial
from pathlib import Path

from stillbox.records.annotations import read_head
from stillbox.records.data_folder import DataFolder
from stillbox.records.formats.common import JsonOutline, json_files, xml_outline
from stillbox.records.formats.hugging_face import INFOS
from stillbox.records.formats.registry import register_foreign
from stillbox.records.tfrecord import HEADER_BYTES, is_header


def _is_records(file: Path) -> bool:
    return is_header(read_head(file)[:HEADER_BYTES])


def _records(folder: DataFolder) -> list[Path]:
    annotations = {".xml", ".json", ".csv", ".txt", ".yaml", ".yml", ".jsonl"}
    known = {*annotations, *(file.suffix for file in folder.images)}
    return [
        f for f in folder.files if f.suffix.lower() not in known and folder.memoized(_is_records, f)
    ]


def _masks(folder: DataFolder) -> list[Path]:
    """Returns images in folders of masks, each of which has the name of another image."""
    folders = ("masks", "mask", "SegmentationClass", "SegmentationObject", "labels", "annotations")
    masks = [
        file for file in folder.images if file.parent.name in folders and file.suffix == ".png"
    ]
    others = {file.stem for file in folder.images if file.parent.name not in folders}
    return [file for file in masks if file.stem in others]


def _is_imglab(file: Path) -> bool:
    return xml_outline(file)[0] == "dataset"


def _is_via(outline: JsonOutline) -> bool:
    return "_via_img_metadata" in outline.keys


def _is_createml(outline: JsonOutline) -> bool:
    keys = outline.keys
    return outline.is_list and {"image", "annotations"} <= keys and "data" not in keys


def _without_rows(folder: DataFolder) -> list[Path]:
    """Returns the descriptions of Hugging Face data sets whose rows are elsewhere."""
    rows = folder.with_suffix(".jsonl", ".parquet")
    return [] if rows else [file for file in folder.files if file.name == INFOS]


register_foreign(
    "tfrecord",
    "TFRecord data",
    _records,
    "records need no conversion: give them to a config as data.train.paths, and see "
    "`stillbox data check`",
    beside=("*",),
)
register_foreign(
    "masks",
    "a set of segmentation masks",
    _masks,
    "boxes are needed: convert the masks to COCO JSON first",
    beside=("*",),
)
register_foreign(
    "imglab",
    "dlib's imglab XML",
    lambda folder: folder.matching(_is_imglab, ".xml"),
    "convert it to Pascal VOC first",
)
register_foreign(
    "via", "a VGG Image Annotator project", partial(json_files, _is_via), "export it as COCO"
)
register_foreign(
    "createml",
    "Create ML JSON",
    partial(json_files, _is_createml),
    "export the data set as COCO or YOLO",
)
register_foreign(
    "arrow",
    "Hugging Face datasets as Arrow (save_to_disk)",
    lambda folder: [
        file for file in folder.with_suffix(".arrow") if file.name.startswith(("data-", "dataset"))
    ],
    "write it with `dataset.to_parquet(...)`",
)
register_foreign(
    "hugging_face_script",
    "a Hugging Face data set whose rows a script makes",
    _without_rows,
    "load it with `datasets` and write it with `dataset.to_parquet(...)`",
    beside=("*",),
)
