"""COCO JSON of object instances, one file or several, such as Roboflow's for each split.

Category ids stay what they are. Source: cocodataset.org, "Data format". A box there is [x, y,
width, height] in pixels.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from stillbox.errors import UserError
from stillbox.numerals import whole
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.data_folder import DataFolder, folder_split, name_split
from stillbox.records.foreign_files import (
    Json,
    json_list,
    json_object,
    name_text,
    parse_int,
    read_json,
)
from stillbox.records.foreign_files import number as parse_number
from stillbox.records.formats.registry import (
    FolderContents,
    JsonOutline,
    Labelled,
    json_files,
    register,
    register_foreign,
)
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.records.problems import ConversionLog
from stillbox.records.review import Stated, report_without_annotation, review
from stillbox.records.shapes import NO_BOX, Box, segment_box
from stillbox.references import Parameter

T = TypeVar("T")
_GREATEST_AREA = 1e18
"""No image has as many pixels."""


NUMBERS = BoxNumbers("pixels", "corner_size")
"""Boxes as the format defines them."""


def read_coco(
    annotations: str | Path,
    images: str | Path,
    log: ConversionLog,
    *,
    label_map: LabelMap | None = None,
    renumber: bool = False,
    chosen: BoxNumbers | None = None,
) -> tuple[list[AnnotatedImage], LabelMap]:
    """Reads a COCO file of object instances; images without annotations are kept as background.

    Args:
        images: the folder that its `file_name`s are relative to and that they may not leave.
        label_map: gives the ids by category name; by default the category ids are kept.
        renumber: give the categories the ids 1, 2, ... in the order of their own ids.
        chosen: unit and layout of the boxes; by default recognised.

    Raises:
        UserError: the file is not COCO JSON, its categories make no label map, the numbers of its
            boxes are not clear, or a policy is `fail`.
    """
    path, folder = Path(annotations), Path(images)
    if not folder.is_dir():
        raise UserError(
            "there is no such folder of images", where=str(folder), fix=f"see {Parameter('images')}"
        )
    data = DataFolder(folder)
    locate = partial(data.image, annotation=path, near=data.root, log=log)
    content = _checked(read_json(path), path)
    items, label_map = _read(content, path, locate, log, label_map, renumber)
    reviewed = [image.item for image in review(map(Stated, items), data, NUMBERS, log, chosen)]
    report_without_annotation(reviewed, data, log)
    return reviewed, label_map


def _read(
    content: "_Lists",
    path: Path,
    locate: Callable[[str], Path | None],
    log: ConversionLog,
    label_map: LabelMap | None = None,
    renumber: bool | None = None,
) -> tuple[list[AnnotatedImage], LabelMap]:
    """Returns the images of a file; `renumber` None: only if an id below 1 has boxes."""
    names = _category_names(content, path)
    if label_map is not None:
        ids = {category: label_map.find(name) for category, name in names.items()}
    else:
        ids = _own_ids(content, path, names, log, renumber)
        items = tuple(LabelMapItem(class_id, names[c]) for c, class_id in ids.items())
        label_map = LabelMap(items, str(path))
    entries = _images(content, path, log)
    objects = _annotations(content, path, log, entries)
    annotated = [
        _annotated(entry, file, path, objects[image_id], ids, names, log)
        for image_id, entry in entries.items()
        if (file := locate(str(entry["file_name"]))) is not None
    ]
    return annotated, label_map


_Lists = Mapping[str, list[Json]]
"""The `images`, `annotations` and `categories` of a file."""
_Objects = dict[str, dict[str, Json]]
"""Objects by the text of their id: 1, 1.0 and "1" are one."""


def _checked(content: Json, path: Path) -> _Lists:
    lists = {key: value for key, value in json_object(content).items() if isinstance(value, list)}
    wrong = [key for key in ("images", "annotations", "categories") if key not in lists]
    if wrong:
        problem = f"this is no COCO file of instances: it has no list of {' and of '.join(wrong)}"
        raise UserError(
            problem, where=str(path), fix="give a file such as instances_train2017.json"
        )
    return lists


def _category_names(content: _Lists, path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for category in content["categories"]:
        fields = json_object(category)
        category_id, name = whole(fields.get("id")), name_text(fields.get("name", ""))
        if category_id is None or "name" not in fields:
            problem = f"a category has no usable id and name: {category!r}"[:200]
            raise UserError(problem, where=str(path))
        if category_id in names:
            problem = f"category id {category_id} belongs to {names[category_id]!r} and to {name!r}"
            raise UserError(problem, where=str(path), fix="give every category an id of its own")
        names[category_id] = name
    return names


def _own_ids(
    content: _Lists, path: Path, names: Mapping[int, str], log: ConversionLog, renumber: bool | None
) -> dict[int, int]:
    """Returns class id by category id, without a label map."""
    ordered = sorted(names)
    background = [category for category in ordered if category < 1]
    used = {whole(json_object(a).get("category_id")) for a in content["annotations"]}
    taken = bool(used & set(background))
    if renumber or (renumber is None and taken):
        ids = {category: class_id for class_id, category in enumerate(ordered, start=1)}
    else:
        ids = {category: category for category in ordered if category > 0}
        if taken:
            raise UserError(
                f"category {names[ordered[0]]!r} has id {ordered[0]}, which stands for background",
                where=str(path),
                fix=f"add {Parameter('renumber')} for ids 1, 2, ..., or give your own ids with "
                f"{Parameter('label_map')}",
            )
        for category in background:
            name, action = repr(names[category]), "left out: no box is of it"
            log.add("category with an id below 1", path.name, name, action=action)
    if not ids:
        raise UserError("the file names no category", where=str(path), fix="fill its `categories`")
    return ids


def _images(content: _Lists, path: Path, log: ConversionLog) -> _Objects:
    entries: _Objects = {}
    for number, item in enumerate(content["images"]):
        where, entry = f"{path.name}: images[{number}]", json_object(item)
        image_id = _key(entry.get("id"))
        if image_id is None or not entry.get("file_name"):
            log.bad_record("image entry without id or file name", where)
        elif image_id in entries:
            log.bad_record("image id occurs twice", where, f"id {image_id}")
        else:
            entries[image_id] = entry
    return entries


def _annotations(
    content: _Lists, path: Path, log: ConversionLog, images: Iterable[str]
) -> dict[str, list[dict[str, Json]]]:
    grouped: dict[str, list[dict[str, Json]]] = {image_id: [] for image_id in images}
    seen: _Objects = {}
    for number, entry in enumerate(content["annotations"]):
        where = f"{path.name}: annotations[{number}]"
        if not isinstance(entry, dict):
            log.bad_box("annotation is no object", where)
            continue
        image_id = _key(entry.get("image_id"))
        if image_id is None or image_id not in grouped:
            log.bad_box("annotation of an unknown image", where, f"image_id {image_id}")
            continue
        own_id = _key(entry.get("id"))
        former = seen.setdefault(f"annotation {number}" if own_id is None else own_id, entry)
        if former is not entry:
            same = all(former.get(k) == entry.get(k) for k in ("image_id", "category_id", "bbox"))
            action = "box dropped" if same else "box kept: it is another one"
            detail = f"id {own_id}"
            log.bad_box("annotation id occurs twice", where, detail, action=action)
            if same:
                continue
        grouped[image_id].append(entry)
    return grouped


def _annotated(
    entry: Mapping[str, Json],
    file: Path,
    path: Path,
    objects: Sequence[Mapping[str, Json]],
    ids: Mapping[int, int],
    names: Mapping[int, str],
    log: ConversionLog,
) -> AnnotatedImage:
    filename = str(entry["file_name"])
    where = f"{path.name}: image {entry['id']} ({filename})"
    categories = [o.get("category_id") for o in objects]
    class_ids = [_found(ids, category) or 0 for category in categories]
    areas = np.array([_number(o.get("area")) for o in objects], np.float64)
    return AnnotatedImage(
        path=file,
        where=where,
        image_id=str(entry["id"]),
        filename=filename,
        height=parse_int(entry.get("height")),
        width=parse_int(entry.get("width")),
        pixel_boxes=np.array([_box(o, where, log) for o in objects], np.float64).reshape(-1, 4),
        class_ids=np.array(class_ids, np.int32),
        unknown={r: _unknown(categories[r], names) for r, i in enumerate(class_ids) if not i},
        is_crowd=np.array([bool(o.get("iscrowd")) for o in objects], np.bool_),
        area=np.where(np.abs(areas) < _GREATEST_AREA, areas, np.nan).astype(np.float32),
    )


def _found(by_category: Mapping[int, T], category: object) -> T | None:
    category_id = whole(category)
    return None if category_id is None else by_category.get(category_id)


def _unknown(category: object, names: Mapping[int, str]) -> str:
    name = _found(names, category)
    return repr(name) if name else f"category id {category}"


def _box(annotation: Mapping[str, Json], where: str, log: ConversionLog) -> Box:
    """Returns the box of an annotation, or the box around its segment if it has none."""
    stored = annotation.get("bbox")
    box = NO_BOX
    if isinstance(stored, list) and len(stored) == 4:
        x, y, width, height = map(parse_number, stored)
        box = y, x, y + height, x + width
    if math.isnan(sum(box)) or not any(json_list(stored)):
        around = segment_box(annotation.get("segmentation"))
        if around != NO_BOX:
            log.add("annotation without a bbox", where, action="the box around its segment is used")
            return around
    return box


def _number(value: object) -> float:
    return parse_number(value) if isinstance(value, int | float) else np.nan


def _key(value: object) -> str | None:
    """Returns the text of an id, None if the value cannot be one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() if isinstance(value, int | str) else None


