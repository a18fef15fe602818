"""A part of the dictionary as one text.

`{ type: retinanet, train: { ... } }` (YAML or JSON), `train.total_steps=1000, eval.type=box`, or
the path of a YAML file.
"""

import re
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.flow import Scanner
from stillbox.textformat.text_file import read_text_file
from stillbox.textformat.yaml_tree import Node, compose

_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_PAIRS = re.compile(rf"\s*{_NAME}\s*=")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_YAML_LINE = re.compile(r"^[ \t]*+[\w'\"]++[ \t]*+:(\s|$)", re.MULTILINE)
_FORMS = (
    "for example --params_override='{train: {total_steps: 1000}}', "
    "--params_override='train.total_steps=1000, eval.eval_batch_size=4' or the path of a YAML file"
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
        what = f"{file} is a folder" if file.is_dir() else f"there is no file {file}"
        folder = file.parent if file.parent.is_dir() else None
        others = [other.name for other in folder.glob("*.y*ml")] if folder else []
        raise UserError(what, where=where, fix=nearest(file.name, others) if others else _FORMS)
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
