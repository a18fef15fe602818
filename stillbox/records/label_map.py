"""Classes: label maps (`StringIntLabelMap` of the Object Detection API) and class indices.

Records, annotations, tables and predictions use the ids of a label map, arrays use indices. Ids
start at 1 and may have gaps; indices start at 0 and have none.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError, nearest
from stillbox.object_storage import read_object, url_of
from stillbox.printing import count_text
from stillbox.textformat.messages import Decoder, Message, parse_schema
from stillbox.textformat.parser import parse
from stillbox.textformat.yaml_tree import read_text_file

SHAPE = "write one `item { id: 1 name: 'dog' }` for every class"

SCHEMA = parse_schema("""
message StringIntLabelMap
  item: StringIntLabelMapItem*

message StringIntLabelMapItem
  name: string
  id: int32
  display_name: string
  keypoints: opaque*
  ancestor_ids: int32*
  descendant_ids: int32*
  frequency: LVISFrequency
  instance_count: int32

enum LVISFrequency: UNSPECIFIED=0 FREQUENT=1 COMMON=2 RARE=3
""")
"""The messages of label maps (`object_detection/protos/string_int_label_map.proto`)."""


# Digits may follow the NUL.
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\0": "\\000"})


@dataclass(frozen=True)
class LabelMapItem:
    """One class."""

    id: int
    """1 or more."""
    name: str
    """Class text of records, unless they carry display names."""
    display_name: str = ""
    """Readable name; may be empty."""


def read_items(text: str, file: str) -> list[tuple[LabelMapItem, str]]:
    """Returns the items of a label map, each with its file:line:column.

    Raises:
        UserError: the text is not a label map.
    """
    try:
        root = Decoder(SCHEMA, strict=True).decode(parse(text, file), "StringIntLabelMap")
        return [(_item(entry.value), entry.where) for entry in root.entries.get("item", [])]
    except UserError as error:
        raise UserError(error.what, where=error.where, fix=error.fix or SHAPE) from error


def _item(message: Message) -> LabelMapItem:
    values = {name: entries[0].value for name, entries in message.entries.items()}
    name, display_name = values.get("name", ""), values.get("display_name", "")
    if "id" not in values:
        raise UserError("the item has no id", where=message.where)
    if not name and not display_name:
        raise UserError("the item has neither name nor display_name", where=message.where)
    return LabelMapItem(values["id"], name or display_name, display_name)


def quoted(text: str) -> str:
    """Returns a string literal that reads back as `text`."""
    return f"'{text.translate(_ESCAPES)}'"


_FOLDER = Path(__file__).parent / "label_maps"
MAX_LABEL_MAP_BYTES = 2**22
"""Greatest size of a label map's file, enough for a hundred thousand classes."""
# The format and the arrays of ids hold no more.
_MAX_ID = 2**31 - 1


