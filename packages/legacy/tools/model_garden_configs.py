"""Makes the golden of TensorFlow Model Garden's experiments: every field, its type and its default.

Run with the original in an environment of its own; it needs TensorFlow, and nothing of stillbox:

    pip install tensorflow-cpu==2.15.1 "tf-models-official==2.15.0"
    cd packages/legacy
    python tools/model_garden_configs.py > tests/goldens/model_garden_configs.json

Source: `official/vision/configs/retinanet.py`, `official/core/config_definitions.py` and
`official/modeling/optimization/configs` (tensorflow/models).
"""

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EXPERIMENTS = (
    "retinanet",
    "retinanet_resnetfpn_coco",
    "retinanet_spinenet_coco",
    "retinanet_mobile_coco",
)


def fields(config: "DataclassInstance", prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yields dotted path, value and type of every field; unset sections are followed too."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        path = prefix + field.name
        inner: list[Any] = [
            kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)
        ]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from fields(value, f"{path}.")
        elif value is None and inner and dataclasses.fields(inner[0])[:1]:
            yield path, None, "section"
            yield from fields(inner[0](), f"{path}.")
        else:
            yield (
                path,
                value,
                str(hint).replace("typing.", "").removeprefix("<class '").rstrip("'>"),
            )


def main() -> None:
    """Prints the golden."""
    from official.core import exp_factory
    from official.vision.configs import retinanet  # noqa: F401  (registers the experiments)

    configs = {name: list(fields(exp_factory.get_exp_config(name))) for name in EXPERIMENTS}
    base = {path: (value, kind) for path, value, kind in configs["retinanet"]}
    golden = {
        "fields": {path: {"type": kind, "default": value} for path, (value, kind) in base.items()},
        "experiments": {
            name: {path: value for path, value, _ in rows if value != base[path][0]}
            for name, rows in configs.items()
        },
    }
    json.dump(golden, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
