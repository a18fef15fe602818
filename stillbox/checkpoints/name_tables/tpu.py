"""Google's classifiers and detectors for TPUs, torchvision's ResNet, and EfficientNet-Lite.

The layers of the detectors have the default names of `tf.layers`, which numbers the layers of a
scope in order of creation. EfficientNet-Lite is the authors', where a block numbers its layers of a
kind from the second on, and the PyTorch package's `efficientnet-lite-pytorch`. Both number the
blocks of all stacks through, from 0.

Sources: `tpu/models/official/detection/modeling/architecture` (RetinaNet, NAS-FPN; SpineNet in
`spinenet.py`, SpineNet-MBConv in `spinenet_mbconv.py`), Google's ResNet-34 SSD for MLPerf Training,
`tpu/models/official/efficientnet/efficientnet_model.py`, and the package's `model.py`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from stillbox.checkpoints.name_tables.rules import (
    TF_LAYERS,
    TORCH,
    ArrayShapes,
    BackboneTable,
    Context,
    LayerRule,
    has_norm,
    register_backbone,
    register_part,
)
from stillbox.experiment import schema
from stillbox.experiment.schema.necks import Pyramid


class NumberedLayer(NamedTuple):
    """A convolution."""

    place: tuple[int, ...]
    """Sorts the layers of a model by creation in the other codebase."""
    scope: str
    """Below `{root}`, with a slash at its end unless empty."""
    path: str
    """Path of the layer in our detector."""
    depthwise: bool = False


def number_layers(layers: Iterable[NumberedLayer], shapes: ArrayShapes) -> tuple[LayerRule, ...]:
    """Returns a rule for each layer.

    Convolutions, depthwise convolutions and batch norms of a scope are counted apart. `shapes`, of
    all arrays by path, tell which layers have a batch norm.
    """
    counts: Counter[str] = Counter()

    def number(name: str) -> str:
        counts[name] += 1
        return f"{{root}}{name}_{counts[name] - 1}" if counts[name] > 1 else f"{{root}}{name}"

    rules = []
    for layer in sorted(layers):
        conv = number(layer.scope + ("depthwise_conv2d" if layer.depthwise else "conv2d"))
        norm = number(layer.scope + "batch_normalization") if has_norm(layer.path, shapes) else ""
        rules.append(LayerRule(re.escape(layer.path), conv, norm, layer.depthwise))
    return tuple(rules)


_RESNET_KERNEL = re.compile(
    r"(backbone\.(?:stem|group_(\d+)\.block_(\d+)\.(?:shortcut|conv_(\d+))))\.kernel"
)


def _number_resnet(context: Context) -> tuple[LayerRule, ...]:
    """Numbers the layers in order: stem, then block by block, a block's shortcut first."""
    matches = filter(None, map(_RESNET_KERNEL.fullmatch, context.shapes))
    layers = [NumberedLayer(tuple(int(n or 0) for n in m.groups()[1:]), "", m[1]) for m in matches]
    return number_layers(layers, context.shapes)


_LOGITS = "classifier's logits"
_UNUSED = "layer behind the last that this model uses"
# Classifiers' checkpoints have no root, or this one; detectors' have one with the depth.
_ROOTS = ("", "resnet/")
_DETECTOR_ROOT = "resnet{depth}/"
_RESNET_BLOCK = r"backbone\.group_(\d+)\.block_(\d+)\."
# torchvision counts blocks from 0.
_TORCH_BLOCK = "{root}layer{0}.{1:-1}."

register_backbone(
    schema.ResNet,
    BackboneTable(
        convention=TF_LAYERS,
        roots={"classification": (*_ROOTS, _DETECTOR_ROOT), "detection": (_DETECTOR_ROOT, *_ROOTS)},
        rules=_number_resnet,
        codebase="tpu_detection",
        expected={"backbone.pool_padding": "same"},
        ignored={
            r"(.*/)?dense/(kernel|bias)": _LOGITS,
            r"(.*/)?(conv2d|batch_normalization)_\d+/.*": _UNUSED,
        },
    ),
    BackboneTable(
        convention=TORCH,
        roots={"classification": ("",), "detection": ("",)},
        rules=(
            LayerRule(r"backbone\.stem", "{root}conv1", norm="{root}bn1"),
            LayerRule(
                _RESNET_BLOCK + "shortcut",
                _TORCH_BLOCK + "downsample.0",
                norm=_TORCH_BLOCK + "downsample.1",
            ),
            LayerRule(
                _RESNET_BLOCK + r"conv_(\d+)", _TORCH_BLOCK + "conv{2}", norm=_TORCH_BLOCK + "bn{2}"
            ),
        ),
        any_prefix=True,
        expected={"backbone.pool_padding": "symmetric"},
        ignored={
            r"(.*\.)?num_batches_tracked": "count of batches, which nothing here uses",
            r"(.*\.)?fc\.(weight|bias)": _LOGITS,
            r"(.*\.)?layer\d+\..*": _UNUSED,
            r"optimizer\..*": "optimizer slot",
        },
    ),
)


