"""Pascal VOC XML in folders of any layout, with or without `ImageSets/Main`.

VOC's own files count pixels from 1, most tools that write the format count from 0, and the files
do not say which. Coordinates are divided by the size as they are, without subtracting 1, as in
`object_detection/dataset_tools/create_pascal_tf_record.py`; the difference is one pixel. Source:
VOC development kit, section "Annotations".
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stillbox.errors import UserError, nearest
from stillbox.records.annotations import (
    MAX_LIST_BYTES,
    AnnotatedImage,
    ImageRoot,
    number,
    parse_int,
    read_lines,
    read_xml,
)
from stillbox.records.data_folder import DataFolder, Split, folder_split, word_split
from stillbox.records.formats.registry import (
    FolderContents,
    Labelled,
    register,
    register_foreign,
    xml_files,
)
from stillbox.records.image_files import IMAGE_SUFFIXES
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError, ConversionLog
from stillbox.untrusted import read_untrusted


def read_voc(
    annotations: str | Path,
    images: str | Path,
    log: ConversionLog,
    *,
    stems: Sequence[str] | None = None,
    label_map: LabelMap | None = None,
) -> tuple[list[AnnotatedImage], LabelMap]:
    """Reads a folder of VOC XML files.

    Args:
        stems: file names without suffix of the images, in their order; by default all, sorted.
        label_map: the classes; by default those of *all* XML files in the folder, sorted by name:
            every set of one data set gets the same ids.

    Raises:
        UserError: a folder is absent or holds nothing, or a policy is `fail`.
    """
    folder, pictures = Path(annotations), Path(images)
    for path, option in ((folder, "--annotations"), (pictures, "--images")):
        if not path.is_dir():
            raise UserError("there is no such folder", where=str(path), fix=f"see {option}")
    files = sorted(folder.glob("*.xml"))
    if not files:
        what = "the folder holds no XML file"
        raise UserError(what, where=str(folder), fix="see --annotations or --root")
    trees = _parse_all(files, stems, log)
    if label_map is None:
        names = {name for tree in trees.values() for name in object_names(tree)} - {""}
        if not names:
            what = "no XML file names an object, so there is no class"
            raise UserError(what, where=str(folder), fix="give the classes with --label-map")
        label_map = LabelMap.from_names(sorted(names))
    # If two images have one stem, the suffix that sorts first counts.
    ordered = sorted(pictures.iterdir(), reverse=True)
    by_stem = {file.stem: file for file in ordered if file.suffix.lower() in IMAGE_SUFFIXES}
    items, written = [], {file.stem for file in files}
    root = ImageRoot(pictures)
    for stem in [file.stem for file in files] if stems is None else stems:
        file = folder / f"{stem}.xml"
        if stem in trees:
            inside = trees[stem].findtext("filename") or stem
            # The `filename` inside is often left over from a copy or a renaming.
            known = by_stem.get(stem) or by_stem.get(Path(inside).stem)
            path = root.path(known.name if known else inside, file)
            items.append(annotated(trees[stem], f"{folder.name}/{file.name}", path, label_map))
        elif stem not in written:
            log.bad_record("annotation file is missing", str(file))
    return items, label_map


def read_image_set(root: str | Path, name: str) -> list[str]:
    """Returns the image names of `ImageSets/Main/<name>.txt`, whatever flags follow them.

    Raises:
        UserError: there is no such list, or it is empty.
    """
    folder = Path(root) / "ImageSets" / "Main"
    path = folder / f"{name}.txt"
    if not path.is_file():
        sets = [file.stem for file in folder.glob("*.txt")] if folder.is_dir() else []
        fix = nearest(name, sets) if sets else "leave --set out for all images, or see --root"
        raise UserError(f"there is no image set {name!r}", where=str(path), fix=fix)
    text = read_untrusted(path, most=MAX_LIST_BYTES).decode(errors="replace")
    stems = [line.split()[0] for line in text.splitlines() if line.strip()]
    if not stems:
        raise UserError("the image set names no image", where=str(path), fix="choose another --set")
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
        what = f"this is not Pascal VOC XML: its root is <{tree.tag}>, not <annotation>"
        fix = "let `stillbox data convert FOLDER --output OUT` recognise the format"
        raise UserError(what, where=str(file), fix=fix)
    return tree


def annotated(
    tree: ElementTree.Element, where: str, path: Path, label_map: LabelMap
) -> AnnotatedImage:
    """Returns the annotation of the image `path`."""
    objects = tree.findall("object")
    names = object_names(tree)
    class_ids = [label_map.find(name) for name in names]
    sides = [[number(o.findtext(f"bndbox/{side}")) for side in _SIDES] for o in objects]
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


def object_names(tree: ElementTree.Element) -> list[str]:
    """Returns the class of each object."""
    return [(o.findtext("name") or "").strip() for o in tree.findall("object")]


def _flags(objects: Sequence[ElementTree.Element], name: str) -> np.ndarray:
    return np.array([parse_int(o.findtext(name)) != 0 for o in objects], np.bool_)


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
    """Reads XML files; the image of each is that of the same name, or else its `filename`."""
    images = []
    sets = _image_sets(folder)
    for file in files:
        try:
            tree = read_voc_file(file)
        except BadRecordError as error:
            log.bad_record(error.reason, folder.relative(file), error.detail)
            continue
        inside = tree.findtext("filename") or file.stem
        path = folder.image_of_stem(file.stem, file) or folder.image(inside, file, file.parent, log)
        if path is None:
            continue
        split = folder_split(file.relative_to(folder.root))
        for root, members in sets.items():
            if file.is_relative_to(root):
                split = members.get(file.stem)
        item = annotated(tree, folder.relative(file), path, _NO_CLASSES)
        images.append(Labelled(item, object_names(tree), split))
    return FolderContents(images=images)


def _image_sets(folder: DataFolder) -> Mapping[Path, Mapping[str, Split]]:
    """Returns the split of each stem by the root of `ImageSets`; `val` overrides `trainval`."""
    sets: dict[Path, dict[str, Split]] = {}
    lists = [f for f in folder.with_suffix(".txt") if f.parts[-3:-1] == ("ImageSets", "Main")]
    for file in sorted(lists, key=lambda file: file.stem != "trainval"):
        split = word_split(file.stem)
        if split is not None:
            members = sets.setdefault(file.parents[2], {})
            members |= dict.fromkeys((line.split()[0] for line in read_lines(file)), split)
    return sets


register_foreign(
    "labelme_xml",
    "LabelMe XML of polygons",
    xml_files(lambda root, marks: root == "annotation" and _only_polygons(marks)),
    "export boxes, or polygons as LabelMe JSON",
)
