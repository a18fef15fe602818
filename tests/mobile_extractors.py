"""Mobile feature extractors and Inception v3 of the original, and what it computed for them.

The goldens hold figures of the TF1 graphs of the original's SSDLite configs and of its config of
MnasFPN at 320 pixels with `tests/reference.py`'s weights and images, and of the same configs shrunk
(`small`).
"""

import zlib
from functools import cache
from pathlib import Path
from typing import Any

from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from tests.helpers import read_json

MNASFPN = "ssd_mobilenet_v2_mnasfpn"
KINDS = (
    *("ssd_mobilenet_v3_large", "ssd_mobilenet_v3_small", "ssd_mobilenet_edgetpu"),
    *(f"ssd_mobiledet_{target}" for target in ("cpu", "gpu", "dsp", "edgetpu")),
    *("ssd_inception_v3", MNASFPN),
)

# Extractors that ignore override_base_feature_extractor_hyperparams.
OWN_HYPERPARAMETERS = tuple(kind for kind in KINDS if "mobiledet" in kind or kind == MNASFPN)

_PENALTY = "regularizer { l2_regularizer { weight: 4e-5 } }"
_NORM = "batch_norm { scale: true decay: 0.97 epsilon: 0.001 }"
_CONFIG = """
model {{ ssd {{
  num_classes: {classes}
  box_coder {{ faster_rcnn_box_coder {{ }} }}
  matcher {{ argmax_matcher {{ force_match_for_each_row: true }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  encode_background_as_zeros: true
  anchor_generator {{ {anchors} }}
  image_resizer {{ fixed_shape_resizer {{ height: {side} width: {side} }} }}
  box_predictor {{ {head}
    kernel_size: 3 use_depthwise: true class_prediction_bias_init: -4.6
    conv_hyperparams {{
      activation: RELU_6 {penalty} {norm}
      initializer {{ random_normal_initializer {{ stddev: 0.03 }} }}
    }}
  }} }}
  feature_extractor {{
    type: "{kind}" {more}
    min_depth: {min_depth} depth_multiplier: {multiplier}
    conv_hyperparams {{
      activation: RELU_6 {penalty} {norm}
      initializer {{ truncated_normal_initializer {{ stddev: 0.03 }} }}
    }}
    override_base_feature_extractor_hyperparams: {override} use_explicit_padding: {padding}
  }}
  loss {{
    classification_loss {{ weighted_sigmoid_focal {{ alpha: {alpha} gamma: 2.0 }} }}
    localization_loss {{ weighted_smooth_l1 {{ delta: 1.0 }} }}
  }}
  normalize_loss_by_num_matches: true
  normalize_loc_loss_by_codesize: true
  post_processing {{ score_converter: SIGMOID }}
}} }}
"""
_SSDLITE = {
    "anchors": "ssd_anchor_generator { aspect_ratios: [1.0, 2.0, 0.5, 3.0, 0.3333] }",
    "head": "convolutional_box_predictor { use_dropout: false",
    "more": "use_depthwise: true",
    "alpha": 0.75,
}
_PYRAMID = {
    "anchors": """multiscale_anchor_generator {
      min_level: 3 max_level: 6 anchor_scale: 3.0 aspect_ratios: [1.0, 2.0, 0.5]
      scales_per_octave: 3
    }""",
    "head": "weight_shared_convolutional_box_predictor { depth: 64 "
    "num_layers_before_predictor: 4 share_prediction_tower: true",
    "more": "fpn { min_level: 3 max_level: 6 additional_layer_depth: 48 }",
    "alpha": 0.25,
}


@cache
def golden(kind: str) -> Any:
    file = Path(__file__).parent / "goldens" / f"models_{kind}.json"
    return read_json(file)


def model(
    kind: str, *, small: bool = False, override: bool | None = None, padding: bool = False
) -> schema.OneStage:
    """The detector of a golden.

    Args:
        kind: type of the feature extractor.
        small: the shrunk one.
        override: hyperparameters of the base network are the config's; None: as in the golden.
        padding: strided layers are padded explicitly.
    """
    record = golden(kind)["small"] if small else {}
    if override is None:
        override = kind not in OWN_HYPERPARAMETERS
    text = _CONFIG.format(
        kind=kind,
        classes=record.get("num_classes", 90),
        side=record.get("size", 320),
        multiplier=record.get("depth_multiplier", 1.0),
        min_depth=record.get("min_depth", 16),
        override=str(override).lower(),
        penalty=_PENALTY,
        norm=_NORM,
        padding=str(padding).lower(),
        **(_PYRAMID if kind == MNASFPN else _SSDLITE),
    )
    described = read_pipeline_config(text, f"{kind}.config").experiment.model
    assert isinstance(described, schema.OneStage)
    return described


def checksum(shapes: dict[str, tuple[int, ...]]) -> int:
    """Of all variables, as recorded in the goldens."""
    lines = sorted(f"{name} {list(shape)}" for name, shape in shapes.items())
    return zlib.crc32("\n".join(lines).encode())
