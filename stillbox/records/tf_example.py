"""`tf.Example` to `Example` and back.

Read: `image/{encoded,filename,source_id,height,width}` and, under `image/object/`,
`bbox/{ymin,xmin,ymax,xmax}`, `class/{text,label}`, `weight`, `is_crowd`, `difficult`, `truncated`,
`area`, and `group_of` in place of an absent `is_crowd`. All other keys are ignored, masks and
keypoints among them, and `image/format` too: the image's own first bytes decide.
Source: object_detection/core/standard_fields.py, `TfExampleFields`.
"""

import hashlib
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from stillbox.printing import count_text
from stillbox.records.example import DEFAULTS, Example
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.wire import Feature, parse_features, serialize_features

T = TypeVar("T")
_OBJECT = "image/object/"
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_KINDS = {"f": "float32", "i": "int64"}
_TEXT, _LABEL = f"{_OBJECT}class/text", f"{_OBJECT}class/label"
# Feature and its type, by attribute of `Example`.
_COLUMNS = {
    "weights": ("weight", "float32"),
    "is_crowd": ("is_crowd", "int64"),
    "difficult": ("difficult", "int64"),
    "truncated": ("truncated", "int64"),
    "area": ("area", "float32"),
}


@dataclass(frozen=True)
class ParsedExample:
    """A record as read, before the box policy is applied."""

    example: Example
    """Class id 0 stands for an unknown class."""
    unknown: dict[int, str] = field(default_factory=dict)
    """The record's text or label of an unknown class, by box."""
    wrong_lists: tuple[str, ...] = ()
    """Optional columns of another length than the number of boxes; they were left out."""
    disagreeing: tuple[str, ...] = ()
    """Boxes with a class text and a label of different classes; the text was used."""


def parse_example(
    data: bytes,
    label_map: LabelMap | None = None,
    *,
    use_display_name: bool = False,
    fallback_id: str = "",
) -> ParsedExample:
    """Reads a serialised `tf.Example`.

    Without a label map, the labels are the ids. With one, a class text, which is matched against
    names or display names, has precedence over a label, as in the original. `fallback_id` is the
    image id of a record with neither source id nor file name.

    Raises:
        BadRecordError: the bytes are not a `tf.Example`, hold no image, or their box and class
            lists differ in length.
    """
    features = parse_features(data)
    encoded = _first(features, "image/encoded", "bytes", b"")
    if not encoded:
        raise BadRecordError(
            "no image in the record", f"it has {', '.join(sorted(features)) or 'no features'}"
        )
    boxes = _boxes(features)
    class_ids, unknown, disagreeing = _classes(features, len(boxes), label_map, use_display_name)
    # Open Images names what COCO calls a crowd differently.
    features.setdefault(f"{_OBJECT}is_crowd", features.get(f"{_OBJECT}group_of", ()))
    columns, wrong = _columns(features, len(boxes))
    filename = _first(features, "image/filename", "bytes", b"").decode(errors="replace")
    source_id = _first(features, "image/source_id", "bytes", b"").decode(errors="replace")
    example = Example(
        image_id=source_id or filename or fallback_id,
        encoded=encoded,
        filename=filename,
        height=int(_first(features, "image/height", "int64", 0)),
        width=int(_first(features, "image/width", "int64", 0)),
        boxes=boxes,
        class_ids=class_ids,
        **columns,
    )
    return ParsedExample(example, unknown, wrong, disagreeing)


def class_texts(data: bytes) -> list[tuple[str, int]]:
    """Returns text and label (0: none) of each box of a serialised `tf.Example`.

    Raises:
        BadRecordError: the bytes are not a `tf.Example`.
    """
    features = parse_features(data)
    texts = [text.decode(errors="replace") for text in _values(features, _TEXT, "bytes")]
    labels = list(map(int, _values(features, _LABEL, "int64"))) or [0] * len(texts)
    return [(text, label) for text, label in zip(texts, labels, strict=False) if text]


