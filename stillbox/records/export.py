"""Records back to annotation formats, with their images, which keep their bytes.

YOLO, COCO JSON and Pascal VOC are for training elsewhere; CVAT for images 1.1 and Label Studio's
JSON tasks are for annotation tools.

Sources: docs.cvat.ai, "CVAT for image"; labelstud.io, "Label Studio JSON format of annotated
tasks" and "Import pre-annotated data".
"""

import hashlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import numpy as np
import yaml
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.printing import json_text, printable
from stillbox.records.example import Example
from stillbox.records.files import make_folder, partial_folder, refuse_links, write_whole
from stillbox.records.image_files import MAX_IMAGE_BYTES, inspect_image
from stillbox.records.label_map import MAX_LABEL_MAP_BYTES, LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted

_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no spelling for."""


@dataclass(frozen=True)
class LabelledImage:
    """An image that is written with its labels."""

    example: Example
    """Without the bytes of the image."""
    name: PurePosixPath
    """The name of its file, which no other image has."""
    height: int
    width: int
    scores: NDArray[np.float64] | None = None
    """`[N]`, of boxes that a model has found; None: the labels are true."""

    @property
    def pixels(self) -> NDArray[np.float64]:
        """Boxes `[N, 4]`, ymin, xmin, ymax, xmax in pixels."""
        sides = np.array([self.height, self.width] * 2, np.float64)
        return self.example.boxes.astype(np.float64) * sides


def xml_text(value: object) -> str:
    """Returns a value as text that XML 1.0 can hold."""
    return _NO_XML.sub(lambda match: printable(match[0]), str(value))


def write_cvat(
    output: Path, split: str, label_map: LabelMap, images: Sequence[LabelledImage]
) -> None:
    """Writes `annotations_<split>.xml`; boxes that a model has found have `source="auto"`."""
    root = ElementTree.Element("annotations")
    _texts(root, version="1.1")
    task = ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task")
    labels = ElementTree.SubElement(task, "labels")
    for item in label_map:
        _texts(ElementTree.SubElement(labels, "label"), name=item.name)
    for number, image in enumerate(images):
        sides = {"width": image.width, "height": image.height}
        about = {"id": number, "name": image.name, "subset": split, **sides}
        element = ElementTree.SubElement(root, "image", _attributes(about))
        source = "manual" if image.scores is None else "auto"
        for class_id, (ymin, xmin, ymax, xmax) in zip(
            image.example.class_ids, image.pixels.tolist(), strict=True
        ):
            corners = {"xtl": xmin, "ytl": ymin, "xbr": xmax, "ybr": ymax}
            label_name = label_map.text_of(int(class_id))
            box = {"label": label_name, "source": source, "occluded": 0, **corners, "z_order": 0}
            ElementTree.SubElement(element, "box", _attributes(box))
    ElementTree.indent(root)
    content = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
    write_whole(output / f"annotations_{split}.xml", content, below=output)


def _attributes(values: dict[str, object]) -> dict[str, str]:
    return {name: xml_text(value) for name, value in values.items()}


def write_label_studio(
    output: Path, split: str, label_map: LabelMap, images: Sequence[LabelledImage]
) -> None:
    """Writes `tasks_<split>.json`, and `label_config.xml`, the labelling interface of its project.

    Images are addressed below `LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT`, which is the output folder.
    Boxes that a model has found are predictions, others annotations.
    """
    tasks = []
    for image in images:
        address = f"/data/local-files/?d={quote(f'images/{split}/{image.name}')}"
        kind = "annotations" if image.scores is None else "predictions"
        made: dict[str, object] = {"result": _results(image, label_map)}
        if image.scores is not None:
            made |= {"model_version": "stillbox", "score": float(image.scores.max(initial=0.0))}
        tasks.append({"data": {"image": address}, kind: [made]})
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", {"name": "image", "value": "$image"})
    labels = ElementTree.SubElement(view, "RectangleLabels", {"name": "label", "toName": "image"})
    for item in label_map:
        ElementTree.SubElement(labels, "Label", {"value": xml_text(item.name)})
    ElementTree.indent(view)
    config = ElementTree.tostring(view, encoding="utf-8") + b"\n"
    _write_shared(output / "label_config.xml", config, config)
    content = json_text(tasks, indent=None)
    write_whole(output / f"tasks_{split}.json", content.encode(), below=output)


def _write_shared(path: Path, content: bytes, before: bytes) -> None:
    """Writes a file that all splits share, which is `before` if there are others."""
    if path.exists() and read_untrusted(path, most=MAX_LABEL_MAP_BYTES) != before:
        fix = "give the label map of the other splits, or another folder"
        problem = "the other splits have other classes, or somebody else wrote this file"
        raise UserError(problem, where=str(path), fix=fix)
    write_whole(path, content, below=path.parent)


def _results(image: LabelledImage, label_map: LabelMap) -> list[dict[str, object]]:
    results = []
    boxes = image.example.boxes.astype(np.float64) * 100
    for row, (ymin, xmin, ymax, xmax) in enumerate(boxes.tolist()):
        sides = {"x": xmin, "y": ymin, "width": xmax - xmin, "height": ymax - ymin}
        names = [label_map.text_of(int(image.example.class_ids[row]))]
        box: dict[str, object] = {
            "id": f"box{row}",
            "type": "rectanglelabels",
            "from_name": "label",
            "to_name": "image",
            "original_width": image.width,
            "original_height": image.height,
            "image_rotation": 0,
            "value": {**sides, "rotation": 0, "rectanglelabels": names},
        }
        if image.scores is not None:
            box["score"] = round(float(image.scores[row]), 6)
        results.append(box)
    return results


_LONGEST_NAME = 200
"""Bytes of a name: file systems allow 255, of which suffix and number need some."""


@dataclass
class Exported:
    """The numbers of an export."""

    images: int = 0
    boxes: int = 0
    problems: list[str] = field(default_factory=list)
    """A line for each kind of problem of the records."""


def export_records(
    records: Sequence[str],
    label_map: LabelMap,
    output: str | Path,
    form: str,
    *,
    split: str = "train",
    use_display_name: bool = False,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Writes records, given as files and patterns, as images and annotations of one of `FORMS`.

    The folder `output` is new, empty, or has other splits of the same export. `use_display_name`
    matches class texts against display names. `on_image` gets the numbers of images done and in
    all.

    Raises:
        UserError: the output folder has the split already, or other classes, or no box has a class
            of the label map.
    """
    output = Path(output)
    if not split or split[0] == "." or set(split) & set("/\\\0"):
        raise UserError(
            f"{split!r} is not the name of a split", where=Parameter("split"), fix="as train"
        )
    source = ExampleSource(
        records, label_map, use_display_name=use_display_name, bad_records="drop"
    )
    result = Exported()
    final = output / FORMS[form].images.format(split=split)
    with _folder(final, output) as folder:
        annotations = output / FORMS[form].annotations.format(split=split)
        if annotations.exists() and not annotations.is_symlink():  # the writer deals with links
            fix = f"give another {Parameter('split')}, or empty the folder"
            raise UserError("there is such a split", where=str(annotations), fix=fix)
        images = _written(source, folder, _taken(output, FORMS[form]), result, on_image)
        if not result.boxes:
            source.refuse_unknown_classes(
                f"see {Parameter('label_map')} and {Parameter('use_display_name')}"
            )
        for image in images:
            if (final / image.name).exists():
                where = str(final / image.name)
                raise UserError("there is such an image", where=where, fix="empty the folder")
        FORMS[form].write(output, split, label_map, images)
    result.problems = source.problems.lines()
    return result


