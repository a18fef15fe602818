"""Exports of annotation tools: CVAT for images 1.1, Label Studio and LabelMe.

CVAT writes one XML file for many images; pixels count from 0, sides are continuous coordinates.
Label Studio writes JSON tasks with rectangles in per cent of the sides. LabelMe writes one JSON
file for each image, with shapes of points in pixels; `imageData` may hold the image file in
Base64.

Sources: docs.cvat.ai, "CVAT for image"; labelstud.io, "Label Studio JSON format of annotated
tasks".
"""

import base64
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from stillbox.errors import UserError
from stillbox.records.annotations import line_of
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.data_folder import DataFolder, folder_split, name_split, word_split
from stillbox.records.foreign_files import (
    Json,
    json_list,
    json_object,
    name_text,
    number,
    parse_int,
    read_json,
    read_xml,
)
from stillbox.records.formats.registry import (
    FolderContents,
    JsonOutline,
    json_files,
    labelled,
    register,
    register_foreign,
    xml_files,
)
from stillbox.records.problems import ConversionLog
from stillbox.records.shapes import NO_BOX, Box, around_ellipse, bounds, rotated


def _is_cvat(root: str, marks: frozenset[str]) -> bool:
    return root == "annotations" and "image" in marks and "track" not in marks


@register("cvat", "CVAT for images", xml_files(_is_cvat))
def read_cvat(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads XML files; polygons, ellipses and masks become the boxes around them."""
    reading = FolderContents(numbers=BoxNumbers("pixels"))
    classes: dict[str, None] = {}
    for file in files:
        tree = read_xml(file)
        names = (label.findtext("name") or "" for label in tree.iterfind("meta//label"))
        classes |= dict.fromkeys(map(str.strip, names))
        for image in tree.iterfind("image"):
            name = image.get("name", "")
            path = folder.image(name, file, file.parent, log)
            if path is None:
                continue
            where = f"{folder.relative(file)}: image {name}"
            labels: list[str] = []
            boxes: list[Box] = []
            for shape in image:
                box, label = _cvat_box(shape), shape.get("label", "")
                if box is not None:
                    labels.append(label)
                    boxes.append(box)
                elif shape.tag != "tag":
                    log.bad_box(f"a {shape.tag} has no box", where, f"label {label!r}")
            size = (parse_int(image.get("height")), parse_int(image.get("width")))
            split = word_split(image.get("subset")) or name_split(file.relative_to(folder.root))
            reading.images.append(labelled(path, where, labels, boxes, size=size, split=split))
    reading.classes = tuple(classes)
    return reading


def _cvat_box(shape: ElementTree.Element) -> Box | None:
    """Returns ymin, xmin, ymax, xmax of a shape, None if its kind has no box."""
    values = {key: number(value) for key, value in shape.attrib.items()}

    def at(*names: str) -> list[float]:
        return [values.get(name, math.nan) for name in names]

    if shape.tag == "box":
        xmin, ymin, xmax, ymax = at("xtl", "ytl", "xbr", "ybr")
        box = (ymin, xmin, ymax, xmax)
        angle = values.get("rotation", 0.0)
        return rotated(box, angle, centre=True) if angle else box
    if shape.tag == "ellipse":
        cx, cy, rx, ry = at("cx", "cy", "rx", "ry")
        return around_ellipse((cx, cy), rx, ry, values.get("rotation", 0.0))
    if shape.tag == "mask":
        left, top, width, height = at("left", "top", "width", "height")
        return top, left, top + height, left + width
    if shape.tag == "polygon":
        pairs = (pair.partition(",")[::2] for pair in shape.get("points", "").split(";"))
        return bounds([(number(x), number(y)) for x, y in pairs])
    return None


register_foreign(
    "cvat_video",
    "CVAT for video",
    xml_files(lambda root, marks: root == "annotations" and "track" in marks),
    "export the task as `CVAT for images 1.1`, with its images",
)


# Label Studio puts this before the names of files that it is given.
_UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")
_LABELS = ("rectanglelabels", "polygonlabels", "ellipselabels", "labels")


def _is_label_studio(outline: JsonOutline) -> bool:
    results = {"annotations", "completions"} & outline.keys
    return outline.is_list and "data" in outline.keys and bool(results)


@register("label_studio", "Label Studio JSON", json_files(_is_label_studio))
def read_label_studio(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads exports; polygons and ellipses become boxes; other tasks are left out."""
    reading = FolderContents(numbers=BoxNumbers("percent"))
    for file in files:
        for place, task in enumerate(map(json_object, json_list(folder.json(file)))):
            where = f"{folder.relative(file)}: task {place}"
            data = json_object(task.get("data"))
            texts = (v for v in (data.get("image"), *data.values()) if isinstance(v, str))
            address = next(texts, "")
            results = _task_results(task, where, log)
            if results is None or not address:
                log.bad_record("task without an image or an annotation", where)
                continue
            path = _task_image(folder, address, file, log)
            if path is None:
                continue
            names, boxes = _regions(results, where, log)
            size = max(map(_original_size, map(json_object, results)), default=(0, 0))
            split = folder_split(path.relative_to(folder.root))
            entry = labelled(path, where, names, boxes, size=size, split=split, relative=True)
            reading.images.append(entry)
    return reading


def _regions(results: list[Json], where: str, log: ConversionLog) -> tuple[list[str], list[Box]]:
    """Returns label and box of each region.

    Several results with one id are about one region: its shape, its labels, choices, a text. A
    choice is the label of a region that has no other.
    """
    regions: dict[object, list[dict[str, Json]]] = {}
    for place, shape in enumerate(map(json_object, results)):
        if isinstance(shape.get("value"), dict):
            key = shape.get("id")
            regions.setdefault(key if isinstance(key, str) else place, []).append(shape)
    names: list[str] = []
    boxes: list[Box] = []
    for shapes in regions.values():
        percent_boxes = [box for box in map(_percent_box, shapes) if box != NO_BOX]
        labels = _labels_of(shapes)
        if not percent_boxes:
            if kind := _marked_by(shapes):
                log.bad_box("result without a box", where, kind)
            continue
        if len(labels) > 1:
            reason, action = "region with several labels", "the first is used"
            log.add(reason, where, ", ".join(map(repr, labels)), action=action)
        names.append(labels[0] if labels else "")
        boxes.append(percent_boxes[0])
    return names, boxes


def _marked_by(shapes: list[dict[str, Json]]) -> str:
    """Returns the kind of labels of a region, as `brushlabels`; nothing for one of no labels."""
    kinds = (key for shape in shapes for key in json_object(shape["value"]))
    return next((kind for kind in kinds if kind.endswith("labels")), "")


def _labels_of(shapes: list[dict[str, Json]]) -> list[str]:
    """Returns the labels of a region, or else its choices."""
    for keys in (_LABELS, ("choices",)):
        values = (json_object(shape["value"]).get(key) for shape in shapes for key in keys)
        labels = [name_text(label) for value in values for label in json_list(value)]
        if labels:
            return list(dict.fromkeys(labels))
    return []


def _task_results(task: dict[str, Json], where: str, log: ConversionLog) -> list[Json] | None:
    """Returns the results of the first annotation that was not cancelled."""
    made = json_list(task.get("annotations") or task.get("completions"))
    kept = [a for a in made if isinstance(a, dict) and not a.get("was_cancelled")]
    if len(kept) > 1:
        log.add("several annotations of an image", where, action="the first is used")
    results = kept[0].get("result") if kept else None
    return results if isinstance(results, list) else None


def _task_image(folder: DataFolder, address: str, file: Path, log: ConversionLog) -> Path | None:
    """Returns the image of an address, which is a path of the server, not of this machine."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        log.bad_record("image address is no URL", line_of(file, address), str(error))
        return None
    name = parse_qs(parts.query).get("d", [unquote(parts.path)])[0]
    if ".." in Path(name).parts:
        problem = f"the image address {address!r} leads out of the folder of the images"
        raise UserError(problem, where=line_of(file, address), fix="export the project again")
    # Folders of the server tell images of one name apart, if they are here too.
    name = name.strip("/").removeprefix("data/") or "image"
    last = Path(name).name
    path = folder.image(name, file, file.parent, log)
    if path is None or folder.has(path) or not _UPLOAD_PREFIX.match(last):
        return path
    return folder.image(_UPLOAD_PREFIX.sub("", last), file, file.parent, log)


def _original_size(shape: dict[str, Json]) -> tuple[int, int]:
    return parse_int(shape.get("original_height")), parse_int(shape.get("original_width"))


def _percent_box(shape: dict[str, Json]) -> Box:
    """Returns the box of a result in fractions of the sides, `NO_BOX` if it has none."""
    value = json_object(shape["value"])
    at = {key: number(inner) for key, inner in value.items()}
    # Angles hold in pixels, where the sides have their true lengths.
    high, wide = (side or 1 for side in _original_size(shape))
    if isinstance(points := value.get("points"), list):
        pairs = [p for p in points if isinstance(p, list) and len(p) == 2]
        box = bounds([(number(x) / 100 * wide, number(y) / 100 * high) for x, y in pairs])
    elif {"radiusX", "radiusY"} <= at.keys():
        x, y, u, v = (at.get(key, NO_BOX[0]) / 100 for key in ("x", "y", "radiusX", "radiusY"))
        centre = (x * wide, y * high)
        box = around_ellipse(centre, u * wide, v * high, at.get("rotation", 0.0))
    elif {"x", "y", "width", "height"} <= at.keys():
        x, y, w, h = (at[key] / 100 for key in ("x", "y", "width", "height"))
        box = (y * high, x * wide, (y + h) * high, (x + w) * wide)
        box = rotated(box, at["rotation"], centre=False) if at.get("rotation") else box
    else:
        return NO_BOX
    return box[0] / high, box[1] / wide, box[2] / high, box[3] / wide


_WITH_AREA = ("rectangle", "polygon", "circle", "mask", "rotation", "oriented_rectangle")
_NO_CLASSES = ("__ignore__", "_background_")
"""Labels that LabelMe reserves."""


@register(
    "labelme",
    "LabelMe JSON",
    json_files(lambda outline: not outline.is_list and outline.keys >= {"shapes", "imagePath"}),
)
def read_labelme(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads JSON files; polygons and circles become the boxes around them."""
    reading = FolderContents(numbers=BoxNumbers("pixels"))
    for file in files:
        try:
            content = json_object(folder.json(file))
        except UserError as error:
            log.bad_record("annotation file is no JSON", folder.relative(file), error.what)
            folder.used.update(folder.images_of_stem(file.stem))
            continue
        image = _labelme_image(folder, file, content, log)
        if image is None:
            continue
        path, stored = image
        where = folder.relative(file)
        names: list[str] = []
        boxes: list[Box] = []
        for place, item in enumerate(json_list(content["shapes"])):
            shape = json_object(item)
            label = name_text(shape.get("label", "")).strip()
            if label in _NO_CLASSES:
                log.add("shape to be ignored", f"{where}, shape {place}", label, action="left out")
                continue
            kind = str(shape.get("shape_type", "polygon")) if isinstance(item, dict) else "no shape"
            box = _labelme_box(shape, kind)
            if box == NO_BOX:
                log.bad_box("shape without a box", f"{where}, shape {place}", kind)
                continue
            names.append(label)
            boxes.append(box)
        size = (parse_int(content.get("imageHeight")), parse_int(content.get("imageWidth")))
        split = folder_split(file.relative_to(folder.root))
        entry = labelled(path, where, names, boxes, size=size, split=split, stored=stored)
        reading.images.append(entry)
    return reading


def _labelme_image(
    folder: DataFolder, file: Path, content: dict[str, Json], log: ConversionLog
) -> tuple[Path, Callable[[], bytes] | None] | None:
    """Returns the image file, or what returns the embedded image; None if it is left out."""
    near = folder.image_of_stem(file.stem, file, str(content["imagePath"]))
    if near is not None:
        return near, None
    embedded = partial(_embedded, file) if isinstance(content.get("imageData"), str) else None
    try:
        path = folder.image(str(content["imagePath"]), file, file.parent, log)
    except UserError:
        if embedded is None:
            raise
        return file.with_suffix(".img"), embedded  # the name leads elsewhere; nothing is opened
    # os.path: no error for a name that is too long for a file.
    there = path is not None and os.path.isfile(path)  # noqa: PTH113
    return None if path is None else (path, None if there else embedded)


def _embedded(file: Path) -> bytes:
    """Returns the embedded image, read on demand: all together may exceed the memory."""
    return base64.b64decode(str(json_object(read_json(file))["imageData"]), validate=True)


def _labelme_box(shape: dict[str, Json], kind: str) -> Box:
    """Returns the box of a shape, `NO_BOX` for points and lines."""
    points = [json_list(point) for point in json_list(shape.get("points"))]
    if kind not in _WITH_AREA or not all(len(point) == 2 for point in points):
        return NO_BOX
    pairs = [(number(x), number(y)) for x, y in points]
    if kind == "circle" and len(pairs) == 2:
        (x, y), (u, v) = pairs
        radius = math.hypot(x - u, y - v)
        pairs = [(x - radius, y - radius), (x + radius, y + radius)]
    return bounds(pairs)
