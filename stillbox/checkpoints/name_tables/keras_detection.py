"""Necks, heads and stages of the Object Detection API's second generation in TF2 checkpoints.

Names are paths of attributes and places in lists of layers. A batch norm, an activation, a dropout
and a padding are layers of their own.
Source, in `object_detection`: `models/feature_map_generators.py`,
`models/*_keras_feature_extractor.py`, `predictors/convolutional_keras_box_predictor.py` and
`predictors/heads/keras_*.py`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from stillbox.checkpoints.name_tables.rules import (
    Context,
    LayerRule,
    register_part,
    register_scopes,
)
from stillbox.experiment import schema

_register = partial(register_part, "object_detection_keras")
_register_scopes = partial(register_scopes, "object_detection_keras")
_FIRST_STAGE = "_feature_extractor_for_proposal_features/"
_BACKBONE = "classification_backbone/"
_PROJECTION = re.compile(r"neck\.projection_\d+\.kernel")


def _two_stages(parts: Mapping[str, Any]) -> dict[str, str]:
    # Without a pyramid, the backbone is the whole extractor.
    pyramid = isinstance(parts["neck"], schema.Fpn)
    return {
        "backbone": _FIRST_STAGE + _BACKBONE * pyramid,
        "neck": _FIRST_STAGE,
        "box_head": "_feature_extractor_for_box_classifier_features/",
        "box_predictor": "_mask_rcnn_box_predictor/",
    }


_register_scopes(
    schema.OneStage,
    {
        "backbone": f"_feature_extractor/{_BACKBONE}",
        "neck": "_feature_extractor/",
        "head": "_box_predictor/",
    },
)
_register_scopes(schema.FasterRcnn, _two_stages)


def _conv(ours: str, layers: str, place: int = 0, *, depthwise: bool = False) -> LayerRule:
    """Returns the rule of a convolution in a list of layers; its norm, if any, follows it."""
    return LayerRule(ours, f"{layers}/{place}", f"{layers}/{place + 1}", depthwise=depthwise)


def _ssd_layers(context: Context) -> tuple[LayerRule, ...]:
    neck: schema.SsdLayers = context.parts["neck"]
    layers = f"{context.table.extra_layers}/convolutions/{{0}}"
    # Behind convolution, norm and activation.
    halve = 3 + neck.explicit_padding
    return (
        _conv(r"neck\.extra_(\d+)_1x1", layers),
        _conv(r"neck\.extra_(\d+)_depthwise", layers, halve, depthwise=True),
        _conv(r"neck\.extra_(\d+)_3x3", layers, halve + 3 * neck.depthwise),
    )


def _fpn(context: Context) -> tuple[LayerRule, ...]:
    neck: schema.Fpn = context.parts["neck"]
    # Attributes of the extractors of one stage are private.
    private = "_" if "head" in context.parts else ""
    generator = f"{{root}}{private}fpn_features_generator"
    top = sum(bool(_PROJECTION.fullmatch(path)) for path in context.shapes)
    padding = int(neck.explicit_padding)
    rules = [
        LayerRule(rf"neck\.projection_{top}", f"{generator}/top_layers/0"),
        _conv(r"neck\.coarse_(\d+)", f"{{root}}{private}coarse_feature_layers/{{0:-1}}", padding),
    ]
    for below, level in enumerate(reversed(range(1, top))):
        rules += [
            LayerRule(rf"neck\.projection_{level}", f"{generator}/residual_blocks/{below}/0"),
            _conv(rf"neck\.smoothing_{level}", f"{generator}/conv_layers/{below}", padding),
        ]
    return tuple(rules)


def _bifpn(context: Context) -> Iterator[LayerRule]:
    """Yields the rules of nodes, which are numbered in the order of their computation."""
    neck: schema.BiFpn = context.parts["neck"]
    maps = neck.count_maps()
    taps = len(neck.taps_of(context.parts["backbone"]))
    generator, number = "{root}_bifpn_stage", maps - taps
    yield _conv(r"neck\.coarse", f"{generator}/node_input_blocks/0/0/1")
    for cell in range(neck.num_repeats):
        down = [f"down_{place}" for place in reversed(range(maps - 1))]
        for name in (*down, *(f"up_{place}" for place in range(1, maps))):
            ours = rf"neck\.cell_{cell}\.{name}"
            yield LayerRule(ours, f"{generator}/node_combine_op/{number}")
            yield _conv(rf"{ours}\.project", f"{generator}/node_input_blocks/{number}/0/1")
            # Behind the activation.
            yield _conv(rf"{ours}\.conv", f"{generator}/node_post_combine_block/{number}", 1)
            number += 1


_register(schema.SsdLayers, _ssd_layers)
_register(schema.Fpn, _fpn)
_register(schema.BiFpn, lambda context: tuple(_bifpn(context)))

_BOXES, _CLASSES = "box_encodings", "class_predictions_with_background"


def _convolutional_head(context: Context) -> tuple[LayerRule, ...]:
    head: schema.ConvolutionalHead = context.parts["head"]
    boxes = f"{{root}}_prediction_heads/{_BOXES}/{{0}}/_box_encoder_layers"
    classes = f"{{root}}_prediction_heads/{_CLASSES}/{{0}}/_class_predictor_layers"
    first, behind = int(head.dropout), 3 * head.depthwise
    before = (
        _conv(rf"head\.map_(\d+)\.before_{index}", "{root}_shared_nets/{0}", 3 * index)
        for index in range(head.layers_before)
    )
    return (
        _conv(r"head\.map_(\d+)\.box_depthwise", boxes, depthwise=True),
        _conv(r"head\.map_(\d+)\.box", boxes, behind),
        _conv(r"head\.map_(\d+)\.class_depthwise", classes, first, depthwise=True),
        _conv(r"head\.map_(\d+)\.class_", classes, first + behind),
        *before,
    )


def _shared_head(context: Context) -> tuple[LayerRule, ...]:
    head: schema.WeightSharedHead = context.parts["head"]
    classes = f"{{root}}_prediction_heads/{_CLASSES}/_class_predictor_layers"
    projections = r"head\.projection_(\d+)(?:\.conv)?"
    return (
        _conv(r"head\.box", "{root}_box_prediction_head/_box_encoder_layers"),
        _conv(r"head\.class_", classes, int(head.dropout)),
        _conv(projections, "{root}_additional_projection_layers/{0}"),
        # A shared tower is that of the boxes.
        *_tower("tower", "PredictionTower", _BOXES, head.layers_before),
        *_tower("box_tower", "BoxPredictionTower", _BOXES, head.layers_before),
        *_tower("class_tower", "ClassPredictionTower", _CLASSES, head.layers_before),
    )


def _tower(ours: str, theirs: str, head: str, layers: int) -> Iterator[LayerRule]:
    """Yields the rules of a tower, whose kernels all feature maps share, and not its norms."""
    for index in range(layers):
        yield LayerRule(
            rf"head\.{ours}\.layer_{index}(?:\.conv)?",
            f"{{root}}_head_scope_conv_layers/{theirs}/{index}",
            norm=f"{{root}}_base_tower_layers_for_heads/{head}/{{norm}}/{3 * index + 1}",
        )


_register(schema.ConvolutionalHead, _convolutional_head)
_register(schema.WeightSharedHead, _shared_head)

_RPN = "{root}_first_stage_box_predictor"
_register(
    schema.ProposalStage,
    (
        LayerRule(r"proposals\.conv", f"{_RPN}_first_conv/layer_with_weights-0"),
        _conv(
            r"proposals\.box_(\d+)", f"{_RPN}/_prediction_heads/{_BOXES}/{{0}}/_box_encoder_layers"
        ),
        _conv(
            r"proposals\.class_(\d+)",
            f"{_RPN}/_prediction_heads/{_CLASSES}/{{0}}/_class_predictor_layers",
        ),
    ),
)


def _box_predictor(context: Context) -> tuple[LayerRule, ...]:
    # Behind a layer that flattens the features.
    place = 1 + context.parts["box_predictor"].dropout
    return (
        _conv(r"box_predictor\.box", "{root}_box_prediction_head/_box_encoder_layers", place),
        _conv(
            r"box_predictor\.class_", "{root}_class_prediction_head/_class_predictor_layers", place
        ),
    )


def _fully_connected(context: Context) -> tuple[LayerRule, ...]:
    """Returns the rules of the original's two layers, with a norm between them."""
    second = 2 if context.parts["box_head"].conv.batch_norm else 1
    return (
        LayerRule(r"box_head\.dense_1", "{root}layer_with_weights-0"),
        LayerRule(r"box_head", "", norm="{root}layer_with_weights-{norm}"),
        LayerRule(r"box_head\.dense_2", f"{{root}}layer_with_weights-{second}"),
    )


_register(schema.BoxStage, _box_predictor)
_register(schema.FullyConnectedHead, _fully_connected)
