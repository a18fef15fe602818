"""Exports of annotation tools: CVAT for images 1.1, Label Studio and LabelMe; foreign formats.

CVAT writes one XML file for many images; pixels count from 0, sides are continuous coordinates.
Label Studio writes JSON tasks with rectangles in per cent of the sides. LabelMe writes one JSON
file for each image, with shapes of points in pixels; `imageData` may hold the image file in
Base64. Foreign formats are named and not converted.

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
from stillbox.records.annotations import (
    Json,
    json_list,
    json_object,
    line_of,
    number,
    parse_int,
    read_head,
    read_json,
    read_xml,
)
from stillbox.records.data_folder import DataFolder, folder_split, name_split, word_split
from stillbox.records.formats.registry import (
    NO_BOX,
    Box,
    FolderContents,
    JsonOutline,
    bounds,
    json_files,
    labelled,
    register,
    register_foreign,
    rotated,
    xml_files,
)
from stillbox.records.formats.tables import INFOS
from stillbox.records.problems import ConversionLog
from stillbox.records.tfrecord import HEADER_BYTES, is_header


def _is_cvat(root: str, marks: frozenset[str]) -> bool:
    return root == "annotations" and "image" in marks and "track" not in marks


@register("cvat", "CVAT for images", xml_files(_is_cvat))
def read_cvat(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads XML files; polygons, ellipses and masks become the boxes around them."""
    reading = FolderContents()
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
        return _around_ellipse((cx, cy), rx, ry, values.get("rotation", 0.0))
    if shape.tag == "mask":
        left, top, width, height = at("left", "top", "width", "height")
        return top, left, top + height, left + width
    if shape.tag == "polygon":
        pairs = (pair.partition(",")[::2] for pair in shape.get("points", "").split(";"))
        return bounds([(number(x), number(y)) for x, y in pairs])
    return None


def _around_ellipse(centre: tuple[float, float], rx: float, ry: float, degrees: float) -> Box:
    """Returns the box around an ellipse that is turned about its centre (x, y)."""
    if not math.isfinite(degrees):
        return NO_BOX
    (x, y), c, s = centre, math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    across, down = math.hypot(c * rx, s * ry), math.hypot(s * rx, c * ry)
    return y - down, x - across, y + down, x + across


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
    reading = FolderContents()
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
            shapes = [shape for shape in results if isinstance(shape, dict) and "value" in shape]
            found = [(_label_of(shape), _percent_box(shape)) for shape in shapes]
            for name, box in found:
                if box == NO_BOX:
                    log.bad_box("result without a box", where, f"label {name!r}")
            names = [name for name, box in found if box != NO_BOX]
            boxes = [box for _, box in found if box != NO_BOX]
            size = max(map(_original_size, shapes), default=(0, 0))
            split = folder_split(path.relative_to(folder.root))
            one = labelled(path, where, names, boxes, size=size, split=split, relative=True)
            reading.images.append(one)
    return reading


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
        what = f"the image address {address!r} leads out of the folder of the images"
        raise UserError(what, where=line_of(file, address), fix="export the project again")
    last = Path(name).name or "image"
    path = folder.image(last, file, file.parent, log)
    # os.path: a name may be too long for a file.
    if path is not None and not os.path.isfile(path) and _UPLOAD_PREFIX.match(last):  # noqa: PTH113
        return folder.image(_UPLOAD_PREFIX.sub("", last), file, file.parent, log)
    return path


def _label_of(shape: dict[str, Json]) -> str:
    value = json_object(shape["value"])
    labels = next((found for key in _LABELS if isinstance(found := value.get(key), list)), [])
    return str(labels[0]) if labels else ""


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
        box = _around_ellipse(centre, u * wide, v * high, at.get("rotation", 0.0))
    elif {"x", "y", "width", "height"} <= at.keys():
        x, y, w, h = (at[key] / 100 for key in ("x", "y", "width", "height"))
        box = (y * high, x * wide, (y + h) * high, (x + w) * wide)
        box = rotated(box, at["rotation"], centre=False) if at.get("rotation") else box
    else:
        return NO_BOX
    return box[0] / high, box[1] / wide, box[2] / high, box[3] / wide


_WITH_AREA = ("rectangle", "polygon", "circle", "mask")


@register(
    "labelme",
    "LabelMe JSON",
    json_files(lambda outline: not outline.is_list and outline.keys >= {"shapes", "imagePath"}),
)
def read_labelme(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads JSON files; polygons and circles become the boxes around them."""
    reading = FolderContents()
    for file in files:
        try:
            content = json_object(folder.json(file))
        except UserError as error:
            log.bad_record("annotation file is no JSON", folder.relative(file), error.what)
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
            kind = str(shape.get("shape_type", "polygon")) if isinstance(item, dict) else "no shape"
            box = _labelme_box(shape, kind)
            if box == NO_BOX:
                log.bad_box("shape without a box", f"{where}, shape {place}", kind)
                continue
            names.append(str(shape.get("label", "")).strip())
            boxes.append(box)
        size = (parse_int(content.get("imageHeight")), parse_int(content.get("imageWidth")))
        split = folder_split(file.relative_to(folder.root))
        one = labelled(path, where, names, boxes, size=size, split=split, stored=stored)
        reading.images.append(one)
    return reading


def _labelme_image(
    folder: DataFolder, file: Path, content: dict[str, Json], log: ConversionLog
) -> tuple[Path, Callable[[], bytes] | None] | None:
    """Returns the image file, or what returns the embedded image; None if it is left out."""
    near = folder.image_of_stem(file.stem, file)
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


def _is_createml(outline: JsonOutline) -> bool:
    keys = outline.keys
    return outline.is_list and {"image", "annotations"} <= keys and "data" not in keys


def _without_rows(folder: DataFolder) -> list[Path]:
    """Returns the descriptions of Hugging Face data sets whose rows are elsewhere."""
    rows = folder.with_suffix(".jsonl", ".parquet")
    return [] if rows else [file for file in folder.files if file.name == INFOS]


_CONVERT = "boxes are needed: convert the masks to COCO JSON first"
register_foreign("masks", "a set of segmentation masks", _masks, _CONVERT, beside=("*",))
register_foreign(
    "tfrecord",
    "TFRecord data",
    _records,
    "records need no conversion: give them to a config as data.train.paths, and see "
    "`stillbox data check`",
    beside=("*",),
)
_is_imglab = xml_files(lambda root, marks: root == "dataset")
register_foreign("imglab", "dlib's imglab XML", _is_imglab, "convert it to Pascal VOC first")
_is_via = json_files(lambda outline: "_via_img_metadata" in outline.keys)
register_foreign("via", "a VGG Image Annotator project", _is_via, "export it as COCO")
_EXPORT = "export the data set as COCO or YOLO"
register_foreign("createml", "Create ML JSON", json_files(_is_createml), _EXPORT)
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
