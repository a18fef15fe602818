"""SpineNet and SpineNet-MBConv of Google's detectors for TPUs.

Source: `tpu/models/official/detection/modeling/architecture/spinenet.py` and
`spinenet_mbconv.py`.
"""

import re
from collections.abc import Iterator

from stillbox.checkpoints.name_tables.numbering import Layer, number_layers
from stillbox.checkpoints.name_tables.rules import (
    TF_LAYERS,
    BackboneTable,
    Shapes,
    register_backbone,
)
from stillbox.experiment import schema

_KERNEL = re.compile(
    r"(?P<path>backbone\.(?:stem|endpoint_(?P<level>\d+)|node_(?P<node>\d+)\."
    r"(?:resample_(?P<source>\d+)|(?:group\.)?block_(?P<block>\d+))\."
    r"(?P<layer>[a-z]+)(?:_(?P<step>\d+))?))\.kernel"
)
# Order of creation in a block, and in the resampling of a map to another level.
_BLOCK: tuple[str, ...] = (
    "shortcut",
    "conv",
    "expand",
    "depthwise",
    "squeeze",
    "excite",
    "project",
)
_RESAMPLE = ("squeeze", "halve", "expand", "match")
_STEM_NODES = 2


def _layers(shapes: Shapes, resample: str, depthwise: tuple[str, ...]) -> Iterator[Layer]:
    """Yields the convolutions: stem, nodes, endpoints.

    Args:
        shapes: of all arrays by path.
        resample: scope of a resampling.
        depthwise: names of depthwise layers.
    """
    for match in filter(None, map(_KERNEL.fullmatch, shapes)):
        level, block, step = (int(match[name] or 0) for name in ("level", "block", "step"))
        node = int(match["node"] or -1)
        policy, order, scope = node - _STEM_NODES, _BLOCK, ""
        if match["source"]:
            order = _RESAMPLE
            scope = f"sub_policy{policy}/{resample}_resample_{policy}_{match['source']}/"
        elif policy >= 0:
            scope = f"sub_policy{policy}/scale_permuted_block_{node}/"
        layer = order.index(match["layer"]) if match["layer"] else 0
        place = (level, node, block, layer, step)
        yield Layer(place, scope, match["path"], match["layer"] in depthwise)


def _register(config: type, root: str, resample: str, depthwise: tuple[str, ...] = ()) -> None:
    table = BackboneTable(
        convention=TF_LAYERS,
        roots={"classification": ("", root), "detection": (root, "")},
        rules=lambda context: number_layers(
            _layers(context.shapes, resample, depthwise), context.shapes
        ),
        codebase="tpu_detection",
        ignored={r"(.*/)?dense/(kernel|bias)": "classifier's logits"},
    )
    register_backbone(config, table)


_register(schema.SpineNet, "spinenet/", "resample_with_alpha")
_register(
    schema.SpineNetMbConv,
    "spinenet_mbconv/",
    "resample_with_sepconv",
    depthwise=("depthwise", "halve"),
)
