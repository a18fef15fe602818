"""The Object Detection API's second generation in TF2 checkpoints.

In a backbone, Keras numbers the layers that own variables by their depth in the network:
convolutions, and batch norms, which are layers of their own. Names in necks, heads and stages are
paths of attributes and places in lists of layers; a batch norm, an activation, a dropout and a
padding are layers of their own. Source, in `object_detection`:
`models/keras_models/{inception_resnet_v2,mobilenet_v1,mobilenet_v2,resnet_v1}.py`,
`models/feature_map_generators.py`, `models/*_keras_feature_extractor.py`,
`predictors/convolutional_keras_box_predictor.py` and `predictors/heads/keras_*.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from stillbox.checkpoints.name_tables.rules import (
    KERAS,
    BackboneTable,
    Context,
    LayerRule,
    has_norm,
    register_object_paths,
    register_part,
    register_scopes,
)
from stillbox.experiment import schema
from stillbox.models.backbones.inception_resnet import branches_of


class ConvPosition(NamedTuple):
    """Where a convolution stands in a network."""

    depth: tuple[int, ...]
    """Sorts; the batch norms of convolutions of the same depth follow all of these."""
    branch: int = 0
    """Sorts convolutions of the same depth."""


Find = Callable[[str], ConvPosition | None]
"""Returns the place of a layer by its path in our detector, if it is a convolution of a network."""


def _numbered(context: Context, find: Find) -> Iterator[LayerRule]:
    """Yields a rule for each layer; layers below the same root are numbered together."""
    layers = (path.removesuffix(".kernel") for path in context.shapes if path.endswith(".kernel"))
    places = {path: place for path in layers if (place := find(path))}
    for root in set(context.roots.values()):
        parts = {part for part, part_root in context.roots.items() if part_root == root}
        paths = [path for path in places if path.partition(".")[0] in parts]
        numbers = _number((places[path], has_norm(path, context.shapes)) for path in paths)
        for path in paths:
            conv, norm = (numbers.get((places[path], kind), "") for kind in ("conv", "norm"))
            yield LayerRule(
                re.escape(path),
                f"{{root}}layer_with_weights-{conv}",
                norm=f"{{root}}layer_with_weights-{norm}",
                depthwise=path.endswith("depthwise"),
            )


def _number(layers: Iterable[tuple[ConvPosition, bool]]) -> dict[tuple[ConvPosition, str], int]:
    """Numbers convolutions and their norms from 0; two parts may hold the same layer."""
    numbers: dict[tuple[ConvPosition, str], int] = {}
    for _, group in groupby(sorted(set(layers)), key=lambda layer: layer[0].depth):
        same = list(group)
        for place, _ in same:
            numbers[place, "conv"] = len(numbers)
        for place, normalised in same:
            if normalised:
                numbers[place, "norm"] = len(numbers)
    return numbers


def _register_backbone(
    config: type, find: Find, extra_layers: str = "", expected: Mapping[str, str] | None = None
) -> None:
    table = BackboneTable(
        convention=KERAS,
        roots={
            # A SavedModel's object is `_model`.
            "detection": ("model/{scope}", "_model/{scope}"),
            "classification": ("feature_extractor/",),
        },
        rules=lambda context: tuple(_numbered(context, find)),
        codebase="object_detection_keras",
        extra_layers=extra_layers,
        expected=expected or {},
    )
    register_object_paths(config, table)


_MOBILENET_V1 = re.compile(r"backbone\.conv_(\d+)(_pointwise)?(?:_depthwise)?")
_MOBILENET_V2 = re.compile(r"backbone\.(?:conv_(\d)|block_(\d+)_(expand|depthwise|project))")
_STEPS = ("expand", "depthwise", "project")
_LAST = 100
_EFFICIENTNET = re.compile(r"backbone\.(?:stem|stack_(\d)_block_(\d+)\.([a-z]+))")
_EFFICIENTNET_STEPS = ("expand", "depthwise", "squeeze", "excite", "project")
_RESNET = re.compile(
    r"(?:backbone|box_head)\.(?:root|block_(\d)\.unit_(\d+)\.(?:(shortcut)|conv_(\d)))"
)

_INCEPTION_RESNET = re.compile(
    r"(?:backbone|box_head)\.((?:conv|mixed|block\d+)_\w+)(?:\.(?:branch_(\d)\.(conv_\w+)|up))?"
)
_INCEPTION_RESNET_ORDER = (
    *schema.InceptionResNetV2.layers,
    "mixed_7a",
    *(f"block8_{block}" for block in range(1, 11)),
    "conv_7b",
)


def _find_mobilenet_v1(path: str) -> ConvPosition | None:
    match = _MOBILENET_V1.fullmatch(path)
    return ConvPosition((int(match[1]), bool(match[2]))) if match else None


def _find_mobilenet_v2(path: str) -> ConvPosition | None:
    match = _MOBILENET_V2.fullmatch(path)
    if match is None or match[2] is None:
        # The first convolution, and that behind the blocks.
        return ConvPosition((_LAST * int(match[1]),)) if match else None
    return ConvPosition((1 + int(match[2]), _STEPS.index(match[3])))


def _find_resnet(path: str) -> ConvPosition | None:
    """Returns a place; a shortcut is as deep as the last convolution of its unit."""
    match = _RESNET.fullmatch(path)
    if match is None:
        return None
    block, unit = int(match[1] or 0), int(match[2] or 0)
    return (
        ConvPosition((block, unit, 3))
        if match[3]
        else ConvPosition((block, unit, int(match[4] or 0)), 1)
    )


def _find_efficientnet(path: str) -> ConvPosition | None:
    match = _EFFICIENTNET.fullmatch(path)
    if match is None or match[1] is None:
        return ConvPosition((0,)) if match else None
    return ConvPosition((1 + int(match[1]), int(match[2]), _EFFICIENTNET_STEPS.index(match[3])))


def _find_inception_resnet(path: str) -> ConvPosition | None:
    """Returns a place; the branches of a block end at the same depth, where they are joined."""
    match = _INCEPTION_RESNET.fullmatch(path)
    if match is None:
        return None
    block = _INCEPTION_RESNET_ORDER.index(match[1])
    if match[2] is None:
        return ConvPosition((block, 0))
    steps = [step.name for step in branches_of(match[1])[int(match[2])]]
    return ConvPosition((block, steps.index(match[3]) - len(steps)), int(match[2]))


_FPN = {"neck.top_down": "smoothed"}
_register_backbone(schema.MobileNetV1, _find_mobilenet_v1, "{root}_feature_map_generator", _FPN)
_register_backbone(schema.MobileNetV2, _find_mobilenet_v2, "{root}feature_map_generator", _FPN)
_register_backbone(schema.ResNetV1, _find_resnet, expected=_FPN)
_register_backbone(schema.EfficientNet, _find_efficientnet)
_register_backbone(schema.InceptionResNetV2, _find_inception_resnet)


_register_part = partial(register_part, "object_detection_keras")
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
    neck: schema.SsdExtraLayers = context.parts["neck"]
    layers = f"{context.table.extra_layers}/convolutions/{{0}}"
    # After convolution, norm and activation.
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
            # After the activation.
            yield _conv(rf"{ours}\.conv", f"{generator}/node_post_combine_block/{number}", 1)
            number += 1


_register_part(schema.SsdExtraLayers, _ssd_layers)
_register_part(schema.Fpn, _fpn)
_register_part(schema.BiFpn, lambda context: tuple(_bifpn(context)))

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
        # A shared tower has the name of the boxes' tower.
        *_tower("tower", "PredictionTower", _BOXES, head.layers_before),
        *_tower("box_tower", "BoxPredictionTower", _BOXES, head.layers_before),
        *_tower("class_tower", "ClassPredictionTower", _CLASSES, head.layers_before),
    )


def _tower(ours: str, theirs: str, head: str, layers: int) -> Iterator[LayerRule]:
    """Yields the rules of a tower; all feature maps share its kernels, but not its norms."""
    for index in range(layers):
        yield LayerRule(
            rf"head\.{ours}\.layer_{index}(?:\.conv)?",
            f"{{root}}_head_scope_conv_layers/{theirs}/{index}",
            norm=f"{{root}}_base_tower_layers_for_heads/{head}/{{norm}}/{3 * index + 1}",
        )


_register_part(schema.ConvolutionalHead, _convolutional_head)
_register_part(schema.WeightSharedHead, _shared_head)

_RPN = "{root}_first_stage_box_predictor"
_register_part(
    schema.RPN,
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
    # After the layer that flattens the features.
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


_register_part(schema.RoIHead, _box_predictor)
_register_part(schema.FullyConnectedHead, _fully_connected)
