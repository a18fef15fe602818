"""Files that once ended in a traceback, took seconds, or asked for gigabytes: (reader, file)."""

import json
import struct

from tools.fuzz.graphs import tfjs_seeds
from tools.fuzz.readers import _COCO, _LABEL_STUDIO, _LABELME, _PICKLES, _VOC_CSV


def _coco(**changes):
    return json.dumps(_COCO | changes).encode()


def _npy(header):
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _tfjs(shape):
    """A graph model; its first kernel has no values."""
    document = json.loads(tfjs_seeds(None)[0])
    document["weightsManifest"][0]["weights"][0]["shape"] = shape
    return json.dumps(document).encode()


_SQUARES = b"(K\1K\2tq\0" + b"0h\0h\0\x86q\0" * 60  # a tuple with 2^60 parts
_CATEGORY, _IMAGE, _BOX = (dict(_COCO[k][0]) for k in ("categories", "images", "annotations"))

FAILURES = [
    # A class id, a size and a number that no array holds.
    ("label_map", b"item { id: 99999999999 name: 'dog' }"),
    ("coco", _coco(categories=[_CATEGORY | {"id": 99999999999}],
        annotations=[_BOX | {"category_id": 99999999999}])),
    ("coco", _coco(categories=[_CATEGORY | {"id": float("inf")}])),
    ("coco", _coco(images=[_IMAGE | {"height": float("inf"), "width": 10**30}])),
    ("coco", _coco(annotations=[_BOX | {"bbox": [10**400, 1, 2, 3], "area": 10**400}])),
    # Lists and objects where an id or a name should be.
    ("coco", _coco(images=[_IMAGE | {"id": [1]}])),
    ("coco", _coco(annotations=[_BOX | {"image_id": {}}])),
    ("coco", _coco(annotations=[_BOX | {"id": [], "category_id": []}])),
    ("coco_ground_truth", _coco(images=[7])),
    ("coco_ground_truth", _coco(images=[{"id": 1}])),
    ("coco_ground_truth", _coco(annotations=[_BOX | {"bbox": [1, 2]}])),
    ("coco_results", b'[{"image_id": [], "category_id": 1, "bbox": 3, "score": null}]'),
    ("coco_results", b"[7]"),
    ("checkpoint", b'{"format": 1, "step": 3}'),
    ("checkpoint", b'{"format": 1, "step": 1e999}'),
    ("folder_label_studio", b'[{"data": {}, "annotations": 50}]'),
    ("folder_labelme", b'{"imagePath": "a.jpg", "shapes": [{"label": "a", "shape_type": "circle", '
        b'"points": [[1e300, 1], [1, 1e300]]}]}'),
    ("folder_label_studio",
        json.dumps(_LABEL_STUDIO).replace('"rotation": 30', '"rotation": 1e999').encode()),
    ("folder_voc_csv", _VOC_CSV.replace(b"\n", b"\x0c", 1)),
    # Names that no file can have.
    ("folder_labelme", json.dumps(_LABELME | {"imagePath": "\ud800"}).replace("dog", "\\ud800")
        .encode()),
    ("folder_label_studio", json.dumps(_LABEL_STUDIO).replace("/1/", "/1/" + 200 * "é").encode()),
    ("coco", _coco(images=[_IMAGE | {"file_name": "a\0.jpg"}])),
    ("coco", _coco(images=[_IMAGE | {"file_name": "\ud800.jpg"}])),
    ("coco", _coco(categories=[_CATEGORY | {"name": "\ud800"}])),
    ("voc_image_set", b"\xff" * 300),
    ("folder_yolo", b"0 0.5 0.5 0.2 0.3\n" + b"1 " * 300),
    # Comments that do not end, each of which was sought to the end of the file.
    ("folder_voc", b"<!--" * 16_000),
    ("voc", b"<?xml version='1.0' encoding='none'?><annotation/>"),
    # Nested too deeply.
    ("coco", b"[" * 100_000),
    ("coco_ground_truth", b"[" * 100_000),
    ("npy", _npy("-" * 5000 + "1")),
    # Arrays that are not there.
    ("npy", _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}")),
    # Hash and text of a tuple that holds another one twice, 60 times.
    ("pth_pickle", b"\x80\x02}" + _SQUARES + b"K\1s."),
    ("pth_pickle", b"\x80\x02ccollections\nOrderedDict\n](" + _SQUARES + b"K\1\x86e\x85R."),
    ("pth_pickle", b"\x80\x02(" + _SQUARES + b"K\1K\2K\3K\4tQ."),
    ("pth_pickle", b"\x80\x04\x8f(" + _SQUARES + b"\x90."),
    # A tensor of 2^62 times the same number.
    ("pth_pickle", _PICKLES[0].replace(b"K\x03K\x02\x86q\x01K\x02K\x01\x86",
        b"\x8a\x08" + bytes(7) + b"\x40\x85q\x01K\0\x85")),
    # Kernels without values and with long other axes.
    ("tfjs", _tfjs([2**62, 0, 2**62, 4])),
    ("tfjs", _tfjs([0, 1, 1, 2**31])),
    # A chunk of a PNG that claims 800 MiB.
    ("image", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\t\0\0\0\x0c\1\0\0\0\0\x98'\xaa\x0e"
        b"\x32\0\0\0IDATxPHG\rcX"),
]  # fmt: skip
