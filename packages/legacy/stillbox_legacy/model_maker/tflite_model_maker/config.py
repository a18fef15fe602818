"""`tflite_model_maker.config`: formats and quantisation of exports, and the values of a model.

The values come from `efficientdet/hparams_config.py`. The original's specifications hold them, and
a notebook changes them (`spec.config.max_instances_per_image = 300`).
"""

import ast
import copy
import enum
import re
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes, YamlText
from stillbox.textformat.yaml_tree import compose, read_text_file
from stillbox_legacy.model_maker.quantization import QuantizationConfig

__all__ = ["Config", "ExportFormat", "QuantizationConfig", "changes_of", "default_config"]


@enum.unique
class ExportFormat(enum.Enum):
    """What `ObjectDetector.export` writes."""

    TFLITE = "TFLITE"
    SAVED_MODEL = "SAVED_MODEL"
    LABEL = "LABEL"
    VOCAB = "VOCAB"
    TFJS = "TFJS"


class Config:
    """Values by name, as attributes; a dictionary inside is a `Config` too."""

    def __init__(self, config_dict: Mapping[Any, Any] | None = None) -> None:
        self.update(config_dict or {})

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = Config(value) if isinstance(value, dict) else copy.deepcopy(value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - values of any type
        raise AttributeError(f"the configuration has no {name!r}: {nearest(name, self.keys())}")

    def __getitem__(self, name: Any) -> Any:  # noqa: ANN401
        return self.__dict__[name]

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Config":
        return Config(self.as_dict())

    def get(self, name: str, default_value: object = None) -> object:
        """Returns a value, or the default if there is none."""
        return self.__dict__.get(name, default_value)

    def keys(self) -> list[str]:
        """Returns the names."""
        return list(map(str, self.__dict__))

    def as_dict(self) -> dict[Any, Any]:
        """Returns a dictionary, also for what is inside."""
        return {
            name: value.as_dict() if isinstance(value, Config) else copy.deepcopy(value)
            for name, value in self.__dict__.items()
        }

    def update(self, config_dict: Mapping[Any, Any]) -> None:
        """Changes values and adds names; a dictionary changes what it names."""
        for name, value in config_dict.items():
            old = self.__dict__.get(name)
            if isinstance(old, Config) and isinstance(value, Mapping):
                old.update(value)
            else:
                # Ids of classes are names too.
                self.__dict__[name] = (
                    Config(value) if isinstance(value, Mapping) else copy.deepcopy(value)
                )

    def override(self, config_dict_or_str: object, allow_new_keys: bool = False) -> None:
        """Changes values.

        Args:
            config_dict_or_str: a dictionary, `a=1,b.c=2` with `*` between the items of a list, or
                the name of a YAML file.
            allow_new_keys: take names that there are not.

        Raises:
            UserError: it is none of these, or a name is unknown.
        """
        changes = _parse(config_dict_or_str)
        for name in [] if allow_new_keys else changes:
            if name not in self.__dict__:
                raise UserError(
                    f"there is no {name!r}", where="hparams", fix=nearest(name, self.keys())
                )
        self.update(changes)


def _parse(source: object) -> Mapping[str, Any]:
    if isinstance(source, Config):
        return source.as_dict()
    if isinstance(source, Mapping):
        return source
    if source is None or source == "":
        return {}
    text = str(source)
    if "=" not in text and text.endswith((".yaml", ".yml")):
        fix = "give a file of names and values"
        document = compose(read_text_file(Path(text), fix=fix), text).plain()
        if isinstance(document, dict):
            return document
    elif "=" in text:
        changes: dict[str, Any] = {}
        for pair in filter(None, text.split(",")):
            name, _, value = pair.partition("=")
            *folders, last = name.strip().split(".")
            inner = changes
            for folder in folders:
                inner = inner.setdefault(folder, {})
            inner[last] = [*map(_literal, value.split("*"))] if "*" in value else _literal(value)
        return changes
    raise UserError(
        f"{text!r} has no values", where="hparams", fix="give a dictionary, a=1,b=2 or FILE.yaml"
    )


def _literal(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


_FIELDS: dict[str, tuple[str, ...]] = {
    "max_instances_per_image": ("data.train.max_boxes", "data.evaluation.max_boxes"),
    "num_scales": ("model.anchors.scales_per_octave",),
    "aspect_ratios": ("model.anchors.aspect_ratios",),
    "anchor_scale": ("model.anchors.anchor_scale",),
    "momentum": ("train.optimizer.momentum",),
    "clip_gradients_norm": ("train.gradient_clip_norm",),
    "alpha": ("model.loss.classification.alpha",),
    "gamma": ("model.loss.classification.gamma",),
    "delta": ("model.loss.localization.delta",),
    "box_loss_weight": ("model.loss.localization_weight",),
    "weight_decay": tuple(
        f"model.{part}.conv.regularizer.weight" for part in ("backbone", "neck", "head")
    ),
    "box_class_repeats": ("model.head.layers_before",),
    "fpn_cell_repeats": ("model.neck.num_repeats",),
    "fpn_num_filters": ("model.neck.depth", "model.head.depth"),
}
"""Values that are fields of an experiment."""

_HANDLED: dict[str, object] = {
    "image_size": 320,
    "input_rand_hflip": True,
    "jitter_min": 0.1,
    "jitter_max": 2.0,
    "map_freq": 5,
    "num_classes": 90,
    "skip_crowd_during_training": True,
    "label_map": None,
    "is_training_bn": True,
    "learning_rate": 0.08,
    "lr_warmup_init": 0.008,
    "lr_warmup_epoch": 1.0,
    "num_epochs": 50,
    "mixed_precision": False,
    "moving_average_decay": 0,
    "var_freeze_expr": "(efficientnet|fpn_cells|resample_p6)",
    "tflite_max_detections": 25,
    "batch_size": 64,
    "model_dir": None,
    "model_name": "",
    "name": "",
    "backbone_name": "",
}
"""Values that `changes_of` or the detector takes, with their defaults."""

_NO_EFFECT: dict[str, tuple[object, str]] = {
    "strategy": (None, "all devices of the machine are used"),
    "steps_per_execution": (1, "each step is dispatched ahead of the device"),
    "profile": (False, "`stillbox train --profile` traces steps"),
    "debug": (False, "stillbox has no such mode"),
    "tf_random_seed": (111111, "runs are deterministic; the seed counted in debug mode only"),
    "verbose": (0, "the lines of training are always printed"),
    "drop_remainder": (True, "an epoch has whole batches, and scoring has all images"),
    "data_format": ("channels_last", "layouts are XLA's"),
    "img_summary_steps": (None, "TensorBoard shows the inputs"),
    "sample_image": (None, "TensorBoard shows the inputs"),
    "save_freq": ("epoch", "a checkpoint is written after each epoch"),
    "regenerate_source_id": (False, "images are known by their names"),
    "use_keras_model": (True, "there is one implementation"),
    "dataset_type": (None, "records say what they are"),
    "ckpt_var_scope": (None, "arrays are found by their names"),
    "skip_mismatch": (True, "arrays of other shapes are reported and not read"),
    "grad_checkpoint": (False, "train.rematerialization is a field of an experiment"),
    "loss_scale": (None, "bfloat16 needs none"),
    "first_lr_drop_epoch": (200.0, "the schedule is a cosine"),
    "second_lr_drop_epoch": (250.0, "the schedule is a cosine"),
    "poly_lr_power": (0.9, "the schedule is a cosine"),
    "iou_loss_weight": (1.0, "there is no IoU loss beside the loss of boxes"),
    "seg_num_classes": (3, "there are no segments"),
}
"""Values without effect: default, and the reason."""

_FIXED: dict[str, object] = {
    "act_type": "relu6",
    "apply_bn_for_resampling": True,
    "autoaugment_policy": None,
    "backbone_config": None,
    "batch_norm_trainable": True,
    "conv_after_downsample": False,
    "conv_bn_act_pattern": False,
    "fpn_config": None,
    "fpn_name": None,
    "fpn_weight_method": "sum",
    "grid_mask": False,
    "heads": ["object_detection"],
    "iou_loss_type": None,
    "label_smoothing": 0.0,
    "lr_decay_method": "cosine",
    "max_level": 7,
    "mean_rgb": 127.0,
    "min_level": 3,
    "model_optimizations": {},
    "nms_configs": {
        "method": "gaussian",
        "iou_thresh": None,
        "score_thresh": 0.0,
        "sigma": None,
        "pyfunc": False,
        "max_nms_inputs": 0,
        "max_output_size": 100,
    },
    "optimizer": "sgd",
    "positives_momentum": None,
    "scale_range": False,
    "separable_conv": True,
    "stddev_rgb": 128.0,
    "survival_prob": None,
    "target_size": None,
}
"""Values that cannot be changed through this interface."""


def default_config(experiment: Experiment) -> Config:
    """Returns the values of a recipe under the original's names."""
    config = Config(_HANDLED | _FIXED | {name: value for name, (value, _) in _NO_EFFECT.items()})
    for name, paths in _FIELDS.items():
        value = attrgetter(paths[0])(experiment)
        config.update({name: list(value) if isinstance(value, tuple) else value})
    rows, columns = experiment.model.resizer.input_size
    config.update({"image_size": (rows, columns)})
    return config


def changes_of(config: Config, experiment: Experiment) -> Changes:
    """Returns the changes of a recipe that a configuration stands for, but for its schedule.

    Says which changed values have no effect.

    Raises:
        UserError: a changed value has no counterpart.
    """
    changes = {**_simple(config, experiment), **_image(config), **_switches(config)}
    for name, (default, reason) in _NO_EFFECT.items():
        if config.get(name) != default:
            say_aside(f"{name}={config.get(name)!r} has no effect: {reason}")
    values = config.as_dict()
    for name, default in _FIXED.items():
        if values.get(name) != default:
            raise UserError(
                f"{name}={values.get(name)!r} has no counterpart here",
                where="model_spec.config",
                fix=f"leave it at {default!r}, or write an experiment (docs/experiment.md)",
            )
    known = _FIELDS.keys() | _HANDLED.keys() | _NO_EFFECT.keys() | _FIXED.keys()
    for name in list(config.as_dict()):
        if name not in known:
            fix = nearest(name, known)
            raise UserError(f"there is no {name!r}", where="model_spec.config", fix=fix)
    return changes


def _simple(config: Config, experiment: Experiment) -> Changes:
    changes = dict[str, object]()
    for name, paths in _FIELDS.items():
        value = config.get(name)
        plain = list(value) if isinstance(value, list | tuple) else value
        for path in paths:
            current = attrgetter(path)(experiment)
            if plain != (list(current) if isinstance(current, tuple) else current):
                changes[path] = YamlText(plain) if isinstance(plain, str) else plain
    return changes


def _image(config: Config) -> Changes:
    rows, columns = image_size(config.get("image_size"))
    square = {
        "kind": "random_scale_crop_and_pad_to_square",
        "output_size": rows,
        "min_scale": config.get("jitter_min"),
        "max_scale": config.get("jitter_max"),
    }
    flips = [{"kind": "random_horizontal_flip"}] if config.get("input_rand_hflip") else []
    return {
        "model.resizer.min_dimension": rows,
        "model.resizer.max_dimension": columns,
        "train.augmentations": [*flips, square],
    }


def _switches(config: Config) -> Changes:
    return {
        "data.train.crowds": "drop" if config.get("skip_crowd_during_training") else "train",
        "model.freeze_batch_norm": not config.get("is_training_bn"),
        "train.precision": "bfloat16" if config.get("mixed_precision") else "float32",
        "train.ema_decay": config.get("moving_average_decay") or None,
    }


def image_size(value: object) -> tuple[int, int]:
    """Returns height and width of a number, two numbers, or a text such as `320x320`.

    Raises:
        UserError: it is none of these, or they differ.
    """
    text = value if isinstance(value, str) else ""
    if re.fullmatch(r"\d{1,5}x\d{1,5}", text):
        width, height = map(int, text.split("x"))
        value = (height, width)
    if isinstance(value, int):
        value = (value, value)
    match value:
        case (int(rows), int(columns)) | [int(rows), int(columns)] if rows == columns > 0:
            return rows, columns
    raise UserError(
        f"{value!r} is not the size of a square image",
        where="image_size",
        fix="give one number of pixels, such as 320",
    )
