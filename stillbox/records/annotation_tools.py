"""Labels for annotation tools: CVAT for images 1.1, and Label Studio's JSON tasks.

Sources: docs.cvat.ai, "CVAT for image"; labelstud.io, "Label Studio JSON format of annotated tasks"
and "Import pre-annotated data".
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from stillbox.printing import json_text, printable
from stillbox.records.example import Example
from stillbox.records.files import write_whole
from stillbox.records.label_map import LabelMap

_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no spelling for."""


@dataclass(frozen=True)
class LabelledImage:
    """An image that is written with its labels."""

    example: Example
    """Without the bytes of the image."""
    name: PurePosixPath
    """Of its file, once in the folder of images."""
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
    return _NO_XML.sub(lambda one: printable(one[0]), str(value))


def write_cvat(
    output: Path, split: str, label_map: LabelMap, images: Sequence[LabelledImage]
) -> None:
    """Writes `annotations_<split>.xml`; boxes that a model has found have `source="auto"`."""
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    task = ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task")
    labels = ElementTree.SubElement(task, "labels")
    for item in label_map:
        label = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(label, "name").text = xml_text(item.name)
    for number, image in enumerate(images):
        sides = {"width": image.width, "height": image.height}
        about = {"id": number, "name": image.name, "subset": split, **sides}
        one = ElementTree.SubElement(root, "image", _attributes(about))
        source = "manual" if image.scores is None else "auto"
        for class_id, (ymin, xmin, ymax, xmax) in zip(
            image.example.class_ids, image.pixels.tolist(), strict=True
        ):
            corners = {"xtl": xmin, "ytl": ymin, "xbr": xmax, "ybr": ymax}
            label_name = label_map.text_of(int(class_id))
            box = {"label": label_name, "source": source, "occluded": 0, **corners, "z_order": 0}
            ElementTree.SubElement(one, "box", _attributes(box))
    ElementTree.indent(root)
    content = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
    write_whole(output / f"annotations_{split}.xml", content, below=output)


def _attributes(values: dict[str, Any]) -> dict[str, str]:
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
        made: dict[str, Any] = {"result": _results(image, label_map)}
        if image.scores is not None:
            made |= {"model_version": "stillbox", "score": float(image.scores.max(initial=0.0))}
        tasks.append({"data": {"image": address}, kind: [made]})
    content = json_text(tasks, indent=None)
    write_whole(output / f"tasks_{split}.json", content.encode(), below=output)
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", {"name": "image", "value": "$image"})
    labels = ElementTree.SubElement(view, "RectangleLabels", {"name": "label", "toName": "image"})
    for item in label_map:
        ElementTree.SubElement(labels, "Label", {"value": xml_text(item.name)})
    ElementTree.indent(view)
    config = ElementTree.tostring(view, encoding="utf-8") + b"\n"
    write_whole(output / "label_config.xml", config, below=output)


def _results(image: LabelledImage, label_map: LabelMap) -> list[dict[str, Any]]:
    results = []
    boxes = image.example.boxes.astype(np.float64) * 100
    for row, (ymin, xmin, ymax, xmax) in enumerate(boxes.tolist()):
        sides = {"x": xmin, "y": ymin, "width": xmax - xmin, "height": ymax - ymin}
        names = [label_map.text_of(int(image.example.class_ids[row]))]
        one: dict[str, Any] = {
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
            one["score"] = round(float(image.scores[row]), 6)
        results.append(one)
    return results
