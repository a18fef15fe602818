"""Pascal VOC XML in folders of any layout, with or without `ImageSets/Main`."""

from collections.abc import Mapping
from pathlib import Path

from stillbox.records.data_folder import DataFolder, Split, folder_split, word_split
from stillbox.records.formats.registry import FolderContents, Labelled, register, register_foreign
from stillbox.records.formats.sniff import xml_outline
from stillbox.records.guarded import read_lines
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError, ConversionLog
from stillbox.records.voc import annotated, object_names, read_voc_file

_NO_CLASSES = LabelMap(())


def _find(folder: DataFolder) -> list[Path]:
    return [file for file in folder.with_suffix(".xml") if folder.memoized(_is_voc, file)]


def _is_voc(file: Path) -> bool:
    return xml_outline(file)[0] == "annotation" and not _only_polygons(file)


def _only_polygons(file: Path) -> bool:
    root, marks = xml_outline(file)
    return root == "annotation" and "polygon" in marks and "bndbox" not in marks


@register("voc", "Pascal VOC XML", _find)
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
    """Returns the split of each stem by the root of `ImageSets/Main/{train,val,test}.txt`.

    `trainval.txt` counts only where there is no `val.txt`.
    """
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
    lambda folder: [f for f in folder.with_suffix(".xml") if folder.memoized(_only_polygons, f)],
    "export boxes, or polygons as LabelMe JSON",
)
