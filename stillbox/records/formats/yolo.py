"""YOLO: a text file for each image, with a box or an outline in a line; see `yolo_lines`.

Coordinates are fractions of the sides, from the centre. An outline becomes the box around it. The
classes and splits are in `data.yaml`, `classes.txt`, or Darknet's `*.names` and lists. Source:
docs.ultralytics.com, "Object Detection Datasets Overview".
"""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.box_numbers import BoxNumbers, Layout
from stillbox.records.data_folder import DataFolder
from stillbox.records.file_kinds import other_content
from stillbox.records.foreign_files import (
    Json,
    json_object,
    number,
    read_head,
    read_lines,
    read_yaml,
)
from stillbox.records.formats.registry import FolderContents, Labelled, labelled, register
from stillbox.records.formats.yolo_lines import (
    Columns,
    LabelFile,
    Line,
    check_class_numbers,
    classes_of,
    is_class,
    parse_labels,
    shown_line,
    split_words,
)
from stillbox.records.formats.yolo_splits import SPLIT_KEYS, Splits
from stillbox.records.problems import ConversionLog
from stillbox.textformat.yaml_tree import whole_number
from stillbox.untrusted import open_untrusted, read_untrusted

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt")


def data_yamls(folder: DataFolder) -> dict[Path, Mapping[str, Json]]:
    """Returns the YAML files that describe a data set of YOLO, with their contents."""
    contents = {
        file: folder.memoized(_yaml_of, file) for file in folder.with_suffix(".yaml", ".yml")
    }
    keys = {*SPLIT_KEYS, "nc", "path"}
    return {
        file: content
        for file, content in contents.items()
        if "names" in content and content.keys() & keys
    }


def _yaml_of(file: Path) -> Mapping[str, Json]:
    """Returns the content of a YAML file, nothing if it cannot be read."""
    try:
        return json_object(read_yaml(file))
    except UserError:  # said by `report_unread`
        return {}


def pose_files(folder: DataFolder) -> list[Path]:
    """Returns the `data.yaml` files of data sets of poses."""
    return [file for file, content in data_yamls(folder).items() if "kpt_shape" in content]


def class_names(folder: DataFolder, yamls: Mapping[Path, Mapping[str, Json]]) -> list[str]:
    """Returns the classes in the order of their numbers, none if no file names them.

    `yamls` are the `data_yamls`.

    Raises:
        UserError: several lists differ, or `names` of `data.yaml` has gaps or is no list.
    """
    lists = {file: _yaml_names(file, content["names"]) for file, content in yamls.items()}
    named = [f for f in folder.files if f.name in _NAME_FILES or f.suffix == ".names"]
    folder.used.update(named)
    if not lists:
        lists = {file: _listed_names(file) for file in named}
    different = {tuple(names) for names in lists.values() if names}
    if len(different) > 1:
        shown = ", ".join(folder.relative(file) for file in lists)
        fix = "keep the one that belongs to the label files"
        raise UserError(f"the lists of classes differ: {shown}", where=str(folder.shown), fix=fix)
    return list(different.pop()) if different else []


def _listed_names(file: Path) -> list[str]:
    head = read_head(file)
    if head.strip() and (reason := other_content(head)):
        raise UserError(f"this is no list of classes: {reason}", where=str(file), fix="mend it")
    return read_lines(file)


def _yaml_names(file: Path, names: Json) -> list[str]:
    if isinstance(names, dict):
        numbers = [whole_number(key) for key in names]
        if {*numbers} != {*range(len(names))}:
            problem = "the numbers of the classes have gaps"
            raise UserError(problem, where=f"{file}: names", fix="use 0, 1, ...")
        by_number = dict(zip(numbers, names.values(), strict=True))
        return [str(by_number[n]) for n in range(len(names))]
    if not isinstance(names, list):
        raise UserError("the classes are no list", where=f"{file}: names", fix="names: [cat, dog]")
    return [str(name) for name in names]


# The labels of one image; these are some hundred thousand boxes.
_MOST_LABEL_BYTES = 2**24
_LINE = re.compile(rb"\s*\d+(\s+-?\d+(\.\d*)?([eE][+-]?\d+)?|\s+-?\.\d+){4,}\s*$")
_KITTI = re.compile(rb"\s*[A-Za-z_]+(\s+-?\d+(\.\d+)?){14,15}\s*$")
_MOST_UNNAMED = 1000
"""Classes without a file of names."""


def _find(folder: DataFolder) -> list[Path]:
    """Returns `data.yaml` files and label files, none if the YAML is of poses."""
    if pose_files(folder):
        return []
    labels = [file for file in folder.with_suffix(".txt") if _is_labels(folder, file)]
    return [*data_yamls(folder), *labels]


def kitti_files(folder: DataFolder) -> list[Path]:
    """Returns the label files of KITTI."""
    texts = folder.with_suffix(".txt")
    return [file for file in texts if _KITTI.match(_first_line(text_head(folder, file)))]


_HEAD_BYTES = 4096


def text_head(folder: DataFolder, file: Path) -> bytes:
    """Returns the first 4 KiB of a text file, read once for all formats."""
    return folder.memoized(_text_head, file)


def _text_head(file: Path) -> bytes:
    with open_untrusted(file, most=None, where=str(file)) as content:
        return content.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n\t ")