def _kind(outline: JsonOutline) -> str:
    """Returns whether a COCO file annotates boxes, keypoints, captions or panoptic segments."""
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


@register("coco", "COCO JSON", json_files(lambda outline: _kind(outline) == "boxes"))
def read_coco_folder(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads COCO files; category ids stay if the files agree about them and no box has id 0."""
    images: list[Labelled] = []
    maps: list[LabelMap] = []
    for file in files:
        locate = partial(folder.image, annotation=file, near=file.parent, log=log)
        items, label_map = _read(_checked(folder.json(file), file), file, locate, log)
        maps.append(label_map)
        stated = name_split(file.relative_to(folder.root))
        for item in items:
            names = [label_map.text_of(int(i)) if i else "" for i in item.class_ids]
            split = stated or folder_split(item.path.relative_to(folder.root))
            images.append(Labelled(item, names, split))
    names = [item.name for label_map in maps for item in label_map]
    return FolderContents(images=images, classes=names, label_map=_merged(maps), numbers=NUMBERS)


def _merged(maps: Sequence[LabelMap]) -> LabelMap | None:
    """Returns the classes of all files, None if they disagree about an id."""
    pairs = {(item.id, item.name) for label_map in maps for item in label_map}
    if len(pairs) > min(len({i for i, _ in pairs}), len({name for _, name in pairs})):
        return None
    return LabelMap(tuple(LabelMapItem(class_id, name) for class_id, name in pairs))


def _register_foreign(kind: str) -> None:
    fix = "boxes are needed: use the data set's file of instances"
    find = json_files(lambda outline: _kind(outline) == kind)
    register_foreign(f"coco_{kind}", f"COCO JSON of {kind}", find, fix, beside=("coco",))


for _foreign in ("keypoints", "captions", "panoptic"):
    _register_foreign(_foreign)
