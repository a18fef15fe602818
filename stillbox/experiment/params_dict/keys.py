"""Every key of the parameter dictionary of RetinaNet on TPU, with type and default.

`keys.json` has them as sections: keys of the last version, and keys of 2020 alone. The original
defines them in `detection/configs/base_config.py` and `detection/configs/retinanet_config.py`
(tensorflow/tpu, models/official).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillbox.experiment.values import Hint, Value

BACKBONES = ("resnet", "spinenet", "spinenet_mbconv")
"""Values of `architecture.backbone`, and the sections that describe them."""
NECKS = ("fpn", "nasfpn")
"""Values of `architecture.multilevel_features` with a section; `identity` has none."""
BLOCKS = (*BACKBONES, *NECKS)
"""All sections that are only in use if something chooses them."""
_TYPES: dict[str, Hint] = {
    **{"~int": int, "~float": float, "~str": str, "~bool": bool, "~any": object},
    **{"~ints": tuple[int, ...], "~floats": tuple[float, ...], "~strs": tuple[str, ...]},
}


@dataclass(frozen=True)
class Key:
    """Type and default of a key."""

    type: Hint
    default: Value
    """None if the key is null unless it is set; null is then allowed."""


def read_keys(sections: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Yields the dotted paths of a tree of defaults, each with its key.

    In place of a default, a type such as `~int` stands for a key that is null unless it is set, and
    a list of one such type for an empty list of it. A plain empty list takes any value.
    """
    for name, item in sections.items():
        path = f"{prefix}{name}"
        if isinstance(item, dict):
            yield from read_keys(item, f"{path}.")
        elif item == []:
            yield path, Key(object, item)
        elif isinstance(item, list) and item[0] in _TYPES:
            yield path, Key(_TYPES[f"{item[0]}s"], ())
        elif isinstance(item, list):
            yield path, Key(_TYPES[f"~{type(item[0]).__name__}s"], tuple(item))
        else:
            yield path, Key(_TYPES[item], None) if item in _TYPES else Key(type(item), item)


_SECTIONS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
FINAL: Mapping[str, Key] = dict(read_keys(_SECTIONS["final"]))
"""The keys of the last version, in its order."""
OLD: Mapping[str, Key] = dict(read_keys(_SECTIONS["old"]))
"""Keys of the dictionary of 2020 alone; all are null unless they are set."""
KEYS: Mapping[str, Key] = {**FINAL, **OLD}
"""The keys of the last version and of 2020."""


def names_in(section: str, keys: Mapping[str, Key] = KEYS) -> tuple[str, ...]:
    """Returns the names of keys and sections in a section; `""` is the whole dictionary."""
    prefix = f"{section}." if section else ""
    inside = (path.removeprefix(prefix) for path in keys if path.startswith(prefix))
    return tuple(dict.fromkeys(rest.partition(".")[0] for rest in inside))


NORM: Mapping[str, Hint] = {
    name: KEYS[f"resnet.batch_norm.{name}"].type for name in names_in("resnet.batch_norm")
}
"""Keys of each block's own `batch_norm` in 2020."""
