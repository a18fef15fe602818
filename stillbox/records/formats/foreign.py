"""Formats that are recognised by their content and not converted: a name and the way out.

An error that names the format saves the search for what is wrong with the folder. Sources: the
documentation of each program's exports.
"""

import re
from collections.abc import Callable
from pathlib import Path

from stillbox.records.data_folder import DataFolder
from stillbox.records.foreign_files import csv_header, read_head
from stillbox.records.formats.registry import (
    Finder,
    JsonOutline,
    json_files,
    register_foreign,
    xml_files,
)
from stillbox.records.formats.tables import INFOS
from stillbox.records.formats.yolo import kitti_files, pose_files, text_head
from stillbox.records.tfrecord import HEADER_BYTES, is_header

_EXPORT = "export the data set as COCO or YOLO"
_DETECTION = "boxes are needed: export the data set as detection"


def _list_of(*keys: str) -> Callable[[JsonOutline], bool]:
    return lambda outline: outline.is_list and outline.keys >= {*keys}


def _object_of(*keys: str) -> Callable[[JsonOutline], bool]:
    return lambda outline: not outline.is_list and outline.keys >= {*keys}


def _is_createml(outline: JsonOutline) -> bool:
    keys = outline.keys
    return outline.is_list and {"image", "annotations"} <= keys and "data" not in keys


def _is_results(outline: JsonOutline) -> bool:
    return outline.is_list and outline.keys >= {"image_id", "category_id", "score"}


def _without_annotations(outline: JsonOutline) -> bool:
    keys = outline.keys
    return not outline.is_list and "annotations" not in keys and {"images", "categories"} <= keys


# Name, title, test of the outline of a JSON file, remedy.
_JSON: tuple[tuple[str, str, Callable[[JsonOutline], bool], str], ...] = (
    ("via", "a VGG Image Annotator project", _object_of("_via_img_metadata"), "export it as COCO"),
    (
        "via_json",
        "VIA annotations (VGG Image Annotator)",
        lambda outline: not outline.is_list and outline.first >= {"filename", "regions"},
        "open them in VIA and export them as COCO",
    ),
    ("createml", "Create ML JSON", _is_createml, _EXPORT),
    ("labelbox", "Labelbox JSON", _list_of("Label", "External ID"), _EXPORT),
    ("supervisely", "Supervisely JSON", _object_of("size", "objects"), _EXPORT),
    ("vott", "a VoTT project", _object_of("asset", "regions"), "export it as Pascal VOC"),
    ("vott_json", "VoTT JSON", _object_of("assets", "tags"), "export it as Pascal VOC"),
    ("bdd100k", "BDD100K labels", _list_of("name", "labels"), "convert them with its `to_coco`"),
    ("datumaro", "Datumaro JSON", _object_of("items", "categories"), _EXPORT),
    ("darwin", "V7 Darwin JSON", _object_of("item", "annotations"), _EXPORT),
    ("scale", "Scale AI tasks", _list_of("task_id", "response"), _EXPORT),
    ("dataloop", "Dataloop JSON", _object_of("filename", "annotations"), _EXPORT),
    (
        "cityscapes",
        "Cityscapes polygons",
        _object_of("imgHeight", "imgWidth", "objects"),
        "convert them to COCO first",
    ),
    (
        "coco_results",
        "COCO results, which are detections of a model",
        _is_results,
        "give the file of the annotations",
    ),
    (
        "coco_info",
        "COCO image info without annotations",
        _without_annotations,
        "give the file of instances",
    ),
    ("coco_video", "COCO JSON of videos", _object_of("videos", "annotations"), _EXPORT),
)
# Files of these formats lie beside annotations; all others may be the annotations that are meant.
_BESIDE = ("coco_results", "coco_info", "matlab")
for _name, _title, _test, _fix in _JSON:
    _passed = ("*",) if _name in _BESIDE else ()
    register_foreign(_name, _title, json_files(_test), _fix, _passed)


def _texts(pattern: str) -> Finder:
    """Returns a finder of text files with a pattern at their begin."""
    start = re.compile(pattern.encode())
    return lambda folder: [
        file for file in folder.with_suffix(".txt") if start.match(text_head(folder, file))
    ]


def _suffix(*suffixes: str) -> Finder:
    return lambda folder: folder.with_suffix(*suffixes)


_N = r"-?\d+(\.\d+)?"
_CONVERT = "boxes are needed: convert the masks to COCO JSON first"
_TO_COCO = "convert them to COCO or YOLO first"
# Name, title, finder, remedy.
_OTHERS: tuple[tuple[str, str, Finder, str], ...] = (
    ("dota", "DOTA text labels", _texts(rf"(image.*\s+gsd.*\s+)?({_N} ){{8}}[A-Za-z]"), _TO_COCO),
    (
        "oid_toolkit",
        "labels of OIDv4 ToolKit",
        _texts(rf"[A-Z][A-Za-z ]*( {_N}){{4}}[\r\n]"),
        _TO_COCO,
    ),
    ("mot", "MOT Challenge tracks", _texts(rf"\d+,-?\d+(,{_N}){{7,8}}\s"), _TO_COCO),
    ("wider", "WIDER FACE lists", _texts(rf"\S+\.jpg\s+\d+\s+({_N} ){{9}}"), _TO_COCO),
    ("voc_text", "PASCAL annotations of version 1", _texts(r"# PASCAL Annotation"), _TO_COCO),
    ("ground_truth", "a SageMaker Ground Truth manifest", _suffix(".manifest"), _TO_COCO),
    ("odgt", "CrowdHuman's odgt", _suffix(".odgt"), _TO_COCO),
    ("matlab", "MATLAB data", _suffix(".mat"), _TO_COCO),
    ("ndjson", "JSON lines of Labelbox or another platform", _suffix(".ndjson"), _EXPORT),
    ("imglab", "dlib's imglab XML", xml_files(lambda root, _: root == "dataset"), _TO_COCO),
    ("kitti", "KITTI text labels", kitti_files, _TO_COCO),
    ("yolo_pose", "YOLO poses (kpt_shape)", pose_files, _DETECTION),
)
for _name, _title, _find, _fix in _OTHERS:
    register_foreign(_name, _title, _find, _fix, ("*",) if _name in _BESIDE else ())


def _is_via_csv(file: Path) -> bool:
    return {*csv_header(file)[0]} >= {"filename", "region_count", "region_shape_attributes"}


register_foreign(
    "via_csv",
    "VIA annotations as CSV",
    lambda folder: folder.matching(_is_via_csv, ".csv"),
    "open them in VIA and export them as COCO",
)


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
    masks = [f for f in folder.images if f.parent.name in folders and f.suffix == ".png"]
    others = {file.stem for file in folder.images if file.parent.name not in folders}
    return [file for file in masks if file.stem in others]


def _without_rows(folder: DataFolder) -> list[Path]:
    """Returns the descriptions of Hugging Face data sets that have their rows elsewhere."""
    rows = folder.with_suffix(".jsonl", ".parquet")
    return [] if rows else [file for file in folder.files if file.name == INFOS]


register_foreign("masks", "a set of segmentation masks", _masks, _CONVERT, beside=("*",))
register_foreign(
    "tfrecord",
    "TFRecord data",
    _records,
    "records need no conversion: give them to a config as data.train.paths, and see "
    "`stillbox data check`",
    beside=("*",),
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
