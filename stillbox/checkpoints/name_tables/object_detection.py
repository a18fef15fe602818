"""Necks, heads and stages of the TensorFlow Object Detection API.

Source: `object_detection/models/feature_map_generators.py`,
`object_detection/predictors/convolutional_box_predictor.py` and
`object_detection/meta_architectures/faster_rcnn_meta_arch.py`.
"""

from dataclasses import replace
from functools import partial

from stillbox.checkpoints.name_tables.rules import (
    Context,
    LayerRule,
    register_part,
    register_scopes,
)
from stillbox.experiment import schema

_register = partial(register_part, "object_detection")
_register_scopes = partial(register_scopes, "object_detection")
_register_scopes(schema.OneStage, dict.fromkeys(("backbone", "neck"), "FeatureExtractor/"))
_register_scopes(
    schema.FasterRcnn,
    {"backbone": "FirstStageFeatureExtractor/", "box_head": "SecondStageFeatureExtractor/"},
)


def _ssd_layers(context: Context) -> tuple[LayerRule, ...]:
    """Returns rules by the last tap, the size of a kernel and its own number of channels."""
    neck: schema.SsdLayers = context.parts["neck"]
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


_register(schema.SsdLayers, _ssd_layers)
_register(schema.Ppn, (LayerRule(r"neck\.base", "FeatureExtractor/Base_Conv2d_1x1_{channels}"),))


def _fpn(context: Context) -> tuple[LayerRule, ...]:
    coarse = "{root}/fpn/bottom_up_" + context.table.coarse_layer
    return (
        LayerRule(r"neck\.(projection|smoothing)_(\d+)", "{root}/fpn/{0}_{1}"),
        LayerRule(r"neck\.coarse_(\d+)", coarse),
    )


_register(schema.Fpn, _fpn)

_MNASFPN = "FeatureExtractor/MnasFPN/"
_BLOCK = r"neck\.cell_(\d+)\.block_(\d+)\."
_register(
    schema.MnasFpn,
    (
        # Coarser maps are no part of the original.
        LayerRule(r"neck\.coarse_1", _MNASFPN + "C6_Conv1x1"),
        LayerRule(_BLOCK + r"input_(\d)", _MNASFPN + "cell_{0}/block_{1}/input_{2}/Conv1x1"),
        LayerRule(_BLOCK + "separable", _MNASFPN + "cell_{0}/block_{1}/SepConv"),
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


_register(schema.ConvolutionalHead, _convolutional_head)

_SHARED = "WeightSharedConvolutionalBoxPredictor"
# A batch norm belongs to the layer, its kernel to the convolution inside.
_tower = partial(LayerRule, norm="{scope}/BatchNorm/feature_{norm}")
_register(
    schema.WeightSharedHead,
    (
        LayerRule(r"head\.box", f"{_SHARED}/BoxPredictor"),
        LayerRule(r"head\.class_", f"{_SHARED}/ClassPredictor"),
        LayerRule(r"head\.projection_(\d+)(?:\.conv)?", f"{_SHARED}/ProjectionLayer/conv2d_{{0}}"),
        _tower(r"head\.tower\.layer_(\d+)(?:\.conv)?", f"{_SHARED}/PredictionTower/conv2d_{{0}}"),
        _tower(
            r"head\.box_tower\.layer_(\d+)(?:\.conv)?",
            f"{_SHARED}/BoxPredictionTower/conv2d_{{0}}",
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


_register(schema.ProposalStage, _proposals)
_register(
    schema.BoxStage,
    (
        LayerRule(r"box_predictor\.box", "SecondStageBoxPredictor/BoxEncodingPredictor"),
        LayerRule(r"box_predictor\.class_", "SecondStageBoxPredictor/ClassPredictor"),
    ),
)
