"""`tf.Example` to `Example` and back, with the keys of fact sheet 4.1.

Read: `image/{encoded,filename,source_id,height,width}` and, under `image/object/`,
`bbox/{ymin,xmin,ymax,xmax}`, `class/{text,label}`, `weight`, `is_crowd`, `difficult`, `truncated`,
`area`. Every other key is left alone, `image/object/group_of`, masks and keypoints among them.
`image/format` is information only: the image's own first bytes decide.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.wire import Feature, parse_features, serialize_features

__all__ = [
    "Feature",
    "Parsed",
    "parse_example",
    "parse_features",
    "serialize_example",
    "serialize_features",
]

_OBJECT = "image/object/"
_BOX_KEYS = tuple(f"{_OBJECT}bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_KINDS = {"f": "float32", "i": "int64"}
_TEXT, _LABEL = f"{_OBJECT}class/text", f"{_OBJECT}class/label"


@dataclass(frozen=True)
class Parsed:
    """A record as it was read, before any rule about boxes."""

    example: Example
    """Class id 0 stands for a class that is unknown; `unknown` says what the record calls it."""
    unknown: dict[int, str] = field(default_factory=dict)
    """What the record says in place of a known class, by box."""
    wrong_lists: tuple[str, ...] = ()
    """Side lists whose length is not the number of boxes; they were left out."""
    disagreeing: tuple[str, ...] = ()
    """Boxes whose class text and label name different classes; the text was used."""


def parse_example(
    data: bytes,
    label_map: LabelMap | None = None,
    *,
    use_display_name: bool = False,
    fallback_id: str = "",
) -> Parsed:
    """Reads a serialised `tf.Example`.

    Where a label map is given, a class text wins over a label, as in the original.

    Args:
        data: the record's payload.
        label_map: turns class texts into ids; without it the labels are taken as they are.
        use_display_name: match class texts against display names.
        fallback_id: image id of a record that has neither source id nor file name.

    Raises:
        BadRecordError: the bytes are no `tf.Example`, hold no image, or their box and class
            lists do not fit together.
    """
    features = parse_features(data)
    encoded = _first_bytes(features, "image/encoded")
    if not encoded:
        raise BadRecordError(
            "no image in the record", f"it has {', '.join(sorted(features)) or 'no features'}"
        )
    boxes = _boxes(features)
    count = len(boxes)
    class_ids, unknown, disagreeing = _classes(features, count, label_map, use_display_name)
    filename = _first_text(features, "image/filename")
    sides = _SideLists(features, count)
    example = Example(
        image_id=_first_text(features, "image/source_id") or filename or fallback_id,
        encoded=encoded,
        filename=filename,
        height=_first_integer(features, "image/height"),
        width=_first_integer(features, "image/width"),
        boxes=boxes,
        class_ids=class_ids,
        weights=sides.floats("weight", 1.0),
        is_crowd=sides.flags("is_crowd"),
        difficult=sides.flags("difficult"),
        truncated=sides.flags("truncated"),
        area=sides.floats("area", np.nan),
    )
    return Parsed(example, unknown, tuple(sides.wrong), disagreeing)


def serialize_example(example: Example, label_map: LabelMap | None = None) -> bytes:
    """Writes an example with class labels, and with class texts where a label map is given."""
    kind = b"png" if example.encoded.startswith(b"\x89PNG") else b"jpeg"
    features: dict[str, Feature] = {
        "image/encoded": [example.encoded],
        "image/format": [kind],
        "image/filename": [example.filename.encode()],
        "image/source_id": [example.image_id.encode()],
        "image/key/sha256": [hashlib.sha256(example.encoded).hexdigest().encode()],
        "image/height": np.array([example.height]),
        "image/width": np.array([example.width]),
        _LABEL: example.class_ids.astype(np.int64),
        f"{_OBJECT}is_crowd": example.is_crowd.astype(np.int64),
    }
    for column, key in enumerate(_BOX_KEYS):
        features[key] = example.boxes[:, column]
    if label_map is not None:
        features[_TEXT] = [label_map.text_of(int(i)).encode() for i in example.class_ids]
    # Left out where they say nothing, as for all of COCO; a reader then uses the same defaults.
    for name in ("difficult", "truncated"):
        if np.any(getattr(example, name)):
            features[_OBJECT + name] = getattr(example, name).astype(np.int64)
    if np.any(example.weights != 1):
        features[f"{_OBJECT}weight"] = example.weights
    if not np.all(np.isnan(example.area)):
        features[f"{_OBJECT}area"] = example.area
    return serialize_features(features)


def _values(features: dict[str, Feature], key: str, kind: str) -> Feature:
    """Returns the values of a feature, empty where it is absent."""
    values = features.get(key, ())
    if len(values) == 0:
        return values
    found = _KINDS[values.dtype.kind] if isinstance(values, np.ndarray) else "bytes"
    if found != kind:
        raise BadRecordError("a feature of the wrong type", f"{key} holds {found}, not {kind}")
    return values


def _first_bytes(features: dict[str, Feature], key: str) -> bytes:
    values = _values(features, key, "bytes")
    return bytes(values[0]) if len(values) else b""


def _first_text(features: dict[str, Feature], key: str) -> str:
    return _first_bytes(features, key).decode(errors="replace")


def _first_integer(features: dict[str, Feature], key: str) -> int:
    values = _values(features, key, "int64")
    return int(values[0]) if len(values) else 0


def _boxes(features: dict[str, Feature]) -> NDArray[np.float32]:
    """Returns `[N, 4]`, ymin, xmin, ymax, xmax as stored."""
    sides = [np.asarray(_values(features, key, "float32"), np.float32) for key in _BOX_KEYS]
    lengths = [len(side) for side in sides]
    if len(set(lengths)) > 1:
        said = ", ".join(
            f"{key.rsplit('/', 1)[1]} {length}"
            for key, length in zip(_BOX_KEYS, lengths, strict=True)
        )
        raise BadRecordError("box coordinates do not fit together", f"lengths: {said}")
    return np.stack(sides, axis=1)


def _classes(
    features: dict[str, Feature], count: int, label_map: LabelMap | None, use_display_name: bool
) -> tuple[NDArray[np.int32], dict[int, str], tuple[str, ...]]:
    """Returns ids (0: unknown), what the unknown ones are called, where text and label differ."""
    texts = list(_values(features, _TEXT, "bytes"))
    labels = np.asarray(_values(features, _LABEL, "int64"), np.int64)
    for name, length in (("class/text", len(texts)), ("class/label", len(labels))):
        if length not in (0, count):
            raise BadRecordError(
                "classes and boxes do not fit together", f"{count} boxes, {length} {name}"
            )
    if count and not texts and not len(labels):
        raise BadRecordError("boxes without a class", f"{count} boxes")
    if label_map is None and count and not len(labels):
        raise BadRecordError("class texts need a label map", f"the first is {texts[0]!r}")
    unknown: dict[int, str] = {}
    disagreeing: list[str] = []
    ids = np.zeros(count, np.int32)
    for box in range(count):
        text = texts[box].decode(errors="replace") if texts and label_map is not None else ""
        label = int(labels[box]) if len(labels) else 0
        if text and label_map is not None:
            ids[box] = label_map.id_of(text, use_display_name=use_display_name) or 0
            if ids[box] and label and label != ids[box]:
                disagreeing.append(f"box {box}: text {text!r} is id {ids[box]}, label is {label}")
        elif 0 < label < 2**31 and (label_map is None or label in label_map):
            ids[box] = label
        if not ids[box]:
            unknown[box] = repr(text) if text else f"id {label}"
    return ids, unknown, tuple(disagreeing)


class _SideLists:
    """Reads the lists that may be absent; one of the wrong length is left out and named."""

    def __init__(self, features: dict[str, Feature], count: int) -> None:
        self.features, self.count = features, count
        self.wrong: list[str] = []

    def floats(self, name: str, default: float) -> NDArray[np.float32]:
        return self._read(name, "float32", np.full(self.count, default, np.float32))

    def flags(self, name: str) -> NDArray[np.bool_]:
        return self._read(name, "int64", np.zeros(self.count, np.int64)) != 0

    def _read(self, name: str, kind: str, default: NDArray[np.generic]) -> NDArray:
        values = _values(self.features, _OBJECT + name, kind)
        if len(values) == self.count:
            return np.asarray(values, default.dtype)
        if len(values):
            self.wrong.append(f"{name} has {len(values)} values for {self.count} boxes")
        return default