def _is_labels(folder: DataFolder, file: Path) -> bool:
    """Tells whether a file has YOLO's lines, or nearly so and the name of an image."""
    first = _first_line(text_head(folder, file))
    if _LINE.match(first):
        return True
    if not folder.images_of_stem(file.stem):
        return False
    values = [number(word) for word in split_words(first.decode(errors="replace"))]
    return len(values) >= 5 and all(map(isfinite, values)) and is_class(values[0])


def _first_line(head: bytes) -> bytes:
    return head.partition(b"\n")[0].rstrip()


@register("yolo", "YOLO", _find)
def read(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads label files; an image without one is background, one with rubbish is left out.

    Raises:
        UserError: there are several lists of classes that differ, a list names a file outside, a
            split is not there, or the columns of the lines mean nothing.
    """
    yamls = {file: content for file, content in data_yamls(folder).items() if file in files}
    names = class_names(folder, yamls)
    splits = Splits(folder, yamls, files, log)
    columns = Columns()
    parsed = _label_files(folder, {*files} - {*yamls}, columns, log)
    meanings = columns.meanings()
    for phrase in sorted({*meanings.values()} - {"", "outline"}):
        log.add(phrase, folder.relative(files[0]), action="passed over")
    used = classes_of(file for _, file in parsed.values() if file)
    check_class_numbers(used, names)
    labels = names or _numbered(used, log)
    images = []
    for path, (where, content) in parsed.items():
        if content is not None:
            entry = _labelled(path, where, content, meanings, labels, log)
            images.append(entry._replace(split=splits.of(path)))
    images += _background(folder, {*parsed}, splits, log)
    layout: Layout | None = None if "outline" in meanings.values() else "centre_size"
    return FolderContents(
        images=sorted(images, key=lambda entry: entry.image.path),
        classes=labels,
        numbers=BoxNumbers("fractions", layout),
    )


_Parsed = dict[Path, tuple[str, LabelFile | None]]
"""Name and content of the label file by image; None if the image is left out."""


def _label_files(
    folder: DataFolder, known: set[Path], columns: Columns, log: ConversionLog
) -> _Parsed:
    """Reads the label files, and every text file beside them or with the name of an image."""
    parsed: _Parsed = {}
    beside = {file.parent for file in known}
    texts = [f for f in folder.with_suffix(".txt") if f not in folder.used]
    texts = [f for f in texts if f.parent in beside or folder.images_of_stem(f.stem)]
    for file in sorted(texts, key=lambda file: file not in known):
        path = folder.image_of_stem(file.stem, file)
        where = folder.relative(file)
        if path is None:
            if file in known:
                log.bad_record("label file without an image", where)
        elif path not in parsed:
            folder.used.add(file)
            parsed[path] = where, _content(file, where, columns, log)
        elif file in known:
            problem = "another label file of an image"
            log.bad_record(problem, where, f"beside {parsed[path][0]}")
            parsed[path] = parsed[path][0], None
    return parsed


def _content(file: Path, where: str, columns: Columns, log: ConversionLog) -> LabelFile | None:
    """Returns the lines of a label file; None, and a bad record, if none can be a box."""
    data = read_untrusted(file, most=_MOST_LABEL_BYTES)
    try:
        content = parse_labels(data, columns)
    except UnicodeDecodeError:
        log.bad_record("label file is not YOLO", where, "it is no UTF-8 text")
        return None
    if content.bad and not content.lines:
        place, text = content.bad[0]
        reason = other_content(data) or shown_line(text)
        log.bad_record("label file is not YOLO", f"{where}:{place}", reason)
        return None
    for place, text in content.bad:
        log.bad_box("line is neither a box nor an outline", f"{where}:{place}", shown_line(text))
    return content


def _labelled(
    path: Path,
    where: str,
    content: LabelFile,
    meanings: Mapping[int, str],
    names: Sequence[str],
    log: ConversionLog,
) -> Labelled:
    """Returns the boxes of a label file."""
    usable: list[Line] = []
    for line in content.lines:
        if line.columns in meanings:
            usable.append(line)
        else:
            count = count_text(line.columns, "value")
            reason = "line is neither a box nor an outline"
            log.bad_box(reason, f"{where}:{line.number}", count)
    labels = [
        names[index] if (index := line.class_index) < len(names) else f"class_{index}"
        for line in usable
    ]
    boxes = [line.outline if meanings[line.columns] == "outline" else line.box for line in usable]
    return labelled(path, where, labels, boxes, relative=True)


def _background(
    folder: DataFolder, labelled_images: set[Path], splits: Splits, log: ConversionLog
) -> list[Labelled]:
    """Returns the images without a label file, except those with the name of a labelled one."""
    roots = {path.parent for path in labelled_images}
    stems = {path.with_suffix("") for path in labelled_images}
    unlabelled = []
    for path in folder.images:
        if path in labelled_images or not (path.parent in roots or splits.stated(path)):
            continue
        where = folder.relative(path)
        if path.with_suffix("") in stems:
            log.bad_record("image with the name of another image that has labels", where)
            continue
        log.add("image without a label file", where, action="background")
        unlabelled.append(labelled(path, where, [], [], split=splits.of(path), relative=True))
    return unlabelled


def _numbered(used: Mapping[int, int], log: ConversionLog) -> list[str]:
    """Returns `class_0`, `class_1`, ... up to the greatest number that occurs."""
    greatest = max((n for n in used if n < _MOST_UNNAMED), default=-1)
    log.add("no file names the classes", "data.yaml", action="named class_0, class_1, ...")
    return [f"class_{n}" for n in range(greatest + 1)]
