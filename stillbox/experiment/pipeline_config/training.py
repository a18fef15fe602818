"""`TrainConfig`: batch, steps, optimiser, learning rate, first weights."""

import dataclasses
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.augmentations import read_augmentation
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    Adam,
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    FineTune,
    ManualStepSchedule,
    Momentum,
    Optimizer,
    RmsProp,
    Schedule,
    ScheduleStep,
    Training,
)

_SCOPES: dict[str, Any] = {
    "classification": "classification",
    "detection": "detection",
    "full": "detection",
}


def read_training(section: Section) -> Training:
    """Reads `train_config`."""
    optimizer = section.child("optimizer")
    bfloat16 = section.value("use_bfloat16", "train.precision")
    return Training(
        augmentations=tuple(
            read_augmentation(option, f"train.augmentations.{number}")
            for number, option in enumerate(section.children("data_augmentation_options"))
        ),
        optimizer=_read_optimizer(optimizer, "train.optimizer"),
        ema_decay=_read_moving_average(optimizer),
        freeze=section.values("freeze_variables", "train.freeze"),
        trainable=section.values("update_trainable_variables", "train.trainable"),
        precision="bfloat16" if bfloat16 else "float32",
        fine_tune=_read_fine_tune(section, "train.fine_tune"),
        # An explicit 0 leaves the gradients alone as well: the original asks whether it is true.
        bias_gradient_multiplier=section.value(
            "bias_grad_multiplier", "train.bias_gradient_multiplier"
        )
        or 1.0,
        **section.fill(
            "train",
            "batch_size",
            steps="num_steps",
            gradient_clip_norm="gradient_clipping_by_norm",
            regularization="add_regularization_loss",
        ),
    )


def _read_optimizer(section: Section, path: str) -> Optimizer:
    name, chosen = section.choose(
        "optimizer", ("momentum_optimizer", "rms_prop_optimizer", "adam_optimizer")
    )
    schedule = _read_schedule(chosen.child("learning_rate"), f"{path}.schedule")
    if name == "adam_optimizer":
        return Adam(schedule=schedule, **chosen.fill(path, "epsilon"))
    # Adam is the only optimiser without this field.
    momentum = chosen.fill(path, momentum="momentum_optimizer_value")
    if name == "momentum_optimizer":
        return Momentum(schedule=schedule, **momentum)
    return RmsProp(schedule=schedule, **momentum, **chosen.fill(path, "decay", "epsilon"))


def _read_schedule(section: Section, path: str) -> Schedule:
    name, chosen = section.choose(
        "learning_rate",
        (
            "cosine_decay_learning_rate",
            "exponential_decay_learning_rate",
            "manual_step_learning_rate",
            "constant_learning_rate",
        ),
    )
    if name == "constant_learning_rate":
        return ConstantSchedule(**chosen.fill(path, "learning_rate"))
    if name == "manual_step_learning_rate":
        return _read_manual_steps(chosen, path)
    if name == "cosine_decay_learning_rate":
        names = ("total_steps", "warmup_learning_rate", "warmup_steps")
        renamed = {"learning_rate": "learning_rate_base", "hold_steps": "hold_base_rate_steps"}
        return CosineSchedule(**chosen.fill(path, *names, **renamed))
    return ExponentialSchedule(
        **chosen.fill(
            path,
            "decay_steps",
            "decay_factor",
            "staircase",
            "burnin_learning_rate",
            "burnin_steps",
            "min_learning_rate",
            learning_rate="initial_learning_rate",
        )
    )


def _read_manual_steps(section: Section, path: str) -> ManualStepSchedule:
    steps = tuple(
        ScheduleStep(**step.fill(f"{path}.schedule.{number}", "step", "learning_rate"))
        for number, step in enumerate(section.children("schedule"))
    )
    rest: dict[str, Any] = section.fill(path, "warmup", learning_rate="initial_learning_rate")
    return ManualStepSchedule(schedule=steps, **rest)


def _read_moving_average(section: Section) -> float | None:
    decay: float = section.value("moving_average_decay", "train.ema_decay")
    if not section.has("use_moving_average"):
        section.log.notes.append(
            f"{section.where}: use_moving_average is not set, and the format's default is true; "
            "--set train.ema_decay=null switches it off"
        )
    if section.value("use_moving_average", "train.ema_decay"):
        return decay
    # Both fields were read, so the log would stay silent about the one that lost.
    if section.has("moving_average_decay"):
        section.log.notes.append(
            f"{section.position('moving_average_decay')}: moving_average_decay has no effect "
            "while use_moving_average is false"
        )
    return None


def _read_fine_tune(section: Section, path: str) -> FineTune:
    # The text replaced the boolean at some time; files of both ages are about.
    is_detector = section.value("from_detection_checkpoint", f"{path}.scope")
    kind = section.value("fine_tune_checkpoint_type", f"{path}.scope")
    if kind and kind not in _SCOPES:
        why = ": it belongs to other detectors than SSD" if kind == "fine_tune" else ""
        raise UserError(
            f"fine_tune_checkpoint_type {kind!r} is not supported{why}",
            where=section.position("fine_tune_checkpoint_type"),
            fix=f"there is: {', '.join(_SCOPES)}",
        )
    if kind == "classification" and is_detector:
        section.log.warnings.append(
            f"{section.position('fine_tune_checkpoint_type')}: fine_tune_checkpoint_type "
            "'classification' overrides from_detection_checkpoint: true of "
            f"{section.position('from_detection_checkpoint')}"
        )
    fine_tune = FineTune(
        scope=_SCOPES[kind or ("detection" if is_detector else "classification")],
        **section.fill(
            path,
            checkpoint="fine_tune_checkpoint",
            load_heads="load_all_detection_checkpoint_vars",
        ),
    )
    # TF2's word for a detector with its heads (ssd_meta_arch of that age).
    return dataclasses.replace(fine_tune, load_heads=True) if kind == "full" else fine_tune