@dataclass(frozen=True)
class LabelMap:
    """The classes of a data set, by id, with gaps; an item `background` with id 0 is ignored.

    Raises:
        UserError: an id below 1, or an id or a name that occurs twice.
    """

    items: tuple[LabelMapItem, ...]
    """In the order of their ids."""
    where: str = field(default="label map", compare=False)
    """File that it comes from, for messages."""

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.items, key=lambda item: item.id))
        object.__setattr__(self, "items", ordered)
        _check([(item, self.where) for item in ordered])

    @cached_property
    def _by_id(self) -> dict[int, LabelMapItem]:
        return {item.id: item for item in self.items}

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {item.name: item.id for item in self.items}

    @cached_property
    def _by_display_name(self) -> dict[str, int]:
        # The lower id counts where two items have one display name.
        return {item.display_name or item.name: item.id for item in reversed(self.items)}

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[LabelMapItem]:
        return iter(self.items)

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._by_id

    @property
    def max_id(self) -> int:
        """The greatest id, 0 without classes."""
        return self.items[-1].id if self.items else 0

    @property
    def names(self) -> Mapping[int, str]:
        """Display names by id."""
        return {item.id: self.name_of(item.id) for item in self}

    def id_of(self, text: str, *, use_display_name: bool = False) -> int | None:
        """Returns the id of a name or display name, None if the map has none."""
        return (self._by_display_name if use_display_name else self._by_name).get(text)

    def find(self, text: str) -> int:
        """Returns the id of a name or else a display name, 0 if the map has neither."""
        return self._by_name.get(text) or self._by_display_name.get(text) or 0

    def name_of(self, class_id: int) -> str:
        """Returns the display name of a class, or else its name."""
        item = self._by_id.get(class_id)
        return (item.display_name or item.name) if item else f"class {class_id}"

    def text_of(self, class_id: int) -> str:
        """Returns the class text in records of an id of this map."""
        return self._by_id[class_id].name

    @classmethod
    def from_names(cls, names: Iterable[str]) -> "LabelMap":
        """Returns a map of the names, with the ids 1, 2, ... in their order."""
        return cls(tuple(LabelMapItem(index, name) for index, name in enumerate(names, start=1)))

    @classmethod
    def from_file(cls, path: str | Path) -> "LabelMap":
        """Reads a `.pbtxt` file, also one at a URL, or a built-in label map by its name.

        Raises:
            UserError: there is no such file and no such name, or `from_text` refuses the content.
        """
        if url := url_of(path):
            content = read_object(url, most=MAX_LABEL_MAP_BYTES)
            return cls.from_text(content.decode("utf-8-sig", errors="replace"), url)
        path = Path(path)
        file, where = path, str(path)
        if where in _built_in() and not path.is_file():
            file, where = _built_in()[where], f"built-in label map {where}"
        elif not is_label_map(path):
            raise missing_label_map(path)
        return cls.from_text(read_text_file(file, fix=SHAPE, most=MAX_LABEL_MAP_BYTES), where)

    @classmethod
    def from_text(cls, text: str, where: str = "label map") -> "LabelMap":
        """Reads the text form.

        Raises:
            UserError: the text is not a label map; the message names the line.
        """
        items = read_items(text, where)
        if not items:
            raise UserError("the label map has no item", where=where, fix=SHAPE)
        _check(items)
        kept = tuple(item for item, _ in items if item.id)
        if not kept:
            raise UserError("the label map has no class but background", where=where, fix=SHAPE)
        return cls(kept, where)

    def to_text(self) -> str:
        """Returns the text form, which `from_text` reads back."""
        text = ""
        for item in self.items:
            text += f"item {{\n  id: {item.id}\n  name: {quoted(item.name)}\n"
            if item.display_name:
                text += f"  display_name: {quoted(item.display_name)}\n"
            text += "}\n"
        return text


def is_label_map(path: str | Path) -> bool:
    """Tells whether a path exists or names a built-in label map; a URL may exist."""
    if url_of(path):
        return True
    # Path raises an error for names that are too long.
    return os.path.exists(path) or str(path) in _built_in()  # noqa: PTH110


def missing_label_map(path: str | Path) -> UserError:
    """Returns the error for a label map that is neither a file nor built in."""
    path, names = Path(path), set[str]()
    with suppress(OSError, ValueError):  # ValueError: a zero byte in a name, from Python 3.13 on
        names |= {entry.name for entry in path.parent.glob("*.pbtxt")}
    if path.parent == Path():
        names |= _built_in().keys()
    built_in = ", ".join(sorted(_built_in()))
    fix = f"give the path of a .pbtxt file, or a built-in one: {built_in}"
    problem = "there is no such label map"
    return UserError(problem, where=str(path), fix=nearest(path.name, names) if names else fix)


def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in _FOLDER.glob("*.pbtxt")}