def export_images(
    images: Sequence[tuple[Path | bytes, LabelledImage]],
    label_map: LabelMap,
    output: Path,
    form: str,
    *,
    split: str = "train",
) -> None:
    """Writes images, as files or bytes, and their labels, each with a unique name.

    They are written as `export_records` writes them.

    Raises:
        UserError: an image cannot be read, or the folder is not writable.
    """
    with _folder(output / FORMS[form].images.format(split=split), output) as folder:
        for source, image in images:
            if isinstance(source, Path):
                source = read_untrusted(source, most=MAX_IMAGE_BYTES)
            write_whole(folder / image.name, source)
        FORMS[form].write(output, split, label_map, [image for _, image in images])


@contextmanager
def _folder(final: Path, output: Path) -> Iterator[Path]:
    """Yields a folder; its files move to `final`, inside `output`, unless an error occurs."""
    refuse_links(final, below=output)
    with partial_folder(final) as partial:
        yield partial
        for file in [f for f in partial.rglob("*") if f.is_file()]:
            target = final / file.relative_to(partial)
            make_folder(target.parent, below=output)
            file.replace(target)


def _taken(output: Path, form: "_Form") -> set[str]:
    """Returns the keys of the images of other splits that are annotated in the same folder."""
    folder = output / form.shared
    files = folder.rglob("*.xml") if form.shared else ()
    return {_key(PurePosixPath(file.relative_to(folder))) for file in files}


