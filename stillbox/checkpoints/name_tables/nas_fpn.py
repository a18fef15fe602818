"""NAS-FPN: its nodes are policies by their order, and blocks by the maps before them."""

from collections.abc import Iterator
from functools import partial
from typing import cast

from stillbox.checkpoints.name_tables.rules import TF_LAYERS, Context, LayerName
from stillbox.experiment import schema

_layer = partial(LayerName, spelling=TF_LAYERS)
_BOTTLENECK = ("shortcut", "conv_1", "conv_2", "conv_3")


def layers(context: Context) -> tuple[LayerName, ...]:
    """Returns the rules."""
    neck = cast(schema.NasFpn, context.model.neck)
    # TensorFlow's own names, where the original gives none.
    squeeze = "separable_conv2d" if neck.depthwise else "conv2d"
    rules = [_squeeze(r"neck\.resample_(\d+)", "resample_l{0}", squeeze)]
    for policy, node in enumerate(neck.cell):
        number = neck.count_maps() + policy
        ours = rf"neck\.cell_(\d+)\.node_{number}\."
        theirs = f"fpn_cells/cell_{{0}}/sub_policy{policy}/"
        rules += _block(ours + "block", f"{theirs}op_after_combine{number}")
        for place, source in enumerate(node.inputs):
            scope = f"{theirs}resample_{place}_{source}_{number}"
            rules.append(_squeeze(f"{ours}resample_{place}", scope, squeeze))
        scope = f"{theirs}resample_fa_{policy}_{{1}}"
        rules.append(_squeeze(rf"{ours}resample_joined_(\d+)", scope, squeeze))
    return tuple(rules)


def _squeeze(ours: str, scope: str, layer: str) -> LayerName:
    return _layer(ours, f"{scope}/{layer}", norm=f"{scope}/bn")


def _block(ours: str, scope: str) -> Iterator[LayerName]:
    """Yields the rules of a convolution and of a bottleneck."""
    yield _layer(ours, f"{scope}/conv", norm=f"{scope}/bn")
    for index, name in enumerate(_BOTTLENECK):
        number = f"_{index}" if index else ""
        norm = f"{scope}/batch_normalization{number}"
        yield _layer(rf"{ours}\.{name}", f"{scope}/conv2d{number}", norm=norm)
