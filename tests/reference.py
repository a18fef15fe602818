"""The original's five models with deterministic weights and a test batch."""

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve
from stillbox.models.one_stage.detector import OneStageDetector
from stillbox.models.paths import variables_of
from tests.helpers import read_json

SSD, PPN = "ssd_mobilenet_v1_300x300", "ssd_mobilenet_v1_ppn_300x300"
INCEPTION = "ssd_inception_v2_300x300"
FPN, RESNET = "ssd_mobilenet_v1_fpn_640x640", "ssd_resnet50_v1_fpn_640x640"

# What the original's ssd_inception_v2_coco.config sets, for which there is no recipe.
_PENALTY = "regularizer { l2_regularizer { weight: 4e-5 } }"
_CONV = f"""
activation: RELU_6 {_PENALTY} initializer {{ truncated_normal_initializer {{ stddev: 0.03 }} }}"""
_INCEPTION = f"""
model {{ ssd {{
  num_classes: 90
  box_coder {{ faster_rcnn_box_coder {{ }} }}
  matcher {{ argmax_matcher {{ force_match_for_each_row: true }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  anchor_generator {{ ssd_anchor_generator {{
    aspect_ratios: [1.0, 2.0, 0.5, 3.0, 0.3333]
  }} }}
  image_resizer {{ fixed_shape_resizer {{ height: 300 width: 300 }} }}
  box_predictor {{ convolutional_box_predictor {{
    use_dropout: false kernel_size: 3 conv_hyperparams {{ {_CONV} }}
  }} }}
  feature_extractor {{
    type: "ssd_inception_v2"
    conv_hyperparams {{ {_CONV} batch_norm {{ scale: true decay: 0.9997 epsilon: 0.001 }} }}
    override_base_feature_extractor_hyperparams: true
  }}
  loss {{
    classification_loss {{ weighted_sigmoid {{ }} }}
    localization_loss {{ weighted_smooth_l1 {{ }} }}
    hard_example_miner {{
      num_hard_examples: 3000 iou_threshold: 0.99 loss_type: CLASSIFICATION
      max_negatives_per_positive: 3
    }}
  }}
  normalize_loss_by_num_matches: true
  post_processing {{
    batch_non_max_suppression {{ score_threshold: 1e-8 }}
    score_converter: SIGMOID
  }}
}} }}
"""


@cache
def model(recipe: str) -> schema.OneStage:
    """The recipe's own model: what it says is under test too."""
    if recipe == INCEPTION:
        return read_pipeline_config(_INCEPTION, f"{recipe}.config").experiment.model
    return resolve(recipe).experiment.model


@cache
def golden(recipe: str) -> Any:
    file = Path(__file__).parent / "goldens" / f"models_{recipe}.json"
    return read_json(file)


def names(detector: OneStageDetector, described: schema.OneStage) -> dict[str, str]:
    """TF1 name of every variable by our path."""
    return reference_names(described, variables_of(detector))


def load_deterministic_weights(detector: OneStageDetector, described: schema.OneStage) -> None:
    """Gives every variable the value that the goldens derive from its TF1 name."""
    tf1 = names(detector, described)
    for path, variable in variables_of(detector).items():
        variable[...] = jnp.asarray(deterministic_weight(tf1[path], variable.shape), jnp.float32)


def deterministic_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    layer, kind = name.split("/")[-2:]
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if kind.endswith("weights"):
        gain = 0.25 if layer.endswith("Predictor") else 2.0
        fan_in = np.prod(shape[:2]) * (1 if "depthwise" in kind else shape[2])
        normal *= np.sqrt(gain / fan_in)
    elif kind == "gamma":
        normal = 1 + 0.1 * normal
    elif kind == "moving_variance":
        normal = 1 + 0.5 * np.abs(normal)
    else:
        normal *= 0.1
        if layer == "ClassPredictor":
            normal -= 4.6
    return normal.astype(np.float32)


def waves() -> tuple[np.ndarray, np.ndarray]:
    """A wave pattern of 480x640 pixels and its half turn."""
    y, x, c = np.meshgrid(np.arange(480), np.arange(640), np.arange(3), indexing="ij")
    pattern = (127.5 + 127.5 * np.sin(0.05 * y + 0.03 * x * (c + 1) + c)).astype(np.float32)
    return pattern, pattern[::-1, ::-1]


@cache
def images(side: int) -> np.ndarray:
    """`[2, side, side, 3]`: the waves, resized as TF1 does."""
    return np.stack([legacy_bilinear(image, (side, side)) for image in waves()])


def batch(side: int) -> Batch:
    """The images with their ground truth."""
    boxes, classes = np.zeros((2, 8, 4), np.float32), np.zeros((2, 8), np.int32)
    weights = np.zeros((2, 8), np.float32)
    boxes[0, :3] = [[0.1, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.95], [0.05, 0.6, 0.2, 0.7]]
    classes[0, :3], weights[0, :3] = (0, 17, 89), 1
    boxes[1, 0], classes[1, 0], weights[1, 0] = [0.2, 0.3, 0.8, 0.7], 2, 1
    return Batch(
        images=images(side),
        boxes=boxes,
        classes=classes,
        weights=weights,
        true_sizes=np.full((2, 2), side, np.int32),
        records=np.arange(2, dtype=np.int32),
        image_weights=np.ones(2, np.float32),
    )


def legacy_bilinear(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """TF1's resize without half-pixel centres."""
    for axis, side in enumerate(size):
        length = image.shape[axis]
        source = np.arange(side, dtype=np.float32) * np.float32(length / side)
        low = np.floor(source).astype(int)
        share = (source - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        upper = np.take(image, np.minimum(low + 1, length - 1), axis)
        lower = np.take(image, low, axis)
        image = (lower + (upper - lower) * share).astype(np.float32)
    return image
