"""The dictionary of a command line: a file, or the template of its name, and an override.

A template has the published settings of RetinaNet on TPU, as layers over the defaults (source:
tensorflow/tpu, `models/official/detection/configs/yaml`). The recipes of the same names are these
settings as experiments, with their scores.

An override is one text: `{ type: retinanet, train: { ... } }` (YAML or JSON),
`train.total_steps=1000, eval.type=box`, or the path of a YAML file. It is YAML's flow style, but
any text may stand unquoted: in YAML `*`, `?`, `&` and `[` have meanings of their own, which
`train_file_pattern: /data/train-*` does not intend. A plain value ends at a comma or at a closing
bracket that it did not open.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.reader import ParamsReading, read_layers
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.values import Plain, node_of
from stillbox.references import Command, Parameter
from stillbox.textformat.parser import MAX_DEPTH
from stillbox.textformat.yaml_tree import Node, compose, read_text_file

TEMPLATES = {
    path.stem: path for path in sorted((Path(__file__).parent / "templates").glob("*.yaml"))
}
"""Name -> file."""


def template_tree(name: str) -> Node:
    """Returns a template as a tree; all of it stands at `template NAME`."""
    text = TEMPLATES[name].read_text(encoding="utf-8")
    return compose(text, f"template {name}", lines=False)


def tree_of(values: Mapping[str, Plain], where: str) -> Node:
    """Returns values by dotted path as a tree; all of it stands at `where`."""
    root: dict[str, Node] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        place = root
        for section in sections:
            place = place.setdefault(section, Node({}, where)).value
        place[name] = node_of(value, where)
    return Node(root, where)


_CLOSES = {"{": "}", "[": "]"}


class Scanner:
    """Reads one text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where, self._at = text, where, 0
        self._depth = 0

    def whole_value(self) -> Node:
        """Returns the one value of the text.

        Raises:
            UserError: there is more, or less.
        """
        value = self._value(",]}")
        if self._peek():
            raise self._broken("nothing more")
        return value

    def pairs(self) -> Iterator[tuple[str, Node]]:
        """Yields names and values of `a.b=1, c=[1, 2]`.

        Raises:
            UserError: the text has another form.
        """
        while self._peek():
            yield self._name("=", "name=value"), self._value(",")
            if self._peek() and not self._take(","):
                raise self._broken("a comma")

    def _peek(self) -> str:
        """Returns the next character that is no space, empty at the end."""
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _broken(self, wanted: str) -> UserError:
        rest = self._text[self._at :].strip()
        problem = f"{wanted} is expected before {repr(rest[:30]) if rest else 'the end'}"
        fix = "put text that holds any of , [ ] { } in quotes"
        return UserError(problem, where=self._where, fix=fix)

    def _value(self, ends: str) -> Node:
        first = self._peek()
        if first == "{":
            return self._mapping()
        if first == "[":
            return Node([self._value(",]") for _ in self._items("]")], self._where)
        return self._quoted(first) if first in ("'", '"') else self._plain(ends)

    def _items(self, closing: str) -> Iterator[None]:
        """Yields in front of each item in brackets, and reads the commas between them."""
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UserError(f"nested deeper than {MAX_DEPTH} levels", where=self._where)
        while not self._take(closing):
            yield
            if not self._take(",") and self._peek() != closing:
                raise self._broken(f"a comma or {closing}")
        self._depth -= 1

    def _mapping(self) -> Node:
        content: dict[str, Node] = {}
        for _ in self._items("}"):
            name = self._name(":", "name: value")
            if name in content:
                problem = f"{name!r} is given twice"
                raise UserError(problem, where=self._where, fix="keep one of them")
            content[name] = self._value(",}")
        return Node(content, self._where)

    def _name(self, separator: str, wanted: str) -> str:
        first = self._peek()
        if first in ("'", '"'):
            name = str(self._quoted(first).value)
            if not self._take(separator):
                raise self._broken("a colon" if separator == ":" else "an equals sign")
            return name
        name, separated, _ = self._text[self._at :].partition(separator)
        if not separated or any(character in name for character in ",[]{}"):
            raise self._broken(wanted)
        self._at += len(name) + 1
        return name.strip()

    def _quoted(self, quote: str) -> Node:
        end = self._at + 1
        while end < len(self._text) and self._text[end] != quote:
            # A backslash escapes the next character, but only between double quotes.
            end += 2 if quote == '"' and self._text[end] == "\\" else 1
        if end >= len(self._text):
            raise self._broken(f"a closing {quote}")
        quoted = self._text[self._at : end + 1]
        self._at = end + 1
        return Node(compose(quoted, self._where, lines=False).value, self._where)

    def _plain(self, ends: str) -> Node:
        """Reads up to one of `ends` that closes nothing inside the value, as in `train-[0-9]*`."""
        open_brackets: list[str] = []
        start = self._at
        for character in self._text[start:]:
            if open_brackets and character == open_brackets[-1]:
                open_brackets.pop()
            elif character in _CLOSES:
                open_brackets.append(_CLOSES[character])
            elif character in ends and not open_brackets:
                break
            self._at += 1
        text = self._text[start : self._at].strip()
        return Node(_typed(text, self._where), self._where, text=text)


