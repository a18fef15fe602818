"""The range of every number that has one."""

import fnmatch
import math
import re
from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import Plain, to_plain

# The least number above zero makes "above zero" an ordinary closed range.
_ABOVE_ZERO = math.ulp(0.0)
_ANY = math.inf

# Path without list indices -> least and greatest allowed value. A `*` stands for one name or more.
_LIMITS: dict[str, tuple[float, float]] = {
    "data.*.max_boxes": (1, _ANY),
    "data.*.num_epochs": (0, _ANY),
    "data.evaluation.num_epochs": (0, 1),
    "data.*.sample_1_of_n": (1, _ANY),
    "data.seed": (0, 2**63 - 1),
    "data.workers": (0, _ANY),
    "data.prefetch": (0, _ANY),
    "model.num_classes": (1, _ANY),
    "model.resizer.height": (1, _ANY),
    "model.resizer.width": (1, _ANY),
    "model.resizer.min_dimension": (1, _ANY),
    "model.resizer.max_dimension": (1, _ANY),
    "model.resizer.pad_value": (0, 255),
    "model.pixels.std": (_ABOVE_ZERO, _ANY),
    "model.*.depth_multiplier": (_ABOVE_ZERO, _ANY),
    "model.backbone.min_depth": (1, _ANY),
    "model.neck.min_depth": (1, _ANY),
    "model.neck.extra_depths": (1, _ANY),
    "model.head.layers_before": (0, _ANY),
    "model.head.min_depth": (0, _ANY),
    "model.head.max_depth": (0, _ANY),
    "model.head.kernel_size": (1, _ANY),
    "model.head.dropout_keep_probability": (_ABOVE_ZERO, 1),
    "model.*.conv.regularizer.weight": (0, _ANY),
    "model.*.conv.initializer.stddev": (0, _ANY),
    "model.*.conv.initializer.factor": (0, _ANY),
    "model.*.conv.batch_norm.decay": (0, 1),
    "model.*.conv.batch_norm.epsilon": (_ABOVE_ZERO, _ANY),
    "model.anchors.num_layers": (1, _ANY),
    "model.anchors.min_scale": (_ABOVE_ZERO, _ANY),
    "model.anchors.max_scale": (_ABOVE_ZERO, _ANY),
    "model.anchors.scales": (_ABOVE_ZERO, _ANY),
    "model.anchors.aspect_ratios": (_ABOVE_ZERO, _ANY),
    "model.anchors.interpolated_scale_aspect_ratio": (0, _ANY),
    "model.anchors.base_anchor_height": (_ABOVE_ZERO, _ANY),
    "model.anchors.base_anchor_width": (_ABOVE_ZERO, _ANY),
    "model.anchors.height_strides": (1, _ANY),
    "model.anchors.width_strides": (1, _ANY),
    "model.box_coder.*": (_ABOVE_ZERO, _ANY),
    "model.matcher.matched_threshold": (0, 1),
    "model.matcher.unmatched_threshold": (0, 1),
    "model.loss.classification.gamma": (0, _ANY),
    "model.loss.classification.alpha": (0, 1),
    "model.loss.classification.logit_scale": (_ABOVE_ZERO, _ANY),
    "model.loss.localization.delta": (_ABOVE_ZERO, _ANY),
    "model.loss.classification_weight": (0, _ANY),
    "model.loss.localization_weight": (0, _ANY),
    "model.loss.negative_class_weight": (0, _ANY),
    "model.loss.hard_example_miner.num_hard_examples": (1, _ANY),
    "model.loss.hard_example_miner.iou_threshold": (0, 1),
    "model.loss.hard_example_miner.max_negatives_per_positive": (0, _ANY),
    "model.loss.hard_example_miner.min_negatives_per_image": (0, _ANY),
    "model.postprocessing.logit_scale": (_ABOVE_ZERO, _ANY),
    "model.postprocessing.nms.iou_threshold": (0, 1),
    "model.postprocessing.nms.max_per_class": (1, _ANY),
    "model.postprocessing.nms.max_total": (1, _ANY),
    "train.batch_size": (1, _ANY),
    "train.steps": (0, _ANY),
    "train.augmentations.*.probability": (0, 1),
    "train.augmentations.*.min_object_covered": (0, 1),
    "train.augmentations.*.overlap_thresh": (0, 1),
    "train.augmentations.*.random_coef": (0, 1),
    "train.augmentations.*.min_aspect_ratio": (_ABOVE_ZERO, _ANY),
    "train.augmentations.*.min_area": (0, 1),
    "train.augmentations.*.max_area": (_ABOVE_ZERO, 1),
    "train.optimizer.momentum": (0, 1),
    "train.optimizer.decay": (0, 1),
    "train.optimizer.epsilon": (0, _ANY),
    "train.optimizer.schedule.*learning_rate": (0, _ANY),
    "train.optimizer.schedule.*step": (1, _ANY),
    "train.optimizer.schedule.warmup_steps": (0, _ANY),
    "train.optimizer.schedule.hold_steps": (0, _ANY),
    "train.optimizer.schedule.burnin_steps": (0, _ANY),
    "train.optimizer.schedule.decay_steps": (1, _ANY),
    "train.optimizer.schedule.decay_factor": (_ABOVE_ZERO, _ANY),
    "train.optimizer.schedule.total_steps": (1, _ANY),
    "train.ema_decay": (0, 1),
    "train.gradient_clip_norm": (0, _ANY),
    "train.fine_tune.min_loaded": (0, 1),
    "train.seed": (0, 2**63 - 1),
    "train.log_every": (1, _ANY),
    "train.checkpoint_every": (1, _ANY),
    "train.keep_checkpoints": (1, _ANY),
    "train.evaluate_every": (0, _ANY),
    "train.early_stopping.patience": (1, _ANY),
    "train.early_stopping.min_delta": (0, _ANY),
    "evaluation.batch_size": (1, _ANY),
    "evaluation.max_examples": (0, _ANY),
    "evaluation.num_visualizations": (0, _ANY),
    "evaluation.min_score": (0, 1),
    "evaluation.max_boxes_drawn": (0, _ANY),
}

# Translated once: some 80 patterns meet some 150 numbers in every check.
_PATTERNS = [
    (re.compile(fnmatch.translate(pattern)), low, high) for pattern, (low, high) in _LIMITS.items()
]


def check_limits(experiment: Experiment) -> Iterator[Broken]:
    """Finds numbers outside their range."""
    for path, number in _numbers(to_plain(experiment), ""):
        for pattern, low, high in _PATTERNS:
            if pattern.fullmatch(path) and not low <= number <= high:
                yield Broken(path, f"{path} is {number}", f"give a value {_spell(low, high)}")


def _numbers(plain: Plain, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(plain, dict):
        for name, value in plain.items():
            yield from _numbers(value, f"{path}.{name}" if path else name)
    elif isinstance(plain, list):
        for index, value in enumerate(plain):
            # A list of numbers has one origin; a list of sections has one for each.
            yield from _numbers(value, f"{path}.{index}" if isinstance(value, dict) else path)
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        yield path, plain


def _spell(low: float, high: float) -> str:
    least = "above 0" if low == _ABOVE_ZERO else f"of at least {low:g}"
    return least if high == _ANY else f"{least} and at most {high:g}"