def _check(items: list[tuple[LabelMapItem, str]]) -> None:
    """Refuses ids below 1 and ids or names that occur twice."""
    ids: dict[int, str] = {}
    names: dict[str, int] = {}
    for item, where in items:
        if item.id == 0 and item.name == "background":
            continue
        if item.id < 1:
            problem = f"{item.name!r} has id {item.id}"
            fix = "let ids start at 1; 0 is the background"
            raise UserError(problem, where=where, fix=fix)
        if item.id > _MAX_ID:
            problem = f"{item.name!r} has id {item.id}; the greatest possible is {_MAX_ID}"
            raise UserError(problem, where=where, fix="number the classes from 1")
        if item.id in ids:
            problem = f"id {item.id} belongs to {ids[item.id]!r} and to {item.name!r}"
            raise UserError(problem, where=where, fix="give every class an id of its own")
        if item.name in names:
            problem = f"the name {item.name!r} has two ids, {names[item.name]} and {item.id}"
            raise UserError(problem, where=where, fix="give every class a name of its own")
        ids[item.id], names[item.name] = item.name, item.id


SlotRule = Literal["label_map_id", "contiguous"]
"""`label_map_id`: class index c is id c + 1; gaps between ids leave indices unused.
`contiguous`: class index c is the c-th id of the label map."""


@dataclass(frozen=True)
class ClassSlots:
    """The label map ids of a model's class indices."""

    ids: tuple[int, ...]
    """`[num_classes]`, the id of each class index, ascending."""

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, class_id: object) -> bool:
        return class_id in self.ids

    def __str__(self) -> str:
        """Returns the ids as text, such as `1 to 11, 13`."""
        runs = [
            [class_id for _, class_id in run]
            for _, run in groupby(enumerate(self.ids), lambda pair: pair[1] - pair[0])
        ]
        return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)

    def index_of(self, class_ids: NDArray[np.integer]) -> NDArray[np.int32]:
        """Returns class indices `[N]` of label map ids `[N]`; `num_classes` for unknown ids."""
        places = np.searchsorted(self._ids, class_ids)
        known = self._ids[np.minimum(places, len(self) - 1)] == class_ids
        return np.where(known, places, len(self)).astype(np.int32)

    def id_of(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Returns label map ids `[N]` of class indices `[N]` below `num_classes`."""
        return self._ids[indices]

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        return np.array(self.ids, np.int64)


def required_classes(label_map: LabelMap, rule: SlotRule) -> int:
    """Returns the `num_classes` of a label map; with `label_map_id`, the least possible."""
    return len(label_map) if rule == "contiguous" else label_map.max_id


def assign_slots(label_map: LabelMap, num_classes: int, rule: SlotRule) -> ClassSlots:
    """Returns the class slots of a model with `num_classes` foreground classes.

    Raises:
        UserError: label map and `num_classes` do not fit together under this rule; the message
            names a number that does, and the other rule if it does.
    """
    required = required_classes(label_map, rule)
    if rule == "contiguous":
        if required != num_classes:
            raise UserError(
                f"the label map has {count_text(required, 'class')}, the model {num_classes}, and "
                "with model.class_slots=contiguous each has one of the model's",
                where=label_map.where,
                fix=_remedy(f"{required} (the number of items)", label_map, num_classes, rule),
            )
        return ClassSlots(tuple(item.id for item in label_map))
    if required > num_classes:
        raise UserError(
            f"the label map goes up to id {required}, the model has "
            f"{count_text(num_classes, 'class')}",
            where=label_map.where,
            fix=_remedy(f"{required} (the greatest id, with gaps)", label_map, num_classes, rule),
        )
    return ClassSlots(tuple(range(1, num_classes + 1)))


def _remedy(number: str, label_map: LabelMap, num_classes: int, rule: SlotRule) -> str:
    other: SlotRule = "label_map_id" if rule == "contiguous" else "contiguous"
    fits = required_classes(label_map, other) == num_classes
    return (
        f"set model.num_classes={number}, or "
        + f"set model.class_slots={other}, or " * fits
        + "give the label map that belongs to the model"
    )