def _written(
    source: ExampleSource,
    folder: Path,
    taken: set[str],
    result: Exported,
    on_image: Callable[[int, int], None],
) -> list[LabelledImage]:
    images = []
    for index in range(len(source)):
        on_image(index + 1, len(source))
        example = source.example(index)
        if example is None:
            continue
        try:
            info = inspect_image(example.encoded, whole=False)
        except BadRecordError as error:
            source.reject(index, error.reason, error.detail)
            continue
        name = file_name(example, taken)
        write_whole(folder / name, example.encoded)
        bare = replace(example, encoded=b"")
        images.append(LabelledImage(bare, name, info.height, info.width))
        result.images += 1
        result.boxes += len(example.boxes)
    return images


def file_name(example: Example, taken: set[str]) -> PurePosixPath:
    """Returns a unique, short, printable name with the suffix of the bytes."""
    suffixes = (".png",) if example.encoded.startswith(b"\x89PNG") else (".jpg", ".jpeg")
    given = PurePosixPath((example.filename or example.image_id).replace("\\", "/"))
    parts = [_plain(part) for part in given.parts if part not in ("/", "..", ".")]
    plain = PurePosixPath(*[part.lstrip(".") or "image" for part in parts or ["image"]])
    if plain.suffix.lower() not in suffixes:
        plain = plain.with_name(plain.name + suffixes[0])
    if _key(plain) in taken:
        digest = hashlib.sha256(f"{example.image_id}{len(taken)}".encode()).hexdigest()[:8]
        plain = plain.with_name(f"{plain.stem}-{digest}{plain.suffix}")
    taken.add(_key(plain))
    return plain


def _plain(part: str) -> str:
    seen = "".join(character if character.isprintable() else "_" for character in part)
    return seen.encode()[:_LONGEST_NAME].decode(errors="ignore")


def _key(name: PurePosixPath) -> str:
    """Returns the part of a name that must be unique: label files share it."""
    return str(name.with_suffix("")).casefold()


def _write_yolo(
    output: Path, split: str, label_map: LabelMap, images: Sequence[LabelledImage]
) -> None:
    """Writes `labels/<split>` and `data.yaml`. Boxes are float64: they read back bit for bit."""
    numbers = {item.id: number for number, item in enumerate(label_map)}
    names = {"names": {numbers[item.id]: item.name for item in label_map}}
    # Without `path`, Ultralytics looks beside this file; "." would be the folder that it runs in.
    splits = {place.name: f"images/{place.name}" for place in sorted(output.glob("labels/*"))}
    content = _yaml({**dict(sorted({**splits, split: f"images/{split}"}.items())), **names})
    _write_shared(output / "data.yaml", content, _yaml({**splits, **names}))
    for image in images:
        example = image.example
        boxes = example.boxes.astype(np.float64)
        centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        lines = [
            f"{numbers[int(class_id)]} {x!r} {y!r} {width!r} {height!r}\n"
            for class_id, (y, x), (height, width) in zip(
                example.class_ids, centres.tolist(), sides.tolist(), strict=True
            )
        ]
        path = output / "labels" / split / image.name.with_suffix(".txt")
        write_whole(path, "".join(lines).encode(), below=output)


