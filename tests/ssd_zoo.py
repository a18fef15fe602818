"""Executed models of the original's zoo with one stage: their weights, images, ground truth.

The weights are functions of the variables' names, as the goldens' own page says.
"""

import re
import zlib
from dataclasses import replace
from functools import cache

import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.names import object_paths, reference_names
from tests import reference
from tests.faster_rcnn import GOLDENS
from tests.helpers import read_json

EFFICIENTDET = "ssd_efficientdet_d0_512x512_coco17_tpu-8"
FPNLITE = "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"
_HEADS = ("BoxPredictor", "BoxEncodingPredictor", "ClassPredictor")


@cache
def forward() -> dict:
    return read_json(GOLDENS / "ssd_forward.json")


@cache
def variables_of(config: str) -> dict[str, tuple[int, ...]]:
    models = read_json(GOLDENS / "ssd_models.json")
    return {name: tuple(shape) for name, shape, _ in models[config]["vars"]}


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The value that the goldens give the variable of a name."""
    layer, kind = name.split("/")[-2:]
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if kind == "gamma":
        normal = 1 + 0.1 * normal
    elif kind in ("moving_variance", "bifpn_combine_weights"):
        normal = 1 + 0.5 * np.abs(normal)
    elif len(shape) == 1:
        normal = 0.1 * normal - 4.6 * ("ClassPredictor" in layer and kind in ("bias", "biases"))
    else:
        fan_in = np.prod(shape[:2]) if "depthwise" in kind else np.prod(shape[:-1])
        normal *= np.sqrt((0.25 if layer in _HEADS else 2.0) / fan_in)
    return normal.astype(np.float32)


def names_of(config: str, model, arrays) -> dict[str, str]:
    """The original's name of each array, by its path in our detector."""
    if config == EFFICIENTDET:
        return {path: efficientdet_name(path) for path in arrays}
    if config == FPNLITE:
        keys = read_json(GOLDENS / "tf2_checkpoints.json")[config]["keys"]
        names = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): name for key, name, *_ in keys}
        return {path: names[variable] for path, variable in object_paths(model, arrays).items()}
    return reference_names(model, arrays)


_NORM = {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "var": "moving_variance"}
_TOWERS = {"box_tower": "BoxPredictionTower", "class_tower": "ClassPredictionTower"}
_LAYERS = {"squeeze": "se_reduce", "excite": "se_expand"}


def efficientdet_name(path: str) -> str:
    """The name of a variable of EfficientDet-D0 in the original."""
    layer, _, kind = path.rpartition(".")
    layer, norm, feature = layer.partition(".norm")
    kind = _NORM[kind] if norm else kind
    part, *names = layer.split(".")
    if part == "backbone":
        stack, block = names[0].split("_")[1::2] if len(names) > 1 else ("", "")
        scope = f"stack_{stack}/block_{block}/" if stack else ""
        if names[-1] == "depthwise" and kind == "kernel":
            kind = "depthwise_kernel"
        name = _LAYERS.get(names[-1], names[-1])
        return f"{scope}{name}_{'bn' if norm else 'conv2d'}/{kind}"
    if part == "neck":
        return f"EfficientDet-D0/bifpn/{_node_name(names, kind, bool(norm))}"
    kind = "pointwise_kernel" if kind == "kernel" else kind
    scope = "WeightSharedConvolutionalBoxPredictor/"
    if len(names) == 1:
        which = {"box": "Box", "class_": "Class"}[names[0]]
        return f"{scope}WeightSharedConvolutional{which}Head/{which}Predictor/{kind}"
    scope += f"{_TOWERS[names[0]]}/{names[1].replace('layer', 'conv2d')}"
    return f"{scope}/BatchNorm/feature{feature}/{kind}" if norm else f"{scope}/{kind}"


def _node_name(names: list[str], kind: str, norm: bool) -> str:
    before = "1x1_pre_sample/" + ("batchnorm" if norm else "conv")
    if names == ["coarse"]:
        return f"node_00/0_up_lvl_6/input_0_up_lvl_5/{before}/{kind}"
    cell, (direction, place) = int(names[0][5:]), names[1].split("_")
    number = 2 + 8 * cell + (3 - int(place) if direction == "down" else 3 + int(place))
    level, short = int(place) + 3, {"down": "dn", "up": "up"}[direction]
    node = f"node_{number:02d}/{cell + 1}_{short}_lvl_{level}"
    if kind == "weights":
        return f"{node}/combine/bifpn_combine_weights"
    if names[-1] == "project":
        return f"{node}/input_0_up_lvl_{level}/{before}/{kind}"
    after = "batchnorm" if norm else "separable_conv"
    return f"{node}/post_combine/{after}/{'pointwise_kernel' if kind == 'kernel' else kind}"


def batch(model) -> Batch:
    """The two images as the configuration resizes them, with their ground truth."""
    side = model.resizer.input_size[0]
    height = side * 3 // 4 if model.resizer.kind == "keep_aspect_ratio" else side
    images = [reference.legacy_bilinear(image, (height, side)) for image in reference.waves()]
    padded = np.zeros((2, side, side, 3), np.float32)
    if height < side:
        padded[...] = model.resizer.pad_value
    padded[:, :height] = images
    sizes = np.tile(np.int32((height, side)), (2, 1))
    return reference.batch(side)._replace(images=padded, true_sizes=sizes)


def without_randomness(model):
    """The model of the goldens, which drop no block in training."""
    if not re.match("efficientnet", model.backbone.kind):
        return model
    return replace(model, backbone=replace(model.backbone, drop_connect_rate=0.0))
