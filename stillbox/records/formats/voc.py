"""Pascal VOC XML in folders of any layout, with or without `ImageSets/Main`.

VOC's own files count pixels from 1, most tools that write the format count from 0, and the files
do not say which. Coordinates are divided by the size as they are, without subtracting 1, as in
`object_detection/dataset_tools/create_pascal_tf_record.py`; the difference is one pixel. Source:
VOC development kit, section "Annotations".
"""

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stillbox.errors import UserError, nearest
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.data_folder import DataFolder, Split, folder_split, image_stem, word_split
from stillbox.records.foreign_files import MAX_LIST_BYTES, number, parse_int, read_lines, read_xml
from stillbox.records.formats.registry import (
    FolderContents,
    Labelled,
    register,
    register_foreign,
    xml_files,
)
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError, ConversionLog
from stillbox.records.review import Stated, report_without_annotation, review
from stillbox.records.shapes import Box, bounds, rotated
from stillbox.references import Command, Parameter
from stillbox.untrusted import read_untrusted


def read_voc(
    annotations: str | Path,
    images: str | Path,
    log: ConversionLog,
    *,
    stems: Sequence[str] | None = None,
    label_map: LabelMap | None = None,
    chosen: BoxNumbers | None = None,
) -> tuple[list[AnnotatedImage], LabelMap]:
    """Reads a folder of VOC XML files.

    Args:
        stems: file names without suffix of the images, in their order; by default all, sorted.
        label_map: the classes; by default the classes of *all* XML files in the folder, sorted by
            name: every set of one data set gets the same ids.
        chosen: unit and layout of the boxes; by default recognised.

    Raises:
        UserError: a folder is absent or holds nothing, the numbers of the boxes are not clear, or
            a policy is `fail`.
    """
    folder, pictures = Path(annotations), Path(images)
    for path, option in (
        (folder, f"{Parameter('annotations')}"),
        (pictures, f"{Parameter('images')}"),
    ):
        if not path.is_dir():
            raise UserError("there is no such folder", where=str(path), fix=f"see {option}")
    files = sorted(folder.glob("*.xml"))
    if not files:
        problem = "the folder holds no XML file"
        raise UserError(
            problem, where=str(folder), fix=f"see {Parameter('annotations')} or {Parameter('root')}"
        )
    trees = _parse_all(files, stems, log)
    if label_map is None:
        names = {name for tree in trees.values() for name in object_names(tree)} - {""}
        if not names:
            problem = "no XML file names an object, so there is no class"
            raise UserError(
                problem, where=str(folder), fix=f"give the classes with {Parameter('label_map')}"
            )
        label_map = LabelMap.from_names(sorted(names))
    stated, written = [], {file.stem for file in files}
    data = DataFolder(pictures)
    for stem in [file.stem for file in files] if stems is None else stems:
        file = folder / f"{stem}.xml"
        if stem in trees:
            image = _image_of(trees[stem], file, data.root, data, log)
            if image is not None:
                where = f"{folder.name}/{file.name}"
                stated.append(Stated(annotated(trees[stem], where, image, label_map)))
        elif stem not in written:
            log.bad_record("annotation file is missing", str(file))
    items = [image.item for image in review(stated, data, NUMBERS, log, chosen)]
    if stems is None:
        report_without_annotation(items, data, log)
    return items, label_map


def _image_of(
    tree: ElementTree.Element, file: Path, near: Path, data: DataFolder, log: ConversionLog
) -> Path | None:
    """Returns the image of an annotation; the `filename` inside is often left over from a copy."""
    inside = tree.findtext("filename") or file.stem
    return data.image_of_stem(file.stem, file, inside) or data.image(inside, file, near, log)


def read_image_set(root: str | Path, name: str) -> list[str]:
    """Returns the image names of `ImageSets/Main/<name>.txt`, whatever flags follow them.

    Raises:
        UserError: there is no such list, or it is empty.
    """
    folder = Path(root) / "ImageSets" / "Main"
    path = folder / f"{name}.txt"
    if not path.is_file():
        sets = [file.stem for file in folder.glob("*.txt")] if folder.is_dir() else []
        fix = (
            nearest(name, sets)
            if sets
            else f"leave {Parameter('set')} out for all images, or see {Parameter('root')}"
        )
        raise UserError(f"there is no image set {name!r}", where=str(path), fix=fix)
    text = read_untrusted(path, most=MAX_LIST_BYTES).decode(errors="replace")
    stems = [line.split()[0] for line in text.splitlines() if line.strip()]
    if not stems:
        raise UserError(
            "the image set names no image",
            where=str(path),
            fix=f"choose another {Parameter('set')}",
        )
    return list(dict.fromkeys(stems))


def _parse_all(
    files: Sequence[Path], stems: Sequence[str] | None, log: ConversionLog
) -> dict[str, ElementTree.Element]:
    trees = {}
    wanted = None if stems is None else set(stems)
    for file in files:
        try:
            trees[file.stem] = read_voc_file(file)
        except BadRecordError as error:
            if wanted is None or file.stem in wanted:
                log.bad_record(error.reason, str(file), error.detail)
    return trees


