"""Config 1 of the fact sheet with its deterministic weights and test images (sections 2, 6.2)."""

import re
import zlib

import numpy as np
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.detector import Detector

_NORM = schema.BatchNorm(decay=0.97, epsilon=0.001, center=True, scale=True)
_CONV = schema.ConvHyperparams(
    activation="relu6",
    regularizer=schema.L2(weight=4e-5),
    initializer=schema.TruncatedNormal(stddev=0.03),
    batch_norm=_NORM,
)
CONFIG1 = schema.Model(
    num_classes=90,
    resizer=schema.FixedShapeResizer(height=300, width=300),
    backbone=schema.MobileNetV1(depth_multiplier=1.0, min_depth=16, conv=_CONV),
    neck=schema.SsdLayers(depth_multiplier=1.0, min_depth=16, conv=_CONV),
    head=schema.ConvolutionalHead(
        dropout=False,
        class_bias_init=-4.6,
        conv=schema.ConvHyperparams(
            activation="relu6",
            regularizer=schema.L2(weight=4e-5),
            initializer=schema.RandomNormal(stddev=0.01),
        ),
    ),
    anchors=schema.SsdAnchors(aspect_ratios=(1.0, 2.0, 0.5, 3.0, 0.3333)),
    postprocessing=schema.Postprocessing(
        score_converter="sigmoid",
        nms=schema.Nms(score_threshold=1e-8, iou_threshold=0.6, max_per_class=100, max_total=100),
    ),
)


def variables(detector: Detector) -> dict[str, nnx.Variable]:
    """All parameters and moving statistics by dotted path."""
    state = nnx.to_flat_state(nnx.state(detector))
    return {".".join(str(key) for key in path): variable for path, variable in state}


def names(detector: Detector) -> dict[str, str]:
    """TF1 name of every variable by our path."""
    return {path: _tf1_name(path) for path in variables(detector)}


_TF1_NAMES = (
    (r"backbone\.conv_(\w+)\.", r"FeatureExtractor/MobilenetV1/Conv2d_\1/"),
    (r"head\.map_(\d)\.box\.", r"BoxPredictor_\1/BoxEncodingPredictor/"),
    (r"head\.map_(\d)\.class_\.", r"BoxPredictor_\1/ClassPredictor/"),
    (r"depthwise/kernel", "depthwise/depthwise_weights"),
    (r"kernel$", "weights"),
    (r"(Predictor)/bias$", r"\1/biases"),
    (r"norm\.scale", "BatchNorm/gamma"),
    (r"norm\.bias", "BatchNorm/beta"),
    (r"norm\.mean", "BatchNorm/moving_mean"),
    (r"norm\.var", "BatchNorm/moving_variance"),
)
_EXTRA_CHANNELS = {2: 512, 3: 256, 4: 256, 5: 128}


def _tf1_name(path: str) -> str:
    extra = re.match(r"neck\.extra_(\d)_(\dx\d)\.(.*)", path)
    if extra:
        index, size, rest = extra.groups()
        depth = _EXTRA_CHANNELS[int(index)]
        layer = f"1_Conv2d_{index}_1x1_{depth // 2}"
        if size == "3x3":
            layer = f"2_Conv2d_{index}_3x3_s2_{depth}"
        path = f"FeatureExtractor/MobilenetV1/Conv2d_13_pointwise_{layer}/{rest}"
    for pattern, replacement in _TF1_NAMES:
        path = re.sub(pattern, replacement, path)
    return path


def load_deterministic_weights(detector: Detector) -> None:
    """Gives every variable the value that the goldens derive from its TF1 name."""
    arrays, tf1 = variables(detector), names(detector)
    for path, variable in arrays.items():
        variable[...] = deterministic_weight(tf1[path], variable.shape)


def deterministic_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("weights"):
        gain = 0.25 if name.startswith("BoxPredictor") else 2.0
        fan_in = np.prod(shape[:2]) * (1 if "depthwise" in name.split("/")[-1] else shape[2])
        normal *= np.sqrt(gain / fan_in)
    elif name.endswith("gamma"):
        normal = 1 + 0.1 * normal
    elif name.endswith("moving_variance"):
        normal = 1 + 0.5 * np.abs(normal)
    else:
        normal *= 0.1
        if name.endswith("ClassPredictor/biases"):
            normal -= 4.6
    return normal.astype(np.float32)


def images() -> np.ndarray:
    """`[2, 300, 300, 3]`: the 480x640 wave pattern and its half turn, legacy bilinear resize."""
    y, x, c = np.meshgrid(np.arange(480), np.arange(640), np.arange(3), indexing="ij")
    waves = (127.5 + 127.5 * np.sin(0.05 * y + 0.03 * x * (c + 1) + c)).astype(np.float32)
    return np.stack([_legacy_bilinear(image, 300) for image in (waves, waves[::-1, ::-1])])


def _legacy_bilinear(image: np.ndarray, side: int) -> np.ndarray:
    """TF1's resize without half-pixel centres (fact sheet 3.1)."""
    for axis in (0, 1):
        length = image.shape[axis]
        source = np.arange(side, dtype=np.float32) * np.float32(length / side)
        low = np.floor(source).astype(int)
        share = (source - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        upper = np.take(image, np.minimum(low + 1, length - 1), axis)
        lower = np.take(image, low, axis)
        image = (lower + (upper - lower) * share).astype(np.float32)
    return image
