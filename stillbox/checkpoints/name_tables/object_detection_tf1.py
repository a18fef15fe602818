"""The TensorFlow Object Detection API in TF1 checkpoints, with the backbones of TF-slim.

Backbones: MobileNet v1, v2 and v3, MobileNet for Edge TPUs, ResNet v1, Inception v2 and v3,
and Inception ResNet v2 of TF-slim (`research/slim/nets`), and MobileDet of the Object Detection API
(`object_detection/models/ssd_mobiledet_feature_extractor.py`).

Necks, heads and stages: `object_detection/models/feature_map_generators.py`,
`object_detection/predictors/convolutional_box_predictor.py` and
`object_detection/meta_architectures/faster_rcnn_meta_arch.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from stillbox.checkpoints.name_tables.rules import (
    SLIM,
    BackboneTable,
    Context,
    LayerRule,
    Rules,
    register_backbone,
    register_part,
    register_scopes,
)
from stillbox.experiment import schema
from stillbox.models.backbones.mobiledet import mobiledet_blocks
from stillbox.models.backbones.mobilenet_v3 import Block


def register_network(
    config: type, root: str, rules: Rules, tap_name: Callable[[str], str], coarse_layer: str = ""
) -> None:
    """Registers the names of a network of the first generation; see `BackboneTable`."""
    table = BackboneTable(
        convention=SLIM,
        roots={"classification": (root,), "detection": (f"{{scope}}{root}",)},
        rules=rules,
        codebase="object_detection",
        tap_name=tap_name,
        coarse_layer=coarse_layer,
        expected={"neck.top_down": "sum"},
    )
    register_backbone(config, table)


def _mobilenet_v1(pattern: str, name: str, *, depthwise: bool = False) -> LayerRule:
    # The operations of a layer are twice in the network's scope.
    return LayerRule(
        pattern, f"{{root}}/{name}", depthwise=depthwise, operations=f"{{root}}/MobilenetV1/{name}"
    )


register_network(
    schema.MobileNetV1,
    root="MobilenetV1",
    rules=(
        _mobilenet_v1(r"backbone\.conv_0", "Conv2d_0"),
        _mobilenet_v1(r"backbone\.conv_(\d+)_depthwise", "Conv2d_{0}_depthwise", depthwise=True),
        _mobilenet_v1(r"backbone\.conv_(\d+)_pointwise", "Conv2d_{0}_pointwise"),
    ),
    # conv_13_pointwise is called Conv2d_13_pointwise.
    tap_name=lambda tap: tap.replace("conv_", "Conv2d_", 1),
    coarse_layer="Conv2d_{0:+13}",
)


def _mobilenet_v2_tap(tap: str) -> str:
    """Layers are counted from 1: the root, 17 blocks, the last convolution."""
    if tap == "conv_1":
        return "layer_19"
    block, _, part = tap.removeprefix("block_").partition("_")
    return f"layer_{int(block) + 2}" + ("/expansion_output" if part == "expand" else "")


_MOBILENET_V2_BLOCK = r"backbone\.block_(\d+)_"
register_network(
    schema.MobileNetV2,
    root="MobilenetV2",
    rules=(
        LayerRule(r"backbone\.conv_0", "{root}/Conv"),
        LayerRule(r"backbone\.conv_1", "{root}/Conv_1"),
        # The first block has no number.
        LayerRule(r"backbone\.block_0_depthwise", "{root}/expanded_conv/depthwise", depthwise=True),
        LayerRule(r"backbone\.block_0_project", "{root}/expanded_conv/project"),
        LayerRule(
            _MOBILENET_V2_BLOCK + "depthwise", "{root}/expanded_conv_{0}/depthwise", depthwise=True
        ),
        LayerRule(_MOBILENET_V2_BLOCK + "(expand|project)", "{root}/expanded_conv_{0}/{1}"),
        LayerRule(
            _MOBILENET_V2_BLOCK + "sum", "{root}/expanded_conv_{0}/post_activation_bypass_quant"
        ),
    ),
    tap_name=_mobilenet_v2_tap,
    coarse_layer="Conv2d_{0:+19}",
)

# The second stage of a detector continues the network that its backbone begins.
_NETWORK = r"(?:backbone|box_head)\."
_UNIT = _NETWORK + r"block_(\d+)\.unit_(\d+)\."
_BOTTLENECK = "{root}/block{0}/unit_{1}/bottleneck_v1"
register_network(
    schema.ResNetV1,
    root="resnet_v1_{depth}",
    rules=(
        LayerRule(r"backbone\.root", "{root}/conv1"),
        LayerRule(_UNIT + "shortcut", _BOTTLENECK + "/shortcut"),
        LayerRule(_UNIT + r"conv_(\d)", _BOTTLENECK + "/conv{2}"),
    ),
    # block_4 is called block4.
    tap_name=lambda tap: tap.replace("_", ""),
    coarse_layer="block{0:+4}",
)

register_network(
    schema.InceptionV2,
    root="InceptionV2",
    rules=(
        LayerRule(r"backbone\.conv_1a", "{root}/Conv2d_1a_7x7"),
        LayerRule(r"backbone\.conv_2b", "{root}/Conv2d_2b_1x1"),
        LayerRule(r"backbone\.conv_2c", "{root}/Conv2d_2c_3x3"),
        LayerRule(
            _NETWORK + r"mixed_(\w+)\.branch_(\d)\.conv_(\w+)",
            "{root}/Mixed_{0}/Branch_{1}/Conv2d_{2}",
        ),
    ),
    # mixed_5c is called Mixed_5c.
    tap_name=str.capitalize,
)

_INSIDE = r"backbone\.mixed_(\w+)\.branch_(\d)\."
_BRANCH = "{root}/Mixed_{0}/Branch_{1}/"
register_network(
    schema.InceptionV3,
    root="InceptionV3",
    rules=(
        LayerRule(r"backbone\.conv_3b", "{root}/Conv2d_3b_1x1"),
        LayerRule(r"backbone\.conv_(\w+)", "{root}/Conv2d_{0}_3x3"),
        # The original's slips.
        LayerRule(r"backbone\.mixed_(5c)\.branch_(1)\.conv_0a_1x1", _BRANCH + "Conv2d_0b_1x1"),
        LayerRule(r"backbone\.mixed_(5c)\.branch_(1)\.conv_0b_5x5", _BRANCH + "Conv_1_0c_5x5"),
        LayerRule(r"backbone\.mixed_(6a)\.branch_(\d)\.conv_1a_3x3", _BRANCH + "Conv2d_1a_1x1"),
        LayerRule(r"backbone\.mixed_(7b)\.branch_(1)\.conv_0c_3x1", _BRANCH + "Conv2d_0b_3x1"),
        LayerRule(_INSIDE + r"conv_(\w+)", _BRANCH + "Conv2d_{2}"),
    ),
    # mixed_7c is called Mixed_7c.
    tap_name=str.capitalize,
)

_RESIDUAL_BRANCH = r"branch_(\d)\.conv_(\w+)"


def _inception_resnet(context: Context) -> tuple[LayerRule, ...]:
    """Returns rules; slim numbers the repetitions of blocks in each scope anew.

    The second stage of a detector has a scope of its own, a classifier's network one for all.
    """
    repeated = "Repeat" if "SecondStage" in context.roots.get("box_head", "") else "Repeat_2"
    last = r"box_head\.block8_10\."
    rules = [
        *_residual_block(last, "{root}/Block8", 0),
        *_residual_block(r"backbone\.block35_(\d+)\.", "{root}/Repeat/block35_{0}", 1),
        *_residual_block(r"backbone\.block17_(\d+)\.", "{root}/Repeat_1/block17_{0}", 1),
        *_residual_block(r"box_head\.block8_(\d+)\.", f"{{root}}/{repeated}/block8_{{0}}", 1),
        LayerRule(r"backbone\.conv_(3b)", "{root}/Conv2d_{0}_1x1"),
        LayerRule(r"backbone\.conv_(\w+)", "{root}/Conv2d_{0}_3x3"),
        LayerRule(r"box_head\.conv_7b", "{root}/Conv2d_7b_1x1"),
        LayerRule(
            _NETWORK + r"mixed_(\w+)\." + _RESIDUAL_BRANCH, "{root}/Mixed_{0}/Branch_{1}/Conv2d_{2}"
        ),
    ]
    return tuple(rules)


def _residual_block(ours: str, theirs: str, groups: int) -> Iterator[LayerRule]:
    branch, conv = groups, groups + 1
    yield LayerRule(ours + _RESIDUAL_BRANCH, f"{theirs}/Branch_{{{branch}}}/Conv2d_{{{conv}}}")
    yield LayerRule(ours + "up", f"{theirs}/Conv2d_1x1")


register_network(
    schema.InceptionResNetV2,
    root="InceptionResnetV2",
    rules=_inception_resnet,
    # block17_20 is called PreAuxLogits.
    tap_name=lambda tap: "PreAuxLogits" if tap == "block17_20" else tap.capitalize(),
)


def _slim_blocks() -> Iterator[LayerRule]:
    # The first block has no number.
    for ours, theirs in (
        (r"backbone\.block_0\.()", "{root}/expanded_conv/"),
        (r"backbone\.block_(\d+)\.", "{root}/expanded_conv_{0}/"),
    ):
        yield LayerRule(ours + "depthwise", theirs + "depthwise", depthwise=True)
        yield LayerRule(ours + "(expand|project)", theirs + "{1}")
        yield LayerRule(ours + "squeeze", theirs + "squeeze_excite/Conv")
        yield LayerRule(ours + "excite", theirs + "squeeze_excite/Conv_1")


def _slim_tap(tap: str, last: str) -> str:
    """Layers are counted from 1: the root, the blocks, the last convolution."""
    if tap == "conv_1":
        return last
    block, _, part = tap.removeprefix("block_").partition("_")
    return f"layer_{int(block) + 2}" + ("/expansion_output" if part else "")


for _config, _root, _last in (
    (schema.MobileNetV3Large, "MobilenetV3", "layer_17"),
    (schema.MobileNetV3Small, "MobilenetV3", "layer_13"),
    (schema.MobileNetEdgeTpu, "MobilenetEdgeTPU", "layer_24"),
):
    register_network(
        _config,
        root=_root,
        rules=(
            LayerRule(r"backbone\.conv_0", "{root}/Conv"),
            LayerRule(r"backbone\.conv_1", "{root}/Conv_1"),
            *_slim_blocks(),
        ),
        tap_name=partial(_slim_tap, last=_last),
        # The original has no pyramid on these networks.
        coarse_layer="Conv2d_{0}",
    )


def _mobiledet(context: Context) -> tuple[LayerRule, ...]:
    """Names layers by default names: blocks of a kind are numbered, and convolutions."""
    rules, counts = [LayerRule(r"backbone\.conv_0", "{root}/Conv")], Counter[str]()
    for index, block in enumerate(mobiledet_blocks(context.parts["backbone"])):
        kind = _kind(block)
        scope = f"{{root}}/{kind}_{counts[kind]}" if counts[kind] else f"{{root}}/{kind}"
        counts[kind] += 1
        ours = rf"backbone\.block_{index}\."
        gate = f"{scope}/SqueezeExcite/Conv"
        rules += [
            *(LayerRule(ours + name, f"{scope}/{conv}") for name, conv in _CONVOLUTIONS[kind]),
            LayerRule(ours + "depthwise", f"{scope}/SeparableConv2d", depthwise=True),
            LayerRule(ours + "squeeze", gate),
            LayerRule(ours + "excite", f"{gate}_1"),
        ]
    return tuple(rules)


def _kind(block: Block) -> str:
    if block.form == "inverted":
        return "IBN" if block.wide > block.inputs else "IBNNoExpansion"
    return {"fused": "FusedConv", "tucker": "TuckerConv"}[block.form]


def _renamed(tap: str, names: Mapping[str, str]) -> str:
    return names.get(tap, tap)


_CONVOLUTIONS = {
    "IBN": (("expand", "Conv"), ("project", "Conv_1")),
    "IBNNoExpansion": (("project", "Conv"),),
    "FusedConv": (("expand", "Conv"), ("project", "Conv_1")),
    "TuckerConv": (("reduce", "Conv"), ("expand", "Conv_1"), ("project", "Conv_2")),
}
for _network, _root in (
    (schema.MobileDetCpu, "MobileDetCPU"),
    (schema.MobileDetGpu, "MobileDetGPU"),
    (schema.MobileDetDsp, "MobileDetDSP"),
    (schema.MobileDetEdgeTpu, "MobileDetEdgeTPU"),
):
    # Maps are called after their levels.
    _names = {layer: f"C{level}" for level, layer in _network.levels.items()}
    register_network(
        _network,
        root=_root,
        rules=_mobiledet,
        tap_name=partial(_renamed, names=_names),
        coarse_layer="Conv2d_{0}",
    )


_register_part = partial(register_part, "object_detection")
_register_scopes = partial(register_scopes, "object_detection")
_register_scopes(schema.OneStage, dict.fromkeys(("backbone", "neck"), "FeatureExtractor/"))
_register_scopes(
    schema.FasterRcnn,
    {"backbone": "FirstStageFeatureExtractor/", "box_head": "SecondStageFeatureExtractor/"},
)


def _ssd_layers(context: Context) -> tuple[LayerRule, ...]:
    """Returns rules by the last tap, the size of a kernel and its own number of channels."""
    neck: schema.SsdExtraLayers = context.parts["neck"]
    rules = [LayerRule(r"neck\.extra_(\d+)_1x1", "{root}/{tap}_1_Conv2d_{0}_1x1_{channels}")]
    sizes = neck.extra_kernel_sizes or (3,) * len(neck.extra_depths)
    for index, size in enumerate(sizes, start=len(neck.taps)):
        ours = rf"neck\.extra_{index}"
        halved = f"{{root}}/{{tap}}_2_Conv2d_{index}_{size}x{size}_s2_{{channels}}"
        rules += [
            LayerRule(rf"{ours}_3x3", halved),
            LayerRule(
                rf"{ours}_depthwise",
                f"{halved}_depthwise",
                depthwise=True,
                channels_of=f"neck.extra_{index}_3x3",
            ),
        ]
    return tuple(rules)


_register_part(schema.SsdExtraLayers, _ssd_layers)
_register_part(
    schema.Ppn, (LayerRule(r"neck\.base", "FeatureExtractor/Base_Conv2d_1x1_{channels}"),)
)


def _fpn(context: Context) -> tuple[LayerRule, ...]:
    coarse = "{root}/fpn/bottom_up_" + context.table.coarse_layer
    return (
        LayerRule(r"neck\.(projection|smoothing)_(\d+)", "{root}/fpn/{0}_{1}"),
        LayerRule(r"neck\.coarse_(\d+)", coarse),
    )


_register_part(schema.Fpn, _fpn)

_MNASFPN = "FeatureExtractor/MnasFPN/"
_MNASFPN_BLOCK = r"neck\.cell_(\d+)\.block_(\d+)\."
_register_part(
    schema.MnasFpn,
    (
        # Coarser maps are no part of the original.
        LayerRule(r"neck\.coarse_1", _MNASFPN + "C6_Conv1x1"),
        LayerRule(
            _MNASFPN_BLOCK + r"input_(\d)", _MNASFPN + "cell_{0}/block_{1}/input_{2}/Conv1x1"
        ),
        LayerRule(_MNASFPN_BLOCK + "separable", _MNASFPN + "cell_{0}/block_{1}/SepConv"),
    ),
)

_MAP = r"head\.map_(\d+)\."
_PREDICTORS = (
    LayerRule(_MAP + "box", "BoxPredictor_{0}/BoxEncodingPredictor"),
    LayerRule(_MAP + "class_", "BoxPredictor_{0}/ClassPredictor"),
    LayerRule(
        _MAP + "box_depthwise", "BoxPredictor_{0}/BoxEncodingPredictor_depthwise", depthwise=True
    ),
    LayerRule(
        _MAP + "class_depthwise", "BoxPredictor_{0}/ClassPredictor_depthwise", depthwise=True
    ),
    LayerRule(_MAP + r"before_(\d+)", "BoxPredictor_{0}/Conv2d_{1}_1x1_{channels}"),
)
# With a single feature map, the original opens no scope for it.
_SINGLE_MAP_PREDICTORS = tuple(
    replace(rule, template=rule.template.removeprefix("BoxPredictor_{0}/")) for rule in _PREDICTORS
)


def _convolutional_head(context: Context) -> tuple[LayerRule, ...]:
    several = "head.map_1.box.kernel" in context.shapes
    return _PREDICTORS if several else _SINGLE_MAP_PREDICTORS


_register_part(schema.ConvolutionalHead, _convolutional_head)

_SHARED = "WeightSharedConvolutionalBoxPredictor"
# A batch norm belongs to the layer, its kernel to the convolution inside.
_tower = partial(LayerRule, norm="{scope}/BatchNorm/feature_{norm}")
_register_part(
    schema.WeightSharedHead,
    (
        LayerRule(r"head\.box", f"{_SHARED}/BoxPredictor"),
        LayerRule(r"head\.class_", f"{_SHARED}/ClassPredictor"),
        LayerRule(r"head\.projection_(\d+)(?:\.conv)?", f"{_SHARED}/ProjectionLayer/conv2d_{{0}}"),
        _tower(r"head\.tower\.layer_(\d+)(?:\.conv)?", f"{_SHARED}/PredictionTower/conv2d_{{0}}"),
        _tower(
            r"head\.box_tower\.layer_(\d+)(?:\.conv)?", f"{_SHARED}/BoxPredictionTower/conv2d_{{0}}"
        ),
        _tower(
            r"head\.class_tower\.layer_(\d+)(?:\.conv)?",
            f"{_SHARED}/ClassPredictionTower/conv2d_{{0}}",
        ),
    ),
)


def _proposals(context: Context) -> tuple[LayerRule, ...]:
    if "proposals.box_1.kernel" in context.shapes:
        return ()  # the original's feature pyramids have no TF1 checkpoints
    return (
        LayerRule(r"proposals\.conv", "Conv"),
        LayerRule(r"proposals\.box_0", "FirstStageBoxPredictor/BoxEncodingPredictor"),
        LayerRule(r"proposals\.class_0", "FirstStageBoxPredictor/ClassPredictor"),
    )


_register_part(schema.RPN, _proposals)
_register_part(
    schema.RoIHead,
    (
        LayerRule(r"box_predictor\.box", "SecondStageBoxPredictor/BoxEncodingPredictor"),
        LayerRule(r"box_predictor\.class_", "SecondStageBoxPredictor/ClassPredictor"),
    ),
)