def serialize_example(
    example: Example, label_map: LabelMap | None = None, *, labels: bool = True
) -> bytes:
    """Writes an example with class labels, and with class texts if a label map is given."""
    kind = b"png" if example.encoded.startswith(b"\x89PNG") else b"jpeg"
    features: dict[str, Feature] = {
        "image/encoded": [example.encoded],
        "image/format": [kind],
        "image/filename": [example.filename.encode()],
        "image/source_id": [example.image_id.encode()],
        "image/key/sha256": [hashlib.sha256(example.encoded).hexdigest().encode()],
        "image/height": np.array([example.height]),
        "image/width": np.array([example.width]),
    }
    if labels:
        features[_LABEL] = example.class_ids.astype(np.int64)
    for column, side in enumerate(_SIDES):
        features[f"{_OBJECT}bbox/{side}"] = example.boxes[:, column]
    if label_map is not None:
        features[_TEXT] = [label_map.text_of(int(i)).encode() for i in example.class_ids]
    for name, (key, dtype) in _COLUMNS.items():
        values = getattr(example, name)
        default = np.full(len(values), DEFAULTS[name])
        # Columns of defaults are left out, except `is_crowd`, which COCO's converter always writes.
        if name == "is_crowd" or not np.array_equal(values, default, equal_nan=True):
            features[_OBJECT + key] = values.astype(dtype)
    return serialize_features(features)


def _values(features: dict[str, Feature], key: str, kind: str) -> Feature:
    values = features.get(key, ())
    if len(values) == 0:
        return values
    held = _KINDS[values.dtype.kind] if isinstance(values, np.ndarray) else "bytes"
    if held != kind:
        raise BadRecordError("a feature of the wrong type", f"{key} holds {held}, not {kind}")
    return values


def _first(features: dict[str, Feature], key: str, kind: str, default: T) -> T:
    values = _values(features, key, kind)
    return cast(T, values[0]) if len(values) else default


def _boxes(features: dict[str, Feature]) -> NDArray[np.float32]:
    """Returns `[N, 4]`, ymin, xmin, ymax, xmax as stored."""
    sides = [_values(features, f"{_OBJECT}bbox/{side}", "float32") for side in _SIDES]
    if len({len(side) for side in sides}) > 1:
        lengths = ", ".join(f"{n} {len(side)}" for n, side in zip(_SIDES, sides, strict=True))
        raise BadRecordError("box coordinates do not fit together", f"lengths: {lengths}")
    return np.stack([np.asarray(side, np.float32) for side in sides], axis=1)


def _columns(
    features: dict[str, Feature], count: int
) -> tuple[dict[str, NDArray], tuple[str, ...]]:
    """Returns the optional columns of `Example`, and words about columns of the wrong length."""
    columns, wrong = {}, []
    for name, (key, kind) in _COLUMNS.items():
        values = _values(features, _OBJECT + key, kind)
        if len(values) == count:
            columns[name] = np.asarray(values).astype(DEFAULTS[name].dtype)
        elif len(values):
            wrong.append(
                f"{key} has {count_text(len(values), 'value')} for {count_text(count, 'box')}"
            )
    return columns, tuple(wrong)


def _classes(
    features: dict[str, Feature], count: int, label_map: LabelMap | None, use_display_name: bool
) -> tuple[NDArray[np.int32], dict[int, str], tuple[str, ...]]:
    """Returns ids (0: unknown), unknown classes in words, and boxes with text unlike the label."""
    texts = list(_values(features, _TEXT, "bytes"))
    labels = np.asarray(_values(features, _LABEL, "int64"), np.int64)
    for name, length in (("class/text", len(texts)), ("class/label", len(labels))):
        if length not in (0, count):
            raise BadRecordError(
                "classes and boxes do not fit together",
                f"{count_text(count, 'box')}, {length} {name}",
            )
    if count and not texts and not len(labels):
        raise BadRecordError("boxes without a class", count_text(count, "box"))
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
            unknown[box] = repr(text) if text or not len(labels) else f"id {label}"
    return ids, unknown, tuple(disagreeing)
