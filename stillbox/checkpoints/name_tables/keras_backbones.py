"""Backbones of the Object Detection API's second generation in TF2 checkpoints.

Keras numbers the layers of a network that own variables by their depth in it: convolutions, and
batch norms, which are layers of their own.
Source: `object_detection/models/keras_models/{mobilenet_v1,mobilenet_v2,resnet_v1}.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from stillbox.checkpoints.name_tables.rules import (
    KERAS,
    BackboneTable,
    Context,
    LayerRule,
    Shapes,
    register_object_paths,
)
from stillbox.experiment import schema


class Place(NamedTuple):
    """Place of a convolution in a network."""

    depth: tuple[int, ...]
    """Sorts; the batch norms of convolutions of the same depth follow all of these."""
    branch: int = 0
    """Sorts convolutions of the same depth."""


Find = Callable[[str], Place | None]
"""Returns the place of a layer by its path in our detector, if it is a convolution of a network."""


def _numbered(context: Context, find: Find) -> Iterator[LayerRule]:
    """Yields a rule for each layer; those of parts with the same root are numbered together."""
    layers = (path.removesuffix(".kernel") for path in context.shapes if path.endswith(".kernel"))
    places = {path: place for path in layers if (place := find(path))}
    for root in set(context.roots.values()):
        parts = {part for part, own in context.roots.items() if own == root}
        paths = [path for path in places if path.partition(".")[0] in parts]
        numbers = _number((places[path], _has_norm(path, context.shapes)) for path in paths)
        for path in paths:
            conv, norm = (numbers.get((places[path], kind), "") for kind in ("conv", "norm"))
            yield LayerRule(
                re.escape(path),
                f"{{root}}layer_with_weights-{conv}",
                norm=f"{{root}}layer_with_weights-{norm}",
                depthwise=path.endswith("depthwise"),
            )


def _number(layers: Iterable[tuple[Place, bool]]) -> dict[tuple[Place, str], int]:
    """Numbers convolutions and their norms from 0; two parts may hold the same layer."""
    numbers: dict[tuple[Place, str], int] = {}
    for _, group in groupby(sorted(set(layers)), key=lambda layer: layer[0].depth):
        same = list(group)
        for place, _ in same:
            numbers[place, "conv"] = len(numbers)
        for place, normalised in same:
            if normalised:
                numbers[place, "norm"] = len(numbers)
    return numbers


def _has_norm(path: str, shapes: Shapes) -> bool:
    return any(f"{path}.norm.{part}" in shapes for part in ("scale", "bias", "mean"))


def _register(
    config: type,
    find: Find,
    extra_layers: str = "",
    expected: Mapping[str, str] | None = None,
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


def _find_mobilenet_v1(path: str) -> Place | None:
    match = _MOBILENET_V1.fullmatch(path)
    return Place((int(match[1]), bool(match[2]))) if match else None


def _find_mobilenet_v2(path: str) -> Place | None:
    match = _MOBILENET_V2.fullmatch(path)
    if match is None or match[2] is None:
        # The first convolution, and that behind the blocks.
        return Place((_LAST * int(match[1]),)) if match else None
    return Place((1 + int(match[2]), _STEPS.index(match[3])))


def _find_resnet(path: str) -> Place | None:
    """Returns a place; a shortcut is as deep as the last convolution of its unit."""
    match = _RESNET.fullmatch(path)
    if match is None:
        return None
    block, unit = int(match[1] or 0), int(match[2] or 0)
    return Place((block, unit, 3)) if match[3] else Place((block, unit, int(match[4] or 0)), 1)


def _find_efficientnet(path: str) -> Place | None:
    match = _EFFICIENTNET.fullmatch(path)
    if match is None or match[1] is None:
        return Place((0,)) if match else None
    return Place((1 + int(match[1]), int(match[2]), _EFFICIENTNET_STEPS.index(match[3])))


_FPN = {"neck.top_down": "smoothed"}
_register(schema.MobileNetV1, _find_mobilenet_v1, "{root}_feature_map_generator", _FPN)
_register(schema.MobileNetV2, _find_mobilenet_v2, "{root}feature_map_generator", _FPN)
_register(schema.ResNetV1, _find_resnet, expected=_FPN)
_register(schema.EfficientNet, _find_efficientnet)