def _yaml(content: Mapping[str, object]) -> bytes:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()


def _write_coco(
    output: Path, split: str, label_map: LabelMap, images: Sequence[LabelledImage]
) -> None:
    """Writes `annotations/instances_<split>.json`; image ids stay if all are numbers.

    Otherwise `source_id` names the record, so that the file can be its ground truth.
    """
    ids = [image.example.image_id for image in images]
    numeric = len(set(ids)) == len(ids) and all(i.isdecimal() and len(i) < 19 for i in ids)
    annotations: list[dict[str, object]] = []
    entries: list[dict[str, object]] = []
    for number, image in enumerate(images, start=1):
        image_id = int(image.example.image_id) if numeric else number
        size = {"height": image.height, "width": image.width}
        source = {} if numeric else {"source_id": image.example.image_id}
        entries.append({"id": image_id, "file_name": str(image.name), **size, **source})
        for row, (ymin, xmin, ymax, xmax) in enumerate(image.pixels.tolist()):
            area = float(image.example.area[row])
            annotations.append({
                "id": len(annotations) + 1,
                "image_id": image_id,
                "category_id": int(image.example.class_ids[row]),
                "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                "area": area if np.isfinite(area) else (ymax - ymin) * (xmax - xmin),
                "iscrowd": int(image.example.is_crowd[row]),
            })  # fmt: skip
    categories = [{"id": item.id, "name": item.name} for item in label_map]
    content = {"images": entries, "annotations": annotations, "categories": categories}
    path = output / "annotations" / f"instances_{split}.json"
    write_whole(path, json_text(content, indent=None).encode(), below=output)


def _write_voc(
    output: Path, split: str, label_map: LabelMap, images: Sequence[LabelledImage]
) -> None:
    """Writes `Annotations` and `ImageSets/Main/<split>.txt`."""
    for image in images:
        root = ElementTree.Element("annotation")
        _texts(root, folder="JPEGImages", filename=str(image.name))
        size = ElementTree.SubElement(root, "size")
        _texts(size, width=image.width, height=image.height, depth=3)
        for row, (ymin, xmin, ymax, xmax) in enumerate(image.pixels.tolist()):
            element = ElementTree.SubElement(root, "object")
            example = image.example
            _texts(
                element,
                name=label_map.text_of(int(example.class_ids[row])),
                truncated=int(example.truncated[row]),
                difficult=int(example.difficult[row]),
            )
            sides = {"xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}
            box = ElementTree.SubElement(element, "bndbox")
            _texts(box, **{side: _short(value) for side, value in sides.items()})
        ElementTree.indent(root)
        path = output / "Annotations" / image.name.with_suffix(".xml")
        write_whole(path, ElementTree.tostring(root, encoding="utf-8") + b"\n", below=output)
    stems = "".join(f"{image.name.with_suffix('')}\n" for image in images)
    path = output / "ImageSets" / "Main" / f"{split}.txt"
    write_whole(path, stems.encode(), below=output)


def _texts(parent: ElementTree.Element, **values: object) -> None:
    for name, value in values.items():
        ElementTree.SubElement(parent, name).text = xml_text(value)


def _short(value: float) -> str:
    """Returns a coordinate to a ten-thousandth of a pixel; whole ones without a point."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class _Form:
    """A format to export to."""

    write: Callable[[Path, str, LabelMap, Sequence[LabelledImage]], None]
    images: str
    """Folder of the images of a split."""
    annotations: str
    """File or folder of the annotations of a split."""
    shared: str = ""
    """Folder of the annotations of all splits, with a file by the name of each image."""


FORMS = {
    "yolo": _Form(_write_yolo, "images/{split}", "labels/{split}"),
    "coco": _Form(_write_coco, "{split}", "annotations/instances_{split}.json"),
    "voc": _Form(_write_voc, "JPEGImages", "ImageSets/Main/{split}.txt", shared="Annotations"),
    "cvat": _Form(write_cvat, "images/{split}", "annotations_{split}.xml"),
    "label_studio": _Form(write_label_studio, "images/{split}", "tasks_{split}.json"),
}
