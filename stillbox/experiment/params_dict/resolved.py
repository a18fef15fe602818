"""The merged dictionary as text, as the original left `params.yaml` in its model directory."""

from typing import Any

from stillbox.experiment.params_dict.keys import BLOCKS, FINAL, OLD
from stillbox.experiment.params_dict.merging import Params
from stillbox.experiment.yaml_config import dump


def resolved_text(params: Params) -> str:
    """Returns YAML that reads back as the same experiment.

    All keys of the last version are there, in its order, with their defaults unless they are given;
    behind them, in their sections, the keys of 2020 that it cannot replace.
    """
    unused = {name for name in BLOCKS if name not in params.used_blocks()}
    old = (path for path in OLD if path in params.given and path not in FINAL)
    tree: dict[str, Any] = {}
    for path in (*FINAL, *(path for path in old if path.partition(".")[0] not in unused)):
        *sections, name = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        value = params.value(path)
        place[name] = list(value) if isinstance(value, tuple) else value
    return dump(tree)
