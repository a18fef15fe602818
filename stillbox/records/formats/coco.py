"""COCO JSON of object instances, one file or several, such as Roboflow's for each split."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stillbox.records.coco import read_coco
from stillbox.records.data_folder import DataFolder, folder_split, name_split
from stillbox.records.formats.registry import FolderContents, Labelled, register, register_foreign
from stillbox.records.formats.sniff import json_outline
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.records.problems import ConversionLog


def _find(kind: str, folder: DataFolder) -> list[Path]:
    """Returns the COCO files that annotate boxes, keypoints, captions or panoptic segments."""
    return [file for file in folder.with_suffix(".json") if _kind(folder, file) == kind]


def _kind(folder: DataFolder, file: Path) -> str:
    outline = json_outline(folder, file)
    if outline.is_list or not outline.keys >= {"images", "annotations"}:
        return ""
    annotation = outline.inner.get("annotations", frozenset())
    if "caption" in annotation:
        return "captions"
    if "segments_info" in annotation:
        return "panoptic"
    if "keypoints" in annotation | outline.inner.get("categories", frozenset()):
        return "keypoints"
    return "boxes" if "categories" in outline.keys else ""


@register("coco", "COCO JSON", partial(_find, "boxes"))
def read_coco_folder(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads COCO files; category ids stay if the files agree about them and no box has id 0."""
    images: list[Labelled] = []
    maps: list[LabelMap] = []
    for file in files:

        def locate(name: str, file: Path = file) -> Path | None:
            return folder.image(name, file, file.parent, log)

        items, label_map = read_coco(file, locate, log, renumber=None, read=folder.json)
        maps.append(label_map)
        stated = name_split(file.relative_to(folder.root))
        for item in items:
            names = [label_map.text_of(int(i)) if i else "" for i in item.class_ids]
            split = stated or folder_split(item.path.relative_to(folder.root))
            images.append(Labelled(item, names, split))
    names = [item.name for label_map in maps for item in label_map]
    return FolderContents(images=images, classes=names, label_map=_merged(maps))


def _merged(maps: Sequence[LabelMap]) -> LabelMap | None:
    """Returns the classes of all files, None if they disagree about an id."""
    pairs = {(item.id, item.name) for label_map in maps for item in label_map}
    if len(pairs) > min(len({i for i, _ in pairs}), len({name for _, name in pairs})):
        return None
    return LabelMap(tuple(LabelMapItem(class_id, name) for class_id, name in pairs))


for _foreign in ("keypoints", "captions", "panoptic"):
    register_foreign(
        f"coco_{_foreign}",
        f"COCO JSON of {_foreign}",
        partial(_find, _foreign),
        "boxes are needed: use the data set's file of instances",
        beside=("coco",),
    )