def read_voc_file(file: Path) -> ElementTree.Element:
    """Returns the root element of an annotation.

    Raises:
        BadRecordError: it is not XML.
        UserError: it is XML of another format.
    """
    try:
        tree = read_xml(file)
    except UserError as error:  # or a folder with such a name
        detail = error.what.removeprefix("this is not XML: ")
        raise BadRecordError("annotation file is no XML", detail) from error
    if tree.tag != "annotation":
        problem = f"this is not Pascal VOC XML: its root is <{tree.tag}>, not <annotation>"
        fix = f"let {Command('data convert', 'FOLDER', output='OUT')} recognise the format"
        raise UserError(problem, where=str(file), fix=fix)
    return tree


def annotated(
    tree: ElementTree.Element, where: str, path: Path, label_map: LabelMap
) -> AnnotatedImage:
    """Returns the annotation of the image `path`."""
    objects = tree.findall("object")
    names = object_names(tree)
    class_ids = [label_map.find(name) for name in names]
    sides = [_object_box(o) for o in objects]
    return AnnotatedImage(
        path=path,
        where=where,
        image_id=path.name,
        filename=path.name,
        height=parse_int(tree.findtext("size/height")),
        width=parse_int(tree.findtext("size/width")),
        pixel_boxes=np.array(sides, np.float64).reshape(-1, 4),
        class_ids=np.array(class_ids, np.int32),
        unknown={row: repr(names[row]) for row, i in enumerate(class_ids) if not i},
        difficult=_flags(objects, "difficult"),
        truncated=_flags(objects, "truncated"),
    )


def _object_box(element: ElementTree.Element) -> Box:
    """Returns the box of an object: `bndbox`, or around a `polygon` or roLabelImg's `robndbox`."""
    polygon, turned = element.find("polygon"), element.find("robndbox")
    if element.find("bndbox") is None and polygon is not None:
        leaves = [leaf for leaf in polygon.iter() if not len(leaf)]
        xs, ys = ([number(leaf.text) for leaf in leaves if leaf.tag[:1] == axis] for axis in "xy")
        return bounds(list(zip(xs, ys, strict=False)))
    if element.find("bndbox") is None and turned is not None:
        x, y, w, h, angle = (
            number(turned.findtext(key)) for key in ("cx", "cy", "w", "h", "angle")
        )
        box = (y - h / 2, x - w / 2, y + h / 2, x + w / 2)
        return rotated(box, math.degrees(angle), centre=True)
    ymin, xmin, ymax, xmax = (number(element.findtext(f"bndbox/{side}")) for side in _SIDES)
    return ymin, xmin, ymax, xmax


def object_names(tree: ElementTree.Element) -> list[str]:
    """Returns the class of each object."""
    return [(o.findtext("name") or "").strip() for o in tree.findall("object")]


def _flags(objects: Sequence[ElementTree.Element], name: str) -> np.ndarray:
    return np.array([parse_int(o.findtext(name)) != 0 for o in objects], np.bool_)


NUMBERS = BoxNumbers("pixels", "corners")
"""Boxes as the format defines them."""
_NO_CLASSES = LabelMap(())
_SIDES = ("ymin", "xmin", "ymax", "xmax")


def _only_polygons(marks: frozenset[str]) -> bool:
    return "polygon" in marks and "bndbox" not in marks


@register(
    "voc",
    "Pascal VOC XML",
    xml_files(lambda root, marks: root == "annotation" and not _only_polygons(marks)),
)
def read_voc_folder(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads XML files; the image of each has the same name, or else its `filename`."""
    images = []
    sets = _image_sets(folder)
    for file in files:
        try:
            tree = read_voc_file(file)
        except BadRecordError as error:
            log.bad_record(error.reason, folder.relative(file), error.detail)
            folder.used.update(folder.images_of_stem(file.stem))
            continue
        path = _image_of(tree, file, file.parent, folder, log)
        if path is None:
            continue
        split = folder_split(file.relative_to(folder.root))
        for root, members in sets.items():
            if file.is_relative_to(root):
                split = members.get(file.stem)
        item = annotated(tree, folder.relative(file), path, _NO_CLASSES)
        images.append(Labelled(item, object_names(tree), split))
    return FolderContents(images=images, numbers=NUMBERS)


def _image_sets(folder: DataFolder) -> Mapping[Path, Mapping[str, Split]]:
    """Returns the split of each stem by the root of `ImageSets`; `val` overrides `trainval`."""
    sets: dict[Path, dict[str, Split]] = {}
    lists = [f for f in folder.with_suffix(".txt") if f.parts[-3:-1] == ("ImageSets", "Main")]
    for file in sorted(lists, key=lambda file: file.stem != "trainval"):
        split = word_split(file.stem)
        folder.used.add(file)
        if split is not None:
            stems = [image_stem(line.split()[0]) for line in read_lines(file)]
            if stems and not any(map(folder.images_of_stem, stems)):
                problem = f"none of the images of {split} is here: {stems[0]}"
                fix = "let the list name images of the folder, or take it out"
                raise UserError(problem, where=f"{file}:1", fix=fix)
            members = sets.setdefault(file.parents[2], {})
            members |= dict.fromkeys(stems, split)
    return sets


register_foreign(
    "labelme_xml",
    "LabelMe XML of polygons",
    xml_files(lambda root, marks: root == "annotation" and _only_polygons(marks)),
    "export boxes, or polygons as LabelMe JSON",
)
