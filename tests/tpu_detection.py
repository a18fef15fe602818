"""The detectors of "Object Detection Models on TPU": descriptions, arrays, deterministic weights.

Goldens come from running the original's graphs. Multiply-adds of a detector's convolutions are
counted while it is traced.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from stillbox.experiment.schema.necks import Pyramid
from stillbox.models.build import build_detector
from stillbox.models.layers import conv
from stillbox.models.one_stage.detector import OneStageDetector
from stillbox.models.paths import variables_of
from stillbox.models.variables import bind_detector, split_detector
from tests.helpers import read_json
from tests.small import SHARED

GOLDENS = SHARED / "goldens" / "tpu_detection"

_NORM = schema.BatchNorm(decay=0.997, epsilon=1e-4, center=True, scale=True)
_HEAD = schema.ConvHyperparams(
    activation="relu",
    initializer=schema.RandomNormal(stddev=0.01),
    batch_norm=_NORM,
    force_bias=True,
)
_RESNET = schema.ConvHyperparams(
    activation="relu",
    initializer=schema.VarianceScaling(factor=1.0, exact_cut=True),
    batch_norm=_NORM,
)


def retinanet(
    neck: Pyramid | None = None,
    backbone: schema.Backbone | None = None,
    *,
    side: int = 128,
    **head: Any,
) -> schema.OneStage:
    """RetinaNet of 91 logits and nine anchors; ResNet-50 with its pyramid unless told better."""
    neck = neck or schema.RetinaNetFpn()
    levels = {"min_level": neck.min_level, "max_level": neck.max_level}
    return schema.OneStage(
        num_classes=90,
        resizer=schema.FixedShapeResizer(height=side, width=side),
        backbone=backbone or resnet(50),
        neck=neck,
        head=schema.WeightSharedHead(
            predictor_initializer=schema.RandomNormal(stddev=1e-5),
            class_bias_init=-float(np.log(99)),
            **{"conv": _HEAD} | head,
        ),
        anchors=schema.MultiscaleAnchors(**levels, scales_per_octave=3, order="scale_major"),
    )


def resnet(depth: int) -> schema.ResNet:
    """The backbone as it is there."""
    return schema.ResNet(depth=depth, zero_last_scale=False, conv=_RESNET)


def swish(model: schema.OneStage) -> schema.OneStage:
    """The same with swish in backbone and head."""
    return replace(
        model,
        backbone=replace(model.backbone, conv=replace(model.backbone.conv, activation="swish")),
        head=replace(model.head, conv=replace(model.head.conv, activation="swish")),
    )


@cache
def golden(name: str) -> Any:
    """A file of the goldens."""
    return read_json(GOLDENS / f"{name}.json")


def golden_variables(name: str) -> dict[str, tuple[int, ...]]:
    """Shape by name of all variables that the original has."""
    return {n.removesuffix(":0"): tuple(shape) for n, shape in golden(f"vars_{name}")}


def without_draws(make: Callable[[], Any]) -> Any:
    """Builds something with kernels of zeros: to draw them takes seconds."""
    zeros = patch("stillbox.models.layers.conv.draw_kernel", lambda _, shape, __: jnp.zeros(shape))
    with zeros:
        return make()


@cache
def abstract(model: schema.OneStage) -> OneStageDetector:
    """The detector with shapes instead of arrays; tests leave it as it is."""
    detector: OneStageDetector = without_draws(
        lambda: nnx.eval_shape(lambda: build_detector(model))
    )
    return detector


def shapes(model: schema.OneStage) -> dict[str, tuple[int, ...]]:
    """Shape of every array of the detector by path; nothing is allocated."""
    return {path: tuple(array.shape) for path, array in variables_of(abstract(model)).items()}


def count_parameters(model: schema.OneStage, part: str = "") -> int:
    """Counts the numbers that training changes."""
    return sum(
        int(np.prod(shape))
        for path, shape in shapes(model).items()
        if path.startswith(part) and not path.endswith((".mean", ".var"))
    )


def named_shapes(model: schema.OneStage) -> dict[str, tuple[int, ...]]:
    """Shape by the original's name, of all arrays; one without a name keeps its path."""
    ours = shapes(model)
    names = reference_names(model, {path: np.broadcast_to(0, s) for path, s in ours.items()})
    return {names.get(path, path): shape for path, shape in ours.items()}


def weighted(model: schema.OneStage) -> OneStageDetector:
    """The detector with the weights that the goldens derive from the original's names."""
    detector: OneStageDetector = without_draws(lambda: build_detector(model))
    variables = variables_of(detector)
    names = reference_names(model, variables)
    for path, variable in variables.items():
        variable.set_value(jnp.asarray(deterministic_weight(names[path], variable.shape)))
    return detector


def deterministic_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Sines of another phase for every name, scaled by what they are."""
    phase = zlib.crc32(name.encode()) % 1000
    values = np.sin(0.37 * np.arange(np.prod(shape)) + phase).reshape(shape)
    *_, kind = name.split("/")
    if kind.endswith("kernel"):
        fan_in = np.prod(shape[:2] if kind.startswith("depthwise") else shape[:3])
        values *= np.sqrt(2 / fan_in)
    else:
        start, scale = {"gamma": (1, 0.1), "moving_variance": (1, 0.5)}.get(kind, (0, 0.1))
        values = start + scale * values
    return values.astype(np.float32)


def pixels(side: int = 128) -> np.ndarray:
    """`[1, side, side, 3]`, normalised already."""
    shape = (1, side, side, 3)
    return np.sin(0.01 * np.arange(np.prod(shape))).reshape(shape).astype(np.float32)


def count_macs(model: schema.OneStage) -> int:
    """Counts multiply-adds of one image; nothing is computed."""
    image = jax.ShapeDtypeStruct((1, *model.resizer.input_size, 3), jnp.float32)
    counts = []

    def counted(convolution, axes):
        def call(x, kernel, stride, **options):
            y = convolution(x, kernel, stride, **options)
            counts.append(y.size * math.prod(kernel.shape[:axes]))
            return y

        return call

    graph, params, stats = split_detector(abstract(model))
    with (
        # A number of the result sums over taps and channels; of a depthwise one, over taps alone.
        patch.object(conv, "conv2d", counted(conv.conv2d, 3)),
        patch.object(conv, "depthwise_conv2d", counted(conv.depthwise_conv2d, 2)),
    ):
        jax.eval_shape(
            lambda p, s, x: bind_detector(graph, p, s)(x, train=False), params, stats, image
        )
    return sum(counts)
