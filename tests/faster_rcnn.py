"""Executed models of the original with two stages: their weights, images, ground truth, numbers.

The weights are functions of the variables' names, as the goldens' own page says.
"""

import re
import zlib
from functools import cache

import jax.numpy as jnp
import numpy as np

from stillbox.boxes.structures import Batch, Detections
from stillbox.models.paths import variables_of
from tests.helpers import read_json
from tests.reference import legacy_bilinear, waves
from tests.small import SHARED

GOLDENS = SHARED / "goldens" / "detection_zoo"
KERAS = "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8"


@cache
def forward() -> dict:
    return read_json(GOLDENS / "frcnn_forward.json")


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The value that the goldens give the variable of a name."""
    layer, kind = name.split("/")[-2:]
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if kind == "gamma":
        normal = 1 + 0.1 * normal
        if re.search(r"resnet_v1.*/conv3/BatchNorm/|_3_bn/", name):
            normal *= 0.25
    elif kind == "moving_variance":
        normal = 1 + 0.5 * np.abs(normal)
    elif len(shape) == 1:
        normal *= 0.1
    else:
        predictor = r"(BoxEncodingPredictor|ClassPredictor)(_dense)?"
        gain = 0.25 if re.fullmatch(predictor, layer) else 2.0
        fan_in = np.prod(shape[:2]) if "depthwise" in kind else np.prod(shape[:-1])
        normal *= np.sqrt(gain / fan_in)
        if re.search(r"resnet_v1_\d+/conv1/weights|^conv1_conv/kernel", name):
            normal /= 64
    return normal.astype(np.float32)


_UNIT = r"(?:backbone\.block_(\d)|box_head\.block_4)\.unit_(\d+)\.(?:conv_(\d)|(shortcut))\.(.*)"
_NORM = {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "var": "moving_variance"}


def keras_name(path: str) -> str:
    """The name of a variable in the original's second generation (ResNet)."""
    if match := re.fullmatch(_UNIT, path):
        block, unit, conv, _, variable = match.groups()
        return _variable(f"conv{int(block or 4) + 1}_block{unit}_{conv or 0}_", variable)
    if path.startswith("backbone.root."):
        return _variable("conv1_", path.removeprefix("backbone.root."))
    part, layer, kind = path.split(".")
    scope = {
        ("proposals", "conv"): "RPNConv",
        ("proposals", "box_0"): _FIRST.format("Box", "BoxEncodingPredictor"),
        ("proposals", "class_0"): _FIRST.format("Class", "ClassPredictor"),
        ("box_predictor", "box"): _SECOND.format("box", "BoxEncodingPredictor"),
        ("box_predictor", "class_"): _SECOND.format("class", "ClassPredictor"),
    }[part, layer]
    return f"{scope}/{kind}"


_FIRST = "FirstStageBoxPredictor/Convolutional{}Head_0/{}"
_SECOND = "mask_rcnn_keras_box_predictor/mask_rcnn_{}_head/{}_dense"


def _variable(layer: str, variable: str) -> str:
    kind = variable.rpartition(".")[2]
    return f"{layer}bn/{_NORM[kind]}" if variable.startswith("norm.") else f"{layer}conv/{kind}"


def load_weights(detector, names) -> None:
    """Gives every variable of a detector the value that its name has."""
    for path, variable in variables_of(detector).items():
        variable[...] = jnp.asarray(weight(names[path], variable.shape), jnp.float32)


@cache
def images(config: str) -> np.ndarray:
    """The two images as the configuration resizes them."""
    if config == KERAS:
        return np.stack([np.pad(image, ((0, 160), (0, 0), (0, 0))) for image in waves()])
    return np.stack([legacy_bilinear(image, (600, 800)) for image in waves()])


def batch(config: str, truth: list | None = None) -> Batch:
    """The images with their ground truth, or with `truth`, one entry an image."""
    boxes, classes = np.zeros((2, 8, 4), np.float32), np.zeros((2, 8), np.int32)
    weights = np.zeros((2, 8), np.float32)
    rows = truth or [
        {
            "boxes": [[0.1, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.95], [0.05, 0.6, 0.2, 0.7]],
            "classes": [0, 17, 89],
        },
        {"boxes": [[0.2, 0.3, 0.8, 0.7]], "classes": [2]},
    ]
    for image, row in enumerate(rows):
        count = len(row["boxes"])
        boxes[image, :count], classes[image, :count] = row["boxes"], row["classes"]
        weights[image, :count] = row.get("weights", 1)
    pixels = images(config)
    size = (480, 640) if config == KERAS else (600, 800)
    return Batch(
        images=pixels,
        boxes=boxes,
        classes=classes,
        weights=weights,
        true_sizes=np.tile(np.int32(size), (2, 1)),
        records=np.arange(2, dtype=np.int32),
        image_weights=np.ones(2, np.float32),
    )


def stored_proposals(config: str, mode: str) -> Detections:
    """The proposals that the original's second stage was given, in pixels."""
    rows = np.load(GOLDENS / f"frcnn_{config}_{mode}_proposals_normalized.npy")
    count = np.int32(forward()[f"{config}/{mode}"]["proposals_given_to_stage2"]["num"])
    zeros = np.zeros(rows.shape[:2], np.int32)
    sides = np.tile(np.float32(images(config).shape[1:3]), 2)
    return Detections(rows[..., :4] * sides, rows[..., 4], zeros, count, zeros)


def check_statistics(array: np.ndarray, expected: dict, atol: float, *, rtol: float = 0) -> None:
    """Compares an array with its recorded shape, sums and sixteen of its values."""
    array = np.asarray(array)
    flat = array.ravel()
    assert list(array.shape) == expected["shape"]
    places = [index * flat.size // 16 for index in range(16)]
    np.testing.assert_allclose(flat[places], expected["samples16"], atol=atol, rtol=rtol)
    for name, value in (("mean", flat.mean(dtype=float)), ("std", flat.std(dtype=float))):
        np.testing.assert_allclose(value, expected[name], atol=atol / 10, rtol=rtol)
    for name, value in (("min", flat.min()), ("max", flat.max())):
        np.testing.assert_allclose(value, expected[name], atol=atol, rtol=rtol)
