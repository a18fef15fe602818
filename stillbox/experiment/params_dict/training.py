"""`train`: batch, steps, optimiser, learning rate, first weights (TPU detection fact sheet 5)."""

import re
from typing import Literal

from stillbox.errors import UserError
from stillbox.experiment.params_dict.layers import freezes_norm
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import (
    Adadelta,
    Adagrad,
    Adam,
    Augmentation,
    ConstantSchedule,
    CosineSchedule,
    FineTune,
    ManualStepSchedule,
    Model,
    Momentum,
    Optimizer,
    RmsProp,
    Schedule,
    ScheduleStep,
    Training,
)

RESNET_STEM = r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/"
"""What 2020 froze by default: the first convolution and the first group of a ResNet."""
_FROZEN = "train.frozen_variable_prefix"
_PREFIX = "train.checkpoint.prefix"
_RATES = "train.learning_rate"


def read_training(
    reading: Reading, model: Model, augmentations: tuple[Augmentation, ...]
) -> Training:
    """Reads `train`.

    Args:
        reading: the dictionary.
        model: what was read of it already.
        augmentations: what `retinanet_parser` asks for.
    """
    return Training(
        augmentations=augmentations,
        optimizer=_read_optimizer(reading),
        precision=_read_precision(reading),
        freeze=(*_read_frozen(reading), *_frozen_norms(reading, model)),
        fine_tune=_read_fine_tune(reading),
        evaluate_every=_read_interval(reading),
        **reading.fill(
            "train",
            "train",
            batch_size="train_batch_size",
            steps="total_steps",
            gradient_clip_norm="gradient_clip_norm",
        ),
    )


def _read_interval(reading: Reading) -> int:
    if not reading.params.value("eval.eval_file_pattern"):
        return 0
    interval: int = reading.take("eval.num_steps_per_eval", "train.evaluate_every")
    return interval


def _read_precision(reading: Reading) -> Literal["float32", "bfloat16"]:
    wanted = reading.take("architecture.use_bfloat16", "train.precision")
    if not reading.take("use_tpu", "train.precision") and wanted:
        reading.notes.append(
            f"{reading.params.where('use_tpu')}: without a TPU the original computes in float32, "
            "so use_bfloat16 is not looked at; --set train.precision=bfloat16 asks for it"
        )
        wanted = False
    return "bfloat16" if wanted else "float32"


def _read_optimizer(reading: Reading) -> Optimizer:
    kinds = ("momentum", "adam", "adadelta", "adagrad", "rmsprop")
    kind = reading.choose("train.optimizer.type", kinds, "train.optimizer.kind")
    schedule = _read_schedule(reading, "train.optimizer.schedule")
    if kind == "adam":
        return Adam(schedule=schedule)
    if kind == "adadelta":
        return Adadelta(schedule=schedule)
    if kind == "adagrad":
        return Adagrad(schedule=schedule)
    momentum = reading.take("train.optimizer.momentum", "train.optimizer.momentum")
    if kind == "momentum":
        return Momentum(schedule=schedule, momentum=momentum)
    return RmsProp(schedule=schedule, momentum=momentum, decay=0.9, epsilon=1e-3)


def _read_schedule(reading: Reading, path: str) -> Schedule:
    kind = reading.choose(f"{_RATES}.type", ("step", "cosine"), f"{path}.kind")
    if kind == "cosine":
        return CosineSchedule(
            total_steps=reading.take("train.total_steps", f"{path}.total_steps"),
            **reading.fill(
                _RATES,
                path,
                learning_rate="init_learning_rate",
                warmup_learning_rate="warmup_learning_rate",
                warmup_steps="warmup_steps",
            ),
        )
    return _read_steps(reading, path)


