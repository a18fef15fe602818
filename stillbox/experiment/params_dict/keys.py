"""Every key of the parameter dictionary of RetinaNet on TPU, with type and default.

The original's are in `detection/configs/base_config.py` and `detection/configs/retinanet_config.py`
(tensorflow/tpu, models/official): the last version, and that of 2020.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from stillbox.experiment.values import Hint, Value

BACKBONES = ("resnet", "spinenet", "spinenet_mbconv")
"""Values of `architecture.backbone`, and the sections that describe them."""
NECKS = ("fpn", "nasfpn")
"""Values of `architecture.multilevel_features` with a section; `identity` has none."""
BLOCKS = (*BACKBONES, *NECKS)
"""All sections that are only in use if something chooses them."""

_INTS = tuple[int, ...]


@dataclass(frozen=True)
class Key:
    """Type and default of a key."""

    type: Hint
    default: Value
    """None if the key is null unless it is set; null is then allowed."""


# In place of a default, a type stands for a key that is null unless it is set.
_FINAL: dict[str, Any] = {
    "type": "retinanet",
    "model_dir": "",
    "use_tpu": True,
    "isolate_session_state": False,
    "enable_summary": False,
    "tpu_job_name": "",
    "platform": {"eval_master": "", "tpu": "", "tpu_zone": "", "gcp_project": ""},
    "architecture": {
        "parser": "retinanet_parser",
        "backbone": "resnet",
        "multilevel_features": "fpn",
        "min_level": 3,
        "max_level": 7,
        "num_classes": 91,
        "use_bfloat16": True,
        "space_to_depth_block_size": 1,
        "pre_parser": str,
        "output_flat_fpn_features": False,
    },
    "train": {
        "iterations_per_loop": 100,
        "train_batch_size": 64,
        "total_steps": 22500,
        "num_shards": int,
        "num_cores_per_replica": int,
        "input_partition_dims": _INTS,
        "optimizer": {"type": "momentum", "momentum": 0.9},
        "learning_rate": {
            "type": "step",
            "warmup_learning_rate": 0.0067,
            "warmup_steps": 500,
            "init_learning_rate": 0.08,
            "learning_rate_levels": (0.008, 0.0008),
            "learning_rate_steps": (15000, 20000),
        },
        "checkpoint": {"path": "", "prefix": "", "skip_variables_regex": ""},
        "frozen_variable_prefix": str,
        "regularization_variable_regex": r".*(kernel|weight):0$",
        "l2_weight_decay": 0.0001,
        "gradient_clip_norm": 0.0,
        "transpose_input": True,
        "train_file_pattern": "",
        "train_dataset_type": "tfrecord",
        "pre_parser_dataset": {"file_pattern": "", "dataset_type": "tfrecord"},
    },
    "eval": {
        "type": "box",
        "eval_batch_size": 8,
        "eval_samples": int,
        "min_eval_interval": 180,
        "eval_timeout": int,
        "num_steps_per_eval": 1000,
        "use_json_file": True,
        "val_json_file": "",
        "eval_file_pattern": "",
        "eval_dataset_type": "tfrecord",
        "per_category_metrics": False,
        "skip_eval_loss": False,
        "suffix": "",
    },
    "predict": {"predict_batch_size": 8},
    "batch_norm_activation": {
        "batch_norm_momentum": 0.997,
        "batch_norm_epsilon": 1e-4,
        "batch_norm_trainable": True,
        "use_sync_bn": False,
        "activation": "relu",
    },
    "dropblock": {"dropblock_keep_prob": float, "dropblock_size": int},
    "resnet": {"resnet_depth": 50, "init_drop_connect_rate": float},
    "spinenet": {
        "model_id": "49",
        "init_drop_connect_rate": float,
        "use_native_resize_op": False,
    },
    "spinenet_mbconv": {
        "model_id": "49",
        "se_ratio": 0.2,
        "init_drop_connect_rate": float,
        "use_native_resize_op": False,
    },
    "fpn": {"fpn_feat_dims": 256, "use_separable_conv": False, "use_batch_norm": True},
    "nasfpn": {
        "fpn_feat_dims": 256,
        "num_repeats": 5,
        "use_separable_conv": False,
        "init_drop_connect_rate": float,
        "block_fn": "conv",
        "activation": str,
        "use_sum_for_combination": False,
    },
    "anchor": {"num_scales": 3, "aspect_ratios": (1.0, 2.0, 0.5), "anchor_size": 4.0},
    "retinanet_parser": {
        "output_size": (640, 640),
        "match_threshold": 0.5,
        "unmatched_threshold": 0.5,
        "aug_rand_hflip": True,
        "aug_scale_min": 1.0,
        "aug_scale_max": 1.0,
        "aug_policy": "",
        "skip_crowd_during_training": True,
        "max_num_instances": 100,
        "regenerate_source_id": False,
    },
    "retinanet_head": {
        "anchors_per_location": int,
        "num_convs": 4,
        "num_filters": 256,
        "use_separable_conv": False,
        "use_batch_norm": True,
    },
    "retinanet_loss": {
        "focal_loss_alpha": 0.25,
        "focal_loss_gamma": 1.5,
        "huber_loss_delta": 0.1,
        "box_loss_weight": 50.0,
        "normalizer_momentum": 0.0,
    },
    "postprocess": {
        "apply_nms": True,
        "use_batched_nms": False,
        "nms_version": "v1",
        "max_total_size": 100,
        "nms_iou_threshold": 0.5,
        "score_threshold": 0.05,
        "pre_nms_num_boxes": 5000,
        "apply_sigmoid": True,
    },
}

_LEVELS = {"min_level": int, "max_level": int}
NORM: Mapping[str, type[float | bool]] = {
    "batch_norm_momentum": float,
    "batch_norm_epsilon": float,
    "batch_norm_trainable": bool,
    "use_sync_bn": bool,
}
"""Keys of each block's own `batch_norm` in 2020."""
_DROPBLOCK = {"dropblock_keep_prob": float, "dropblock_size": int}
_OLD: dict[str, Any] = {
    "train": {"space_to_depth_block_size": int},
    "anchor": _LEVELS,
    "resnet": {"activation": str, "batch_norm": NORM, "dropblock": _DROPBLOCK},
    "spinenet": {
        **_LEVELS,
        "filter_size_scale": float,
        "block_repeats": int,
        "resample_alpha": float,
        "endpoints_num_filters": int,
        "block_specs": str,
        "activation": str,
        "batch_norm": NORM,
    },
    "fpn": {**_LEVELS, "batch_norm": NORM},
    "nasfpn": {**_LEVELS, "batch_norm": NORM, "dropblock": _DROPBLOCK},
    "retinanet_parser": {
        "use_bfloat16": bool,
        "use_autoaugment": bool,
        "autoaugment_policy_name": str,
    },
    "retinanet_head": {
        **_LEVELS,
        "num_classes": int,
        "retinanet_head_num_convs": int,
        "retinanet_head_num_filters": int,
        "activation": str,
        "batch_norm": NORM,
    },
    "retinanet_loss": {"num_classes": int},
    "postprocess": {**_LEVELS, "num_classes": int},
}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Key]]:
    for name, item in tree.items():
        path = prefix + name
        if isinstance(item, dict):
            yield from _flatten(item, f"{path}.")
        elif isinstance(item, type | GenericAlias):
            yield path, Key(item, None)
        elif isinstance(item, tuple):
            yield path, Key(tuple[float, ...] if isinstance(item[0], float) else _INTS, item)
        else:
            yield path, Key(type(item), item)


FINAL: Mapping[str, Key] = dict(_flatten(_FINAL))
"""The keys of the last version, in its order."""
OLD: Mapping[str, Key] = dict(_flatten(_OLD))
"""Keys of the dictionary of 2020 alone; all are null unless they are set."""
KEYS: Mapping[str, Key] = {**FINAL, **OLD}
"""Both."""


def names_in(section: str, keys: Mapping[str, Key] = KEYS) -> tuple[str, ...]:
    """Returns the names of keys and sections in a section; `""` is the whole dictionary."""
    prefix = f"{section}." if section else ""
    inside = (path.removeprefix(prefix) for path in keys if path.startswith(prefix))
    return tuple(dict.fromkeys(rest.partition(".")[0] for rest in inside))
