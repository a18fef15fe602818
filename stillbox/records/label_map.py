"""Label maps: which class name has which id (`StringIntLabelMap` of the Object Detection API)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.records.label_map_text import SHAPE, LabelMapItem, quoted, read_items

_FOLDER = Path(__file__).parent / "label_maps"


@dataclass(frozen=True)
class LabelMap:
    """The classes of a data set, by id. Gaps between ids are fine.

    The item `background` with id 0 that some maps carry is read over: no record holds it.

    Raises:
        UserError: an id below 1, or an id or a name that occurs twice.
    """

    items: tuple[LabelMapItem, ...]
    """In the order of their ids."""
    where: str = field(default="label map", compare=False)
    """File that it comes from, for messages."""
    _by_id: dict[int, LabelMapItem] = field(init=False, repr=False, compare=False)
    _by_name: dict[str, int] = field(init=False, repr=False, compare=False)
    _by_display_name: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.items, key=lambda item: item.id))
        object.__setattr__(self, "items", ordered)
        _check([(item, self.where) for item in ordered])
        object.__setattr__(self, "_by_id", {item.id: item for item in ordered})
        object.__setattr__(self, "_by_name", {item.name: item.id for item in ordered})
        # The first of two equal display names counts, as it has the lower id.
        display = {item.display_name or item.name: item.id for item in reversed(ordered)}
        object.__setattr__(self, "_by_display_name", display)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[LabelMapItem]:
        return iter(self.items)

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._by_id

    @property
    def max_id(self) -> int:
        """The greatest id: a model needs at least as many classes."""
        return self.items[-1].id if self.items else 0

    @property
    def names(self) -> Mapping[int, str]:
        """Names for people by id."""
        return {item.id: self.name_of(item.id) for item in self}

    def id_of(self, text: str, *, use_display_name: bool = False) -> int | None:
        """Returns the id of a class text, or None for a text that the map does not hold."""
        return (self._by_display_name if use_display_name else self._by_name).get(text)

    def find(self, text: str) -> int:
        """Returns the id of a name or else a display name, 0 if the map has neither."""
        return self._by_name.get(text) or self._by_display_name.get(text) or 0

    def name_of(self, class_id: int) -> str:
        """Returns the name for people: the display name where there is one."""
        item = self._by_id.get(class_id)
        return (item.display_name or item.name) if item else f"class {class_id}"

    def text_of(self, class_id: int) -> str:
        """Returns the class text that a record carries for an id of this map."""
        return self._by_id[class_id].name

    @classmethod
    def from_names(cls, names: Iterable[str]) -> "LabelMap":
        """Returns a map that gives the names, in their order, the ids from 1."""
        return cls(tuple(LabelMapItem(index, name) for index, name in enumerate(names, start=1)))

    @classmethod
    def from_file(cls, path: str | Path) -> "LabelMap":
        """Reads a `.pbtxt` file, or a built-in label map by its name.

        Raises:
            UserError: there is no such file and no such name, or `from_text` refuses the content.
        """
        path = Path(path)
        file, where = path, str(path)
        if not path.is_file():
            if not is_label_map(path):
                raise missing_label_map(path)
            file, where = _built_in()[where], f"built-in label map {where}"
        try:
            text = file.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"the label map is not UTF-8 text (byte {error.start})",
                where=str(path),
                fix="save it as UTF-8, or see whether this is the right file",
            ) from error
        return cls.from_text(text, where)

    @classmethod
    def from_text(cls, text: str, where: str = "label map") -> "LabelMap":
        """Reads the text form.

        Raises:
            UserError: the text is no label map; the message names the line.
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
        blocks = []
        for item in self.items:
            lines = [f"  id: {item.id}", f"  name: {quoted(item.name)}"]
            if item.display_name:
                lines.append(f"  display_name: {quoted(item.display_name)}")
            blocks.append("\n".join(["item {", *lines, "}"]))
        return "\n".join(blocks) + "\n"


def is_label_map(path: str | Path) -> bool:
    """Tells whether `LabelMap.from_file` finds something: a file, or else a built-in label map."""
    return Path(path).is_file() or str(path) in _built_in()


def missing_label_map(path: str | Path) -> UserError:
    """Returns what is to be said of a label map that is neither a file nor built in."""
    path = Path(path)
    names = {entry.name for entry in path.parent.glob("*.pbtxt")}
    if path.parent == Path():
        names |= _built_in().keys()
    known = ", ".join(sorted(_built_in()))
    return UserError(
        "there is no such label map",
        where=str(path),
        fix=nearest(path.name, names)
        if names
        else f"give the path of a .pbtxt file, or a built-in one: {known}",
    )


def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in _FOLDER.glob("*.pbtxt")}


def _check(items: list[tuple[LabelMapItem, str]]) -> None:
    """Refuses ids below 1 and ids or names that occur twice."""
    ids: dict[int, str] = {}
    names: dict[str, int] = {}
    for item, place in items:
        if item.id == 0 and item.name == "background":
            continue
        if item.id < 1:
            raise UserError(
                f"{item.name!r} has id {item.id}",
                where=place,
                fix="let ids start at 1; 0 stands for the background",
            )
        if item.id in ids:
            raise UserError(
                f"id {item.id} belongs to {ids[item.id]!r} and to {item.name!r}",
                where=place,
                fix="give every class an id of its own",
            )
        if item.name in names:
            raise UserError(
                f"the name {item.name!r} has two ids, {names[item.name]} and {item.id}",
                where=place,
                fix="give every class a name of its own",
            )
        ids[item.id], names[item.name] = item.name, item.id
