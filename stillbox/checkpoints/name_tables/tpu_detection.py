"""Necks and heads of Google's detectors for TPUs.

Source: `tpu/models/official/detection/modeling/architecture` (RetinaNet, NAS-FPN) and Google's
ResNet-34 SSD for MLPerf Training.
"""

from collections.abc import Iterator
from functools import partial

from stillbox.checkpoints.name_tables.rules import Context, LayerRule, register_part
from stillbox.experiment import schema
from stillbox.experiment.schema.necks import Pyramid

_register = partial(register_part, "tpu_detection")

# The first extra layers are block 7, and the backbone's last map is level 3.
_register(schema.SsdLayers, (LayerRule(r"neck\.extra_(\d+)_(\dx\d)", "ssd/block{0:+6}-conv{1}"),))
_register(
    schema.ConvolutionalHead,
    (
        LayerRule(r"head\.map_(\d+)\.class_", "ssd/class_net/class-{0:+3}"),
        LayerRule(r"head\.map_(\d+)\.box", "ssd/box_net/box-{0:+3}"),
    ),
)
_register(
    schema.RetinaNetFpn,
    (
        LayerRule(r"neck\.lateral_(\d+)", "fpn/l{0}"),
        LayerRule(r"neck\.output_(\d+)", "fpn/post_hoc_d{0}"),
        LayerRule(r"neck\.coarse_(\d+)", "fpn/p{0}"),
        # A batch norm belongs to the level, not to a convolution.
        LayerRule(r"neck", "fpn", norm="fpn/p{norm}-bn"),
    ),
)


def _shared_head(context: Context) -> tuple[LayerRule, ...]:
    """Names batch norms after levels, so that maps without levels have no names."""
    neck = context.parts["neck"]
    if not isinstance(neck, Pyramid):
        return ()
    rules = []
    for predictor, tower, theirs in (
        ("class_", "class_tower", "class"),
        ("box", "box_tower", "box"),
    ):
        scope = f"retinanet/{theirs}_net/{theirs}-"
        norm = f"{scope}{{0}}-{{norm:+{neck.min_level}}}"
        rules += [
            LayerRule(rf"head\.{predictor}", f"{scope}predict"),
            LayerRule(rf"head\.{tower}\.layer_(\d+)(?:\.conv)?", f"{scope}{{0}}", norm=norm),
        ]
    return tuple(rules)


_register(schema.WeightSharedHead, _shared_head)


def _nas_fpn(context: Context) -> tuple[LayerRule, ...]:
    """Names nodes as policies by their order, and blocks by the number of maps before them."""
    neck: schema.NasFpn = context.parts["neck"]
    # TensorFlow's default names.
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


def _squeeze(ours: str, scope: str, layer: str) -> LayerRule:
    return LayerRule(ours, f"{scope}/{layer}", norm=f"{scope}/bn")


def _block(ours: str, scope: str) -> Iterator[LayerRule]:
    """Yields the rules of both kinds of block, a convolution and a bottleneck."""
    yield LayerRule(ours, f"{scope}/conv", norm=f"{scope}/bn")
    for index, name in enumerate(("shortcut", "conv_1", "conv_2", "conv_3")):
        number = f"_{index}" if index else ""
        norm = f"{scope}/batch_normalization{number}"
        yield LayerRule(rf"{ours}\.{name}", f"{scope}/conv2d{number}", norm=norm)


_register(schema.NasFpn, _nas_fpn)