def _typed(text: str, where: str) -> object:
    """Returns a scalar with its type in YAML: a number, a truth value, null or text."""
    try:
        value = compose(text, where, lines=False).value
    except UserError:
        return text
    return text if isinstance(value, dict | list) else value


_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_PAIRS = re.compile(rf"\s*{_NAME}\s*=")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_YAML_LINE = re.compile(r"^[ \t]*+[\w'\"]++[ \t]*+:(\s|$)", re.MULTILINE)
_FORMS = (
    f"for example {Parameter('params_override')}='{{train: {{total_steps: 1000}}}}', "
    f"{Parameter('params_override')}='train.total_steps=1000, eval.eval_batch_size=4' or "
    "the path of a YAML file"
)


def read_text(text: str, where: str) -> Node:
    """Reads the argument of `--params_override`; an empty text gives nothing.

    Args:
        text: names and values in any of the three forms, or a file's path.
        where: the option, for messages.

    Raises:
        UserError: it is none of them, or there is no such file.
    """
    text = text.strip()
    if not text:
        return Node(None, where)
    if _PAIRS.match(text):
        return _read_pairs(text, where)
    if text.startswith("{"):
        return _read_flow(text, where)
    if _YAML_LINE.search(text):
        return compose(text, where, lines=False)
    if "\n" in text or text.startswith("["):
        raise UserError(f"{text!r} holds no names and values", where=where, fix=_FORMS)
    return read_file(text, where)


def read_file(path: str | Path, where: str) -> Node:
    """Reads a YAML or JSON file.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    if _URL.match(str(path)):
        raise UserError(
            f"{path} is not a local file", where=where, fix="copy it to this machine first"
        )
    file = Path(path)
    if file.is_dir() or not file.exists():
        problem = f"{file} is a folder" if file.is_dir() else f"there is no file {file}"
        folder = file.parent if file.parent.is_dir() else None
        others = [other.name for other in folder.glob("*.y*ml")] if folder else []
        raise UserError(problem, where=where, fix=nearest(file.name, others) if others else _FORMS)
    return compose(read_text_file(file, where=where, fix="give a YAML file"), str(file))


def _read_flow(text: str, where: str) -> Node:
    try:
        return compose(text, where, lines=False)
    except UserError:
        # Values of shell variables are seldom quoted, and patterns contain * ? [ ].
        return Scanner(text, where).whole_value()


def _read_pairs(text: str, where: str) -> Node:
    root: dict[str, Node] = {}
    for path, value in Scanner(text, where).pairs():
        *sections, name = path.split(".")
        place = root
        for section in sections:
            inner = place.setdefault(section, Node({}, where))
            if not isinstance(inner.value, dict):
                raise _twice(path, where)
            place = inner.value
        if name in place:
            raise _twice(path, where)
        place[name] = value
    return Node(root, where)


def _twice(path: str, where: str) -> UserError:
    return UserError(f"{path!r} is given twice", where=where, fix="keep one of them")


def read_params(
    *,
    config_file: str | Path = "",
    params_override: str = "",
    model: str = "retinanet",
    used: Collection[str] = (),
) -> ParamsReading:
    """Reads the dictionary in the original's order: defaults, file, override.

    Args:
        config_file: a YAML file; if there is no such file, the built-in template of its name.
        params_override: names and values as one text, see `read_text`.
        model: the model that brings the defaults.
        used: keys that the caller reads itself, `eval.eval_timeout`.

    Raises:
        UserError: there is no such file, or see `reader.read_layers`.
    """
    layers = [_config_file(str(config_file))] if str(config_file) else []
    layers.append(read_text(params_override, f"{Parameter('params_override')}"))
    reading = read_layers(layers, name=Path(config_file).stem or model, model=model, used=used)
    if not str(config_file) or Path(config_file).is_file():
        return reading
    note = f"there is no file {config_file}: the built-in template of this name is taken"
    return replace(reading, notes=(note, *reading.notes))


def _config_file(given: str) -> Node:
    path = Path(given)
    if path.is_file() or path.is_dir() or "://" in given:
        return read_file(given, f"{Parameter('config_file')}")
    # Scripts name `configs/yaml/retinanet_nasfpn.yaml`, a file of the original's repository.
    if path.stem in TEMPLATES:
        return template_tree(path.stem)
    beside = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
    names = [*(other.name for other in beside), *(f"{name}.yaml" for name in TEMPLATES)]
    fix = nearest(path.name, names)
    if path.stem in recipe_names():
        fix = f"{Command('train', path.stem)} takes the recipe of this name"
    raise UserError(f"there is no file {path}", where=Parameter("config_file"), fix=fix)
