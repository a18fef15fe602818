"""COCO JSON (instances) to annotated images. Category ids stay what they are.

Source: cocodataset.org, "Data format". A box there is [x, y, width, height] in pixels.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.errors import UserError
from stillbox.records.annotated import AnnotatedImage
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.records.problems import Verdicts


def read_coco(
    annotations: str | Path,
    images: str | Path,
    verdicts: Verdicts,
    *,
    label_map: LabelMap | None = None,
    renumber: bool = False,
) -> tuple[list[AnnotatedImage], LabelMap]:
    """Reads a COCO file of object instances.

    Images without annotations are kept: they are background. The image files are not opened here.

    Args:
        annotations: the JSON file.
        images: the folder that its `file_name`s are relative to.
        verdicts: policies; takes note of what is wrong.
        label_map: match category names against it and use its ids in place of the category ids.
        renumber: give the categories the ids 1, 2, ... in the order of theirs.

    Returns:
        The images in the order of the file, and the label map.

    Raises:
        UserError: the file is no such JSON, its categories make no label map, or a policy says
            `fail`.
    """
    path = Path(annotations)
    if not Path(images).is_dir():
        raise UserError("there is no such folder of images", where=str(images), fix="see --images")
    content = _load(path)
    class_ids, names, label_map = _classes(content, path, verdicts, label_map, renumber)
    entries = _images(content, path, verdicts)
    grouped = _annotations(content, path, verdicts, entries)
    items = []
    for image_id, entry in entries.items():
        reader = _Objects(grouped.get(image_id, ()), class_ids, names)
        filename = str(entry["file_name"])
        items.append(
            AnnotatedImage(
                path=Path(images) / filename,
                where=f"{path.name}: image {image_id} ({filename})",
                image_id=str(image_id),
                filename=filename,
                height=_size(entry.get("height")),
                width=_size(entry.get("width")),
                pixel_boxes=reader.boxes(),
                class_ids=reader.class_ids(),
                unknown=reader.unknown,
                is_crowd=np.array([bool(a.get("iscrowd")) for a in reader.objects], np.bool_),
                difficult=np.zeros(len(reader.objects), np.bool_),
                truncated=np.zeros(len(reader.objects), np.bool_),
                area=np.array([_number(a.get("area")) for a in reader.objects], np.float32),
            )
        )
    return items, label_map


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            "there is no such annotation file", where=str(path), fix="see --annotations"
        ) from error
    except ValueError as error:
        raise UserError(
            f"this is not JSON: {error}", where=str(path), fix="see --annotations"
        ) from error
    lists = ("images", "annotations", "categories")
    wrong = [
        key
        for key in lists
        if not isinstance(content, dict) or not isinstance(content.get(key), list)
    ]
    if wrong:
        raise UserError(
            f"this is no COCO file of instances: it has no list of {' and of '.join(wrong)}",
            where=str(path),
            fix="give a file such as instances_train2017.json",
        )
    return dict(content)


def _classes(
    content: Mapping[str, Any],
    path: Path,
    verdicts: Verdicts,
    label_map: LabelMap | None,
    renumber: bool,
) -> tuple[dict[int, int], dict[int, str], LabelMap]:
    """Returns class id by category id, category name by category id, and the label map."""
    names: dict[int, str] = {}
    for category in content["categories"]:
        try:
            category_id, name = int(category["id"]), str(category["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"a category has no usable id and name: {category!r}"[:200], where=str(path)
            ) from error
        if category_id in names:
            raise UserError(
                f"category id {category_id} belongs to {names[category_id]!r} and to {name!r}",
                where=str(path),
                fix="give every category an id of its own",
            )
        names[category_id] = name
    if label_map is not None:
        found = {c: label_map.id_of(name) for c, name in names.items()}
        found = {c: i or label_map.id_of(names[c], use_display_name=True) for c, i in found.items()}
        return {c: i for c, i in found.items() if i}, names, label_map
    ordered = sorted(names)
    used = {a.get("category_id") for a in content["annotations"] if isinstance(a, dict)}
    if not renumber and ordered and ordered[0] < 1:
        if used & {category for category in ordered if category < 1}:
            raise UserError(
                f"category {names[ordered[0]]!r} has id {ordered[0]}, which stands for background",
                where=str(path),
                fix="add --renumber for ids 1, 2, ..., or give your own ids with --label-map",
            )
        for category in [category for category in ordered if category < 1]:
            verdicts.problems.add(
                "category with an id below 1",
                path.name,
                repr(names[category]),
                action="left out: no box is of it",
            )
            ordered.remove(category)
    ids = {c: (index if renumber else c) for index, c in enumerate(ordered, start=1)}
    if not ids:
        raise UserError("the file names no category", where=str(path), fix="fill its `categories`")
    items = tuple(LabelMapItem(class_id, names[c]) for c, class_id in ids.items())
    return ids, names, LabelMap(items, str(path))


def _images(
    content: Mapping[str, Any], path: Path, verdicts: Verdicts
) -> dict[int | str, dict[str, Any]]:
    entries: dict[int | str, dict[str, Any]] = {}
    for number, entry in enumerate(content["images"]):
        where = f"{path.name}: images[{number}]"
        if not isinstance(entry, dict) or "id" not in entry or not entry.get("file_name"):
            verdicts.bad_record("image entry without id or file name", where)
        elif entry["id"] in entries:
            verdicts.bad_record("image id occurs twice", where, f"id {entry['id']}")
        else:
            entries[entry["id"]] = entry
    return entries


def _annotations(
    content: Mapping[str, Any], path: Path, verdicts: Verdicts, images: Iterable[int | str]
) -> dict[int | str, list[dict[str, Any]]]:
    """Returns the usable annotations by image id."""
    grouped: dict[int | str, list[dict[str, Any]]] = {image_id: [] for image_id in images}
    seen: dict[int, dict[str, Any]] = {}
    for number, entry in enumerate(content["annotations"]):
        where = f"{path.name}: annotations[{number}]"
        if not isinstance(entry, dict):
            verdicts.bad_box("annotation is no object", where)
            continue
        image_id = entry.get("image_id")
        if image_id not in grouped:
            verdicts.bad_box("annotation of an unknown image", where, f"image_id {image_id}")
            continue
        former = seen.setdefault(entry.get("id", -1 - number), entry)
        if former is not entry:
            same = all(former.get(k) == entry.get(k) for k in ("image_id", "category_id", "bbox"))
            outcome = "box dropped" if same else "box kept: it is another one"
            said = f"id {entry.get('id')}"
            verdicts.bad_box("annotation id occurs twice", where, said, action=outcome)
            if same:
                continue
        grouped[image_id].append(entry)
    return grouped


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _size(value: object) -> int:
    return int(value) if isinstance(value, int | float) and value == value else 0


class _Objects:
    """The annotations of one image as columns."""

    def __init__(
        self,
        objects: Iterable[Mapping[str, Any]],
        ids: Mapping[int, int],
        names: Mapping[int, str],
    ) -> None:
        self.objects, self.ids, self.names = list(objects), ids, names
        self.unknown: dict[int, str] = {}

    def boxes(self) -> np.ndarray:
        """Returns `[N, 4]`, ymin, xmin, ymax, xmax in pixels; NaN where there is no such box."""
        boxes = np.full((len(self.objects), 4), np.nan)
        for row, entry in enumerate(self.objects):
            stored = entry.get("bbox")
            if isinstance(stored, list) and len(stored) == 4:
                x, y, width, height = map(_number, stored)
                boxes[row] = y, x, y + height, x + width
        return boxes

    def class_ids(self) -> np.ndarray:
        """Returns `[N]`; fills `unknown` where it is 0."""
        class_ids = np.zeros(len(self.objects), np.int32)
        for row, entry in enumerate(self.objects):
            category = entry.get("category_id")
            class_ids[row] = self.ids.get(category, 0) if isinstance(category, int) else 0
            if not class_ids[row]:
                name = self.names.get(category) if isinstance(category, int) else None
                self.unknown[row] = repr(name) if name else f"category id {category}"
        return class_ids
