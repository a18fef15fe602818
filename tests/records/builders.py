"""Small images, examples and record files for the tests."""

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer

CAT_DOG = LabelMap.from_names(["cat", "dog"])
HEIGHT, WIDTH = 40, 60
BOX = (4, 6, 24, 36)
"""ymin, xmin, ymax, xmax in pixels of 40 x 60."""
NAMES = ("a", "b", "c")


def image_bytes(
    height: int = 40, width: int = 60, kind: str = "JPEG", mode: str = "RGB", orientation: int = 0
) -> bytes:
    """An image that is dark on its left and bright on its right."""
    ramp = np.tile(np.linspace(0, 255, width, dtype=np.uint8), (height, 1))
    deep = mode == "I;16"
    image = Image.fromarray(ramp * np.uint16(257)) if deep else Image.fromarray(ramp).convert(mode)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"exif": exif} if orientation else {}))
    return buffer.getvalue()


def make_example(
    boxes: Sequence[Sequence[float]] = ((0.1, 0.2, 0.5, 0.6),),
    class_ids: Sequence[int] = (1,),
    **values: object,
) -> Example:
    defaults: dict[str, object] = {
        "image_id": "7",
        "encoded": image_bytes(),
        "filename": "7.jpg",
        "height": 40,
        "width": 60,
        "boxes": np.array(boxes, np.float32).reshape(-1, 4),
        "class_ids": np.array(class_ids, np.int32),
    }
    return Example(**(defaults | values))


def write_records(path: Path, payloads: Sequence[bytes | Example], *, gz: bool = False) -> Path:
    with tfrecord_writer(path) as write:
        for payload in payloads:
            if isinstance(payload, Example):
                payload = serialize_example(payload, CAT_DOG)
            write(payload)
    if gz:
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return path


def read_records(path: Path) -> list[bytes]:
    """Reads the payloads of a sound file without its checksums and without an index."""
    data, payloads = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        payloads.append(data[12 : 12 + length])
        data = data[16 + length :]
    return payloads


# Annotations of the images a, b and c in a folder, as the tool of each format writes them.


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def yolo(folder):
    y, x, v, u = BOX[0] / HEIGHT, BOX[1] / WIDTH, BOX[2] / HEIGHT, BOX[3] / WIDTH
    put(folder, "data.yaml", "path: .\ntrain: ../images\nval:\nnames: [dog, cat]\n")
    put(folder, "labels/a.txt", f"1 {(x + u) / 2} {(y + v) / 2} {u - x} {v - y}\n")
    put(folder, "labels/b.txt", f"1 {x} {y} {u} {y} {u} {v} {x} {v}\n")


def coco(folder):
    boxes = [{"id": n, "image_id": n, "category_id": 7, "bbox": [6, 4, 30, 20]} for n in (1, 2)]
    put(folder, "_annotations.coco.json", {
        "images": [{"id": n, "file_name": f"{name}.png", "height": HEIGHT, "width": WIDTH}
                   for n, name in enumerate(NAMES, 1)],
        "annotations": boxes,
        "categories": [{"id": 0, "name": "animals"}, {"id": 7, "name": "cat"}],
    })  # fmt: skip


def cvat(folder):
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    put(
        folder,
        "annotations.xml",
        f"""<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><labels><label><name>dog</name></label>
<label><name>cat</name></label></labels></task></meta>
<image id="0" name="images/a.png" {size}>
<box label="cat" xtl="6" ytl="4" xbr="36" ybr="24" occluded="0"/></image>
<image id="1" name="b.png" {size}>
<polygon label="cat" points="6,4;36,4;20,24"/><points label="cat" points="1,1"/></image>
<image id="2" name="c.png" {size}/></annotations>""",
    )


def labelme(folder):
    for name, shape in {
        "a": {"label": "cat", "shape_type": "rectangle", "points": [[36, 24], [6, 4]]},
        "b": {"label": "cat", "shape_type": "polygon", "points": [[6, 4], [36, 4], [20, 24]]},
        "c": {"label": "cat", "shape_type": "point", "points": [[6, 4]]},
    }.items():
        put(folder, f"json/{name}.json", {
            "version": "5.0.1", "shapes": [shape], "imagePath": f"..\\images\\{name}.png",
            "imageHeight": HEIGHT, "imageWidth": WIDTH, "imageData": None,
        })  # fmt: skip


def voc_csv(folder):
    rows = [f"{name}.png,{WIDTH},{HEIGHT},cat,6,4,36,24" for name in ("a", "b")]
    header = "filename,width,height,class,xmin,ymin,xmax,ymax"
    put(folder, "labels.csv", "\n".join([header, *rows]) + "\n")


def open_images(folder):
    header = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsTruncated,IsGroupOf"
    rows = [f"{name},xclick,/m/01yrx,1,0.1,0.6,0.1,0.6,1,0" for name in ("a", "b")]
    rows.append("gone,xclick,/m/01yrx,1,0,1,0,1,0,0")
    put(folder, "boxes.csv", "\n".join([header, *rows]) + "\n")
    put(folder, "class-descriptions-boxable.csv", "/m/01yrx,cat\n/m/0bt9lr,dog\n")


def label_studio(folder):
    value = {"x": 10, "y": 10, "width": 50, "height": 50, "rotation": 0, "rectanglelabels": ["cat"]}
    result = {"type": "rectanglelabels", "original_width": WIDTH, "original_height": HEIGHT,
              "value": value}  # fmt: skip
    put(folder, "export.json", [
        {"id": 1, "data": {"image": "/data/upload/1/0a1b2c3d-a.png"},
         "annotations": [{"was_cancelled": True, "result": []}, {"result": [result]}]},
        {"id": 2, "data": {"image": "/data/local-files/?d=images/b.png"},
         "annotations": [{"result": [result]}]},
        {"id": 3, "data": {"image": "/data/upload/1/c.png"}, "annotations": []},
    ])  # fmt: skip


def image_folder(folder):
    lines = [{"file_name": f"{name}.png",
              "objects": {"bbox": [[6, 4, 30, 20]] * n, "categories": ["cat"] * n}}
             for name, n in zip(NAMES, (1, 1, 0), strict=True)]  # fmt: skip
    put(folder, "images/metadata.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
