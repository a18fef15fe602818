"""Every field of a RetinaNet experiment of TensorFlow Model Garden, with type and default.

`keys.json` has them. The original's are dataclasses: `official/vision/configs/retinanet.py`,
`common.py`, `backbones.py` and `decoders.py`, `official/core/config_definitions.py` and
`official/modeling/optimization/configs` (tensorflow/models 2.15). A choice has a `type` and one
section for each of its members, in use or not.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stillbox.experiment.params_dict.keys import Key, read_keys

# Fields that take a text or something else.
_ANY = ("input_path", "tfds_name", "init_checkpoint_modules")


def _fields() -> Iterator[tuple[str, Key]]:
    sections = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    task = sections["task"]
    task["validation_data"] = task["train_data"] | {"is_training": False}
    for path, key in read_keys(sections):
        yield path, Key(object, key.default) if path.rpartition(".")[2] in _ANY else key


FIELDS: Mapping[str, Key] = dict(_fields())
"""Dotted path -> type and default of the experiment `retinanet`."""

_EPOCH = 462
"""Steps of 256 images in an epoch of COCO's 118,287."""


def _coco(epochs: int, falls: tuple[int, int], warmup: int) -> dict[str, Any]:
    """Returns what the three experiments on COCO have in common."""
    trainer, rate = "trainer.optimizer_config", "trainer.optimizer_config.learning_rate"
    intervals = ("validation_interval", "steps_per_loop", "summary_interval", "checkpoint_interval")
    return {
        "task.annotation_file": "coco/instances_val2017.json",
        "task.model.num_classes": 91,
        "task.train_data.input_path": "coco/train*",
        "task.train_data.global_batch_size": 256,
        "task.train_data.parser.aug_rand_hflip": True,
        "task.validation_data.input_path": "coco/val*",
        "task.validation_data.global_batch_size": 8,
        "trainer.train_steps": epochs * _EPOCH,
        "trainer.validation_steps": 625,
        **{f"trainer.{name}": _EPOCH for name in intervals},
        f"{trainer}.optimizer.type": "sgd",
        f"{trainer}.optimizer.sgd.momentum": 0.9,
        f"{rate}.type": "stepwise",
        f"{rate}.stepwise.boundaries": tuple(epoch * _EPOCH for epoch in falls),
        f"{rate}.stepwise.values": (0.32, 0.032, 0.0032),
        f"{trainer}.warmup.type": "linear",
        f"{trainer}.warmup.linear.warmup_steps": warmup,
        f"{trainer}.warmup.linear.warmup_learning_rate": 0.0067,
    }


def _spinenet(kind: str, side: int) -> dict[str, Any]:
    return {
        "runtime.mixed_precision_dtype": "float32",
        "task.model.backbone.type": kind,
        f"task.model.backbone.{kind}.stochastic_depth_drop_rate": 0.2,
        "task.model.decoder.type": "identity",
        "task.model.anchor.anchor_size": 3.0,
        "task.model.norm_activation.activation": "swish",
        "task.model.input_size": (side, side, 3),
        "task.train_data.parser.aug_scale_min": 0.1,
        "task.train_data.parser.aug_scale_max": 2.0,
    }


PRETRAINED = "gs://cloud-tpu-checkpoints/vision-2.0/resnet50_imagenet/ckpt-28080"
"""The classifier that `retinanet_resnetfpn_coco` begins with."""

EXPERIMENTS: Mapping[str, Mapping[str, Any]] = {
    "retinanet": {},
    "retinanet_resnetfpn_coco": {
        **_coco(72, (57, 67), 500),
        "runtime.mixed_precision_dtype": "bfloat16",
        "task.init_checkpoint": PRETRAINED,
        "task.init_checkpoint_modules": "backbone",
        "task.losses.l2_weight_decay": 1e-4,
        "task.model.input_size": (640, 640, 3),
        "task.model.norm_activation.use_sync_bn": False,
        "task.train_data.parser.aug_scale_min": 0.8,
        "task.train_data.parser.aug_scale_max": 1.2,
    },
    "retinanet_spinenet_coco": {
        **_coco(500, (475, 490), 2000),
        **_spinenet("spinenet", 640),
        "task.losses.l2_weight_decay": 4e-5,
    },
    "retinanet_mobile_coco": {
        **_coco(600, (575, 590), 2000),
        **_spinenet("spinenet_mobile", 384),
        "task.losses.l2_weight_decay": 3e-5,
        "task.model.head.num_filters": 48,
        "task.model.head.use_separable_conv": True,
    },
}
"""Name of an experiment -> the fields in which it differs from `retinanet`."""
