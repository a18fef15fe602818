"""CVAT for images 1.1: one XML file for many images.

Source: docs.cvat.ai, "CVAT for image". Pixels count from 0, sides are continuous coordinates.
"""

import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

from stillbox.records.data_folder import DataFolder, name_split, word_split
from stillbox.records.formats.build import NO_BOX, Box, bounds, labelled, rotated
from stillbox.records.formats.registry import FolderContents, register, register_foreign
from stillbox.records.formats.sniff import xml_outline
from stillbox.records.guarded import number, parse_int, read_xml
from stillbox.records.problems import ConversionLog


def _find(video: bool, folder: DataFolder) -> list[Path]:
    return [f for f in folder.with_suffix(".xml") if folder.memoized(_kind, f) == (True, video)]


def _kind(file: Path) -> tuple[bool, bool]:
    """Tells whether a file is CVAT's, and whether it is of a video."""
    root, marks = xml_outline(file)
    return root == "annotations" and bool(marks & {"image", "track"}), "track" in marks


@register("cvat", "CVAT for images", partial(_find, False))
def read_cvat(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads XML files; polygons, ellipses and masks become the boxes around them."""
    reading = FolderContents()
    classes: dict[str, None] = {}
    for file in files:
        tree = read_xml(file)
        classes |= dict.fromkeys(
            _text(label.findtext("name")) for label in tree.iterfind("meta//label")
        )
        for image in tree.iterfind("image"):
            name = image.get("name", "")
            path = folder.image(name, file, file.parent, log)
            if path is None:
                continue
            where = f"{folder.relative(file)}: image {name}"
            shapes = [
                (shape.get("label", ""), *_box(shape)) for shape in image if shape.tag != "tag"
            ]
            for label, _, kind in shapes:
                if kind:
                    log.bad_box(f"a {kind} has no box", where, f"label {label!r}")
            reading.images.append(
                labelled(
                    path,
                    where,
                    [label for label, _, kind in shapes if not kind],
                    [box for _, box, kind in shapes if not kind],
                    size=(parse_int(image.get("height")), parse_int(image.get("width"))),
                    split=word_split(image.get("subset"))
                    or name_split(file.relative_to(folder.root)),
                )
            )
    reading.classes = tuple(classes)
    return reading


def _text(text: str | None) -> str:
    return (text or "").strip()


def _box(shape: ElementTree.Element) -> tuple[Box, str]:
    """Returns ymin, xmin, ymax, xmax of a shape, and its kind if it has none."""
    values = {key: number(value) for key, value in shape.attrib.items()}

    def at(*names: str) -> list[float]:
        return [values.get(name, float("nan")) for name in names]

    if shape.tag == "box":
        xmin, ymin, xmax, ymax = at("xtl", "ytl", "xbr", "ybr")
        box = (ymin, xmin, ymax, xmax)
        angle = values.get("rotation", 0.0)
        return (rotated(box, angle, centre=True) if angle else box), ""
    if shape.tag == "ellipse":
        cx, cy, rx, ry = at("cx", "cy", "rx", "ry")
        return (cy - ry, cx - rx, cy + ry, cx + rx), ""
    if shape.tag == "mask":
        left, top, width, height = at("left", "top", "width", "height")
        return (top, left, top + height, left + width), ""
    if shape.tag == "polygon":
        pairs = (pair.partition(",")[::2] for pair in shape.get("points", "").split(";"))
        return bounds([(number(x), number(y)) for x, y in pairs]), ""
    return NO_BOX, shape.tag


register_foreign(
    "cvat_video",
    "CVAT for video",
    partial(_find, True),
    "export the task as `CVAT for images 1.1`, with its images",
)