_SPINENET_KERNEL = re.compile(
    r"(?P<path>backbone\.(?:stem|endpoint_(?P<level>\d+)|node_(?P<node>\d+)\."
    r"(?:resample_(?P<source>\d+)|(?:group\.)?block_(?P<block>\d+))\."
    r"(?P<layer>[a-z]+)(?:_(?P<step>\d+))?))\.kernel"
)
# Order of creation in a block, and in the resampling of a map to another level.
_SPINENET_BLOCK: tuple[str, ...] = (
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


def _spinenet_layers(
    shapes: ArrayShapes, resample: str, depthwise: tuple[str, ...]
) -> Iterator[NumberedLayer]:
    """Yields the convolutions: stem, nodes, endpoints."""
    for match in filter(None, map(_SPINENET_KERNEL.fullmatch, shapes)):
        level, block, step = (int(match[name] or 0) for name in ("level", "block", "step"))
        node = int(match["node"] or -1)
        policy, order, scope = node - _STEM_NODES, _SPINENET_BLOCK, ""
        if match["source"]:
            order = _RESAMPLE
            scope = f"sub_policy{policy}/{resample}_resample_{policy}_{match['source']}/"
        elif policy >= 0:
            scope = f"sub_policy{policy}/scale_permuted_block_{node}/"
        layer = order.index(match["layer"]) if match["layer"] else 0
        place = (level, node, block, layer, step)
        yield NumberedLayer(place, scope, match["path"], match["layer"] in depthwise)


def _register_spinenet(
    config: type, root: str, resample: str, depthwise: tuple[str, ...] = ()
) -> None:
    table = BackboneTable(
        convention=TF_LAYERS,
        roots={"classification": ("", root), "detection": (root, "")},
        rules=lambda context: number_layers(
            _spinenet_layers(context.shapes, resample, depthwise), context.shapes
        ),
        codebase="tpu_detection",
        ignored={r"(.*/)?dense/(kernel|bias)": "classifier's logits"},
    )
    register_backbone(config, table)


_register_spinenet(schema.SpineNet, "spinenet/", "resample_with_alpha")
_register_spinenet(
    schema.SpineNetMbConv,
    "spinenet_mbconv/",
    "resample_with_sepconv",
    depthwise=("depthwise", "halve"),
)


_register_part = partial(register_part, "tpu_detection")

# The first extra layers are block 7, and the backbone's last map is level 3.
_register_part(
    schema.SsdExtraLayers, (LayerRule(r"neck\.extra_(\d+)_(\dx\d)", "ssd/block{0:+6}-conv{1}"),)
)
_register_part(
    schema.ConvolutionalHead,
    (
        LayerRule(r"head\.map_(\d+)\.class_", "ssd/class_net/class-{0:+3}"),
        LayerRule(r"head\.map_(\d+)\.box", "ssd/box_net/box-{0:+3}"),
    ),
)
_register_part(
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


_register_part(schema.WeightSharedHead, _shared_head)


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
    yield LayerRule(ours, f"{scope}/conv", norm=f"{scope}/bn")
    for index, name in enumerate(("shortcut", "conv_1", "conv_2", "conv_3")):
        number = f"_{index}" if index else ""
        norm = f"{scope}/batch_normalization{number}"
        yield LayerRule(rf"{ours}\.{name}", f"{scope}/conv2d{number}", norm=norm)


_register_part(schema.NasFpn, _nas_fpn)


def _lite_blocks(context: Context) -> Iterator[tuple[str, int, bool]]:
    """Yields pattern and number of each block, and whether it has an expansion."""
    backbone: schema.EfficientNetLite = context.parts["backbone"]
    for number, name in enumerate(backbone.layers[1:]):
        path = f"backbone.{name}"
        yield re.escape(path), number, f"{path}.expand.kernel" in context.shapes


def _lite_tensorflow_rules(context: Context) -> tuple[LayerRule, ...]:
    norm = "tpu_batch_normalization"
    rules = [LayerRule(r"backbone\.stem", "{root}stem/conv2d", norm=f"{{root}}stem/{norm}")]
    for pattern, number, expanded in _lite_blocks(context):
        scope = f"{{root}}blocks_{number}"
        second, third = ("_1", "_2") if expanded else ("", "_1")
        last = "_1" if expanded else ""
        rules += [
            LayerRule(rf"{pattern}\.expand", f"{scope}/conv2d", norm=f"{scope}/{norm}"),
            LayerRule(
                rf"{pattern}\.depthwise",
                f"{scope}/depthwise_conv2d",
                norm=f"{scope}/{norm}{second}",
                depthwise=True,
            ),
            LayerRule(
                rf"{pattern}\.project", f"{scope}/conv2d{last}", norm=f"{scope}/{norm}{third}"
            ),
        ]
    return tuple(rules)


def _lite_torch_rules(context: Context) -> tuple[LayerRule, ...]:
    rules = [LayerRule(r"backbone\.stem", "{root}_conv_stem", norm="{root}_bn0")]
    for pattern, number, _ in _lite_blocks(context):
        scope = f"{{root}}_blocks.{number}"
        rules += [
            LayerRule(
                rf"{pattern}\.{layer}",
                f"{scope}._{layer}_conv",
                norm=f"{scope}._bn{index}",
                depthwise=layer == "depthwise",
            )
            for index, layer in enumerate(("expand", "depthwise", "project"))
        ]
    return tuple(rules)


_LITE_ROOTS = ("", *(f"efficientnet-{size}/" for size in schema.EFFICIENTNET_LITE_SIZES))

register_backbone(
    schema.EfficientNetLite,
    BackboneTable(
        convention=TF_LAYERS,
        roots={"classification": _LITE_ROOTS, "detection": _LITE_ROOTS},
        rules=_lite_tensorflow_rules,
        ignored={
            r"(.*/)?head/dense/(kernel|bias)": "classifier's logits",
            r"(.*/)?(head|blocks_\d+)/.*": _UNUSED,
        },
    ),
    BackboneTable(
        convention=TORCH,
        roots={"classification": ("",), "detection": ("",)},
        rules=_lite_torch_rules,
        any_prefix=True,
        ignored={
            r"(.*\.)?num_batches_tracked": "count of batches, which nothing here uses",
            r"(.*\.)?_fc\.(weight|bias)": "classifier's logits",
            r"(.*\.)?(_conv_head|_bn1|_blocks\.\d+)\..*": _UNUSED,
            r"optimizer\..*": "optimizer slot",
        },
    ),
)
