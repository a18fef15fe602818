"""The published settings of RetinaNet on TPU, as layers over the defaults.

Source: tensorflow/tpu, `models/official/detection/configs/yaml`. The recipes of the same names are
these settings as experiments, with their scores.
"""

from collections.abc import Mapping
from pathlib import Path

from stillbox.experiment.values import Plain, node_of
from stillbox.textformat.yaml_tree import Node, compose

TEMPLATES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
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