def _read_steps(reading: Reading, path: str) -> Schedule:
    levels, steps = (
        reading.take(f"{_RATES}.learning_rate_{name}", f"{path}.schedule")
        for name in ("levels", "steps")
    )
    if len(levels) != len(steps):
        raise UserError(
            f"{_RATES} has {len(levels)} learning_rate_levels and {len(steps)} learning_rate_steps",
            where=reading.params.where(f"{_RATES}.learning_rate_levels")
            or reading.params.where(f"{_RATES}.learning_rate_steps"),
            fix="give a step to each level",
        )
    rate = reading.take(f"{_RATES}.init_learning_rate", f"{path}.learning_rate")
    warmup = reading.take(f"{_RATES}.warmup_steps", f"{path}.schedule", f"{path}.warmup")
    start = reading.take(f"{_RATES}.warmup_learning_rate", f"{path}.learning_rate")
    falls = tuple(
        ScheduleStep(step=step, learning_rate=level)
        for step, level in zip(steps, levels, strict=True)
    )
    if warmup:
        # The line from the first rate to the first scheduled one is the warm-up.
        first = ScheduleStep(step=warmup, learning_rate=rate)
        return ManualStepSchedule(learning_rate=start, schedule=(first, *falls), warmup=True)
    if not falls:
        return ConstantSchedule(learning_rate=rate)
    return ManualStepSchedule(learning_rate=rate, schedule=falls)


def _read_frozen(reading: Reading) -> tuple[str, ...]:
    regex = reading.take(_FROZEN, "train.freeze")
    if not regex:
        return ()
    _check_regex(reading, _FROZEN, regex)
    if regex == RESNET_STEM and reading.params.value("architecture.backbone") != "resnet":
        reading.notes.append(
            f"{reading.params.where(_FROZEN)}: {_FROZEN} is about ResNets and freezes nothing of "
            f"this {reading.params.value('architecture.backbone')}"
        )
        return ()
    # Patterns of the original hold from the start of a name on; its names end with `:0`.
    return (f"^(?:{regex.replace(':0', '')})",)


def _frozen_norms(reading: Reading, model: Model) -> list[str]:
    """Returns patterns for the scales and offsets that batch_norm_trainable leaves alone."""
    blocks = {
        "backbone": reading.params.value("architecture.backbone"),
        "neck": {"fpn": "fpn", "nasfpn": "nasfpn"}.get(
            reading.params.value("architecture.multilevel_features")
        ),
        "head": "retinanet_head",
    }
    return [
        rf"^{part}\..*norm[^.]*\.(scale|bias)$"
        for part, block in blocks.items()
        if block and freezes_norm(reading, block) and getattr(model, part).conv.batch_norm
    ]


def _read_fine_tune(reading: Reading) -> FineTune:
    path = reading.take("train.checkpoint.path", "train.fine_tune.checkpoint")
    prefix = reading.take(_PREFIX, "train.fine_tune.scope", "train.fine_tune.load_heads")
    skip = reading.take("train.checkpoint.skip_variables_regex", "train.fine_tune.skip")
    if skip:
        _check_regex(reading, "train.checkpoint.skip_variables_regex", skip)
    if not path:
        return FineTune()
    # A prefix is what the checkpoint's names lack: those of a classifier lack the backbone's.
    if prefix:
        _check_prefix(reading, prefix)
    return FineTune(
        checkpoint=path,
        scope="classification" if prefix else "detection",
        load_heads=not prefix,
        skip=(f"^(?:{skip})",) if skip else (),
    )


def _check_prefix(reading: Reading, prefix: str) -> None:
    backbone = reading.params.value("architecture.backbone")
    depth = reading.params.value("resnet.resnet_depth") if backbone == "resnet" else ""
    scope = f"{backbone}{depth}"
    if prefix.rstrip("/") != scope:
        reading.refuse(
            _PREFIX,
            f"the backbone of this model is {scope}/, and a prefix is there to name it",
            f"{_PREFIX}={scope}/ for a classifier's checkpoint, nothing for a detector's",
        )


def _check_regex(reading: Reading, path: str, regex: str) -> None:
    try:
        re.compile(regex)
    except re.error as error:
        raise UserError(
            f"{path} = {regex!r} is no regular expression: {error}",
            where=reading.params.where(path),
            fix="the original matches it against the start of variables' names",
        ) from error
