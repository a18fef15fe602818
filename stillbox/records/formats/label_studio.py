"""Label Studio's JSON export: tasks with rectangles in per cent of the sides.

Source: labelstud.io, "Label Studio JSON format of annotated tasks".
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stillbox.errors import UserError
from stillbox.records.confined import line_of
from stillbox.records.data_folder import DataFolder, folder_split
from stillbox.records.formats.build import NO_BOX, Box, bounds, labelled, rotated
from stillbox.records.formats.registry import FolderContents, register
from stillbox.records.formats.sniff import json_outline
from stillbox.records.guarded import number, parse_int
from stillbox.records.problems import ConversionLog

# Label Studio puts this before the names of files that it is given.
_PREFIX = re.compile(r"^[0-9a-f]{8}-")
_LABELS = ("rectanglelabels", "polygonlabels", "ellipselabels", "labels")


def _is_export(folder: DataFolder, file: Path) -> bool:
    outline = json_outline(folder, file)
    return (
        outline.is_list
        and "data" in outline.keys
        and bool({"annotations", "completions"} & outline.keys)
    )


@register(
    "label_studio",
    "Label Studio JSON",
    lambda folder: [f for f in folder.with_suffix(".json") if _is_export(folder, f)],
)
def read_label_studio(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads exports; polygons and ellipses become boxes; other tasks are left out."""
    reading = FolderContents()
    for file in files:
        for place, task in enumerate(folder.json(file)):
            where = f"{folder.relative(file)}: task {place}"
            address = _address(task)
            results = _results(task, where, log)
            if results is None or not address:
                log.bad_record("task without an image or an annotation", where)
                continue
            path = _image(folder, address, file, log)
            if path is None:
                continue
            shapes = [shape for shape in results if isinstance(shape, dict) and "value" in shape]
            found = [(_name(shape), _box(shape)) for shape in shapes]
            for name, box in found:
                if box == NO_BOX:
                    log.bad_box("result without a box", where, f"label {name!r}")
            sound = [(name, box) for name, box in found if box != NO_BOX]
            size = max(
                (
                    (parse_int(s.get("original_height")), parse_int(s.get("original_width")))
                    for s in shapes
                ),
                default=(0, 0),
            )
            names, boxes = [name for name, _ in sound], [box for _, box in sound]
            split = folder_split(path.relative_to(folder.root))
            one = labelled(path, where, names, boxes, size=size, split=split, relative=True)
            reading.images.append(one)
    return reading


def _address(task: Any) -> str:  # noqa: ANN401
    """Returns the address of the image, the first text of the task's data."""
    data = task.get("data") if isinstance(task, dict) else None
    values = [data.get("image"), *data.values()] if isinstance(data, dict) else []
    return next((value for value in values if isinstance(value, str)), "")


def _results(task: Any, where: str, log: ConversionLog) -> Sequence[Any] | None:  # noqa: ANN401
    """Returns the results of the first annotation that was not cancelled."""
    if not isinstance(task, dict):
        return None
    made = task.get("annotations") or task.get("completions")
    made = made if isinstance(made, list) else []
    kept = [a for a in made if isinstance(a, dict) and not a.get("was_cancelled")]
    if len(kept) > 1:
        log.add("several annotations of an image", where, action="the first is used")
    results = kept[0].get("result") if kept else None
    return results if isinstance(results, list) else None


def _image(folder: DataFolder, address: str, file: Path, log: ConversionLog) -> Path | None:
    """Returns the image of an address, which is no path of this machine but the server's.

    Raises:
        UserError: the address leads out of the folder.
    """
    parts = urlsplit(address)
    name = parse_qs(parts.query).get("d", [unquote(parts.path)])[0]
    if ".." in Path(name).parts:
        what = f"the image address {address!r} leads out of the folder of the images"
        raise UserError(what, where=line_of(file, address), fix="export the project again")
    last = Path(name).name or "image"
    path = folder.image(last, file, file.parent, log)
    # os.path: a name may be too long for a file.
    if path is not None and not os.path.isfile(path) and _PREFIX.match(last):  # noqa: PTH113
        return folder.image(_PREFIX.sub("", last), file, file.parent, log)
    return path


def _name(shape: dict[str, Any]) -> str:
    value = shape["value"] if isinstance(shape["value"], dict) else {}
    labels: list[Any] = next(
        (value[key] for key in _LABELS if isinstance(value.get(key), list)), []
    )
    return str(labels[0]) if labels else ""


def _box(shape: dict[str, Any]) -> Box:
    """Returns the box of a result in fractions of the sides, `NO_BOX` if it has none."""
    value = shape["value"] if isinstance(shape["value"], dict) else {}
    at = {key: number(inner) for key, inner in value.items()}
    # Angles hold in pixels, where the sides have their true lengths.
    high, wide = (
        parse_int(shape.get("original_height")) or 1,
        parse_int(shape.get("original_width")) or 1,
    )
    if isinstance(value.get("points"), list):
        pairs = [p for p in value["points"] if isinstance(p, list) and len(p) == 2]
        box = bounds([(number(x) / 100 * wide, number(y) / 100 * high) for x, y in pairs])
    elif {"radiusX", "radiusY"} <= at.keys():
        x, y, u, v = (at.get(key, NO_BOX[0]) / 100 for key in ("x", "y", "radiusX", "radiusY"))
        box = ((y - v) * high, (x - u) * wide, (y + v) * high, (x + u) * wide)
    elif {"x", "y", "width", "height"} <= at.keys():
        x, y, w, h = (at[key] / 100 for key in ("x", "y", "width", "height"))
        box = (y * high, x * wide, (y + h) * high, (x + w) * wide)
        box = rotated(box, at["rotation"], centre=False) if at.get("rotation") else box
    else:
        return NO_BOX
    return box[0] / high, box[1] / wide, box[2] / high, box[3] / wide
