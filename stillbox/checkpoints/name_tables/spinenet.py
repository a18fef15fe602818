"""SpineNet and SpineNet-MBConv as Google's detectors for TPUs name them (fact sheet 9 of those).

Every scope numbers its layers in the order in which the original made them: convolutions,
depthwise ones and batch norms each by themselves.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from stillbox.checkpoints.name_tables import tf_layers
from stillbox.checkpoints.name_tables.rules import (
    TF_LAYERS,
    BackboneNames,
    Context,
    LayerName,
    Shapes,
)

_KERNEL = re.compile(
    r"backbone\.(?:stem|endpoint_(?P<level>\d+)|node_(?P<node>\d+)\."
    r"(?:resample_(?P<source>\d+)|(?:group\.)?block_(?P<block>\d+))\."
    r"(?P<layer>[a-z]+)(?:_(?P<step>\d+))?)\.kernel"
)
# Order of the layers in a block, and in what brings a map to another level.
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


class _Place(NamedTuple):
    """Where a layer stands; sorted, places are in the order of the original."""

    level: int
    """Of an endpoint, 0 for all before them."""
    node: int
    """-1 for the stem."""
    block: int
    layer: int
    step: int


class _Layer(NamedTuple):
    place: _Place
    scope: str
    path: str
    depthwise: bool


def _layers(shapes: Shapes, resample: str, depthwise: tuple[str, ...]) -> Iterator[_Layer]:
    """Yields the convolutions.

    Args:
        shapes: of all arrays by path.
        resample: what the original calls the way from level to level.
        depthwise: names of the layers that are.
    """
    for path in shapes:
        match = _KERNEL.fullmatch(path)
        if not match:
            continue
        found = {name: int(match[name] or 0) for name in ("level", "node", "block", "step")}
        node = found["node"] if match["node"] else -1
        order, scope = _BLOCK, ""
        if match["source"]:
            policy, order = node - _STEM_NODES, _RESAMPLE
            scope = f"sub_policy{policy}/{resample}_resample_{policy}_{match['source']}/"
        elif node >= _STEM_NODES:
            scope = f"sub_policy{node - _STEM_NODES}/scale_permuted_block_{node}/"
        layer = order.index(match["layer"]) if match["layer"] else 0
        place = _Place(found["level"], node, found["block"], layer, found["step"])
        yield _Layer(place, scope, path.removesuffix(".kernel"), match["layer"] in depthwise)


def _numbered(
    context: Context, resample: str, depthwise: tuple[str, ...] = ()
) -> tuple[LayerName, ...]:
    counts: Counter[str] = Counter()

    def number(name: str) -> str:
        counts[name] += 1
        return f"{name}_{counts[name] - 1}" if counts[name] > 1 else name

    rules = []
    for _, scope, path, is_depthwise in sorted(_layers(context.shapes, resample, depthwise)):
        conv = number(scope + ("depthwise_conv2d" if is_depthwise else "conv2d"))
        normed = f"{path}.norm.mean" in context.shapes
        rules.append(
            LayerName(
                re.escape(path),
                "{root}" + conv,
                kernel="depthwise_kernel" if is_depthwise else None,
                norm="{root}" + number(scope + "batch_normalization") if normed else "",
                spelling=TF_LAYERS,
            )
        )
    return tuple(rules)


def _names(root: str, resample: str, depthwise: tuple[str, ...] = ()) -> BackboneNames:
    return BackboneNames(
        spelling=TF_LAYERS,
        roots={"classification": ("", root), "detection": (root, "")},
        layers=lambda context: _numbered(context, resample, depthwise),
        family=tf_layers.FAMILY,
        unwanted={r"(.*/)?dense/(kernel|bias)": "classifier's logits"},
    )


SPINENET = _names("spinenet/", "resample_with_alpha")
MBCONV = _names("spinenet_mbconv/", "resample_with_sepconv", depthwise=("depthwise", "halve"))
