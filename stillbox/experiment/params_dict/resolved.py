"""The merged dictionary as text, as the original left `params.yaml` in its model directory."""

from typing import Any

from stillbox.experiment.params_dict.blocks import BLOCKS, used_blocks
from stillbox.experiment.params_dict.keys import FINAL, OLD
from stillbox.experiment.params_dict.merging import Params
from stillbox.experiment.yaml_config import dump


def resolved_text(params: Params) -> str:
    """Returns YAML that reads back as the same experiment.

    All keys of the last version are there, in its order, with their defaults where nobody gave
    anything; behind them, in their sections, the keys of 2020 that it cannot replace.
    """
    used = {*used_blocks(params), *(name for name in _sections() if name not in BLOCKS)}
    tree: dict[str, Any] = {}
    for path in FINAL:
        _put(tree, path, params)
    for path in OLD:
        if path in params.given and path not in FINAL and path.partition(".")[0] in used:
            _put(tree, path, params)
    return dump(tree)


def _sections() -> set[str]:
    return {path.partition(".")[0] for path in FINAL}


def _put(tree: dict[str, Any], path: str, params: Params) -> None:
    *sections, name = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    value = params.value(path)
    tree[name] = list(value) if isinstance(value, tuple) else value
