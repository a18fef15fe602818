"""`TrainConfig`: batch, steps, optimiser, learning rate, first weights."""

from dataclasses import replace

from stillbox.experiment.pipeline_config.augmentations import read_augmentation
from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.schema import (
    Adam,
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    FineTune,
    ManualStepSchedule,
    Momentum,
    Quantization,
    RmsProp,
    ScheduleStep,
    Training,
)
from stillbox.experiment.sections import part

_read_schedule = choice(
    "learning_rate",
    {
        "cosine_decay_learning_rate": part(
            CosineSchedule,
            learning_rate="learning_rate_base",
            hold_steps="hold_base_rate_steps",
        ),
        "exponential_decay_learning_rate": part(
            ExponentialSchedule, learning_rate="initial_learning_rate"
        ),
        "manual_step_learning_rate": part(
            ManualStepSchedule,
            learning_rate="initial_learning_rate",
            schedule=("schedule", part(ScheduleStep)),
        ),
        "constant_learning_rate": part(ConstantSchedule),
    },
)
_SCHEDULE = ("learning_rate", _read_schedule)
_read_optimizer = choice(
    "optimizer",
    {
        "momentum_optimizer": part(
            Momentum, schedule=_SCHEDULE, momentum="momentum_optimizer_value"
        ),
        "rms_prop_optimizer": part(
            RmsProp, schedule=_SCHEDULE, momentum="momentum_optimizer_value"
        ),
        "adam_optimizer": part(Adam, schedule=_SCHEDULE),
    },
)
_read = part(
    Training,
    augmentations=("data_augmentation_options", read_augmentation),
    optimizer=("optimizer", _read_optimizer),
    freeze="freeze_variables",
    trainable="update_trainable_variables",
    steps="num_steps",
    gradient_clip_norm="gradient_clipping_by_norm",
    regularization="add_regularization_loss",
)
_read_weights = part(FineTune, checkpoint="fine_tune_checkpoint")
_read_quantization = part(Quantization)
_KIND = "fine_tune_checkpoint_type"
_SCOPES = {"classification": "classification", "detection": "detection", "full": "detection"}


def read_quantization(root: MessageSection) -> Quantization | None:
    """Reads `graph_rewriter` of a whole file."""
    rewriter = root.child("graph_rewriter")
    # The original rewrites the graph wherever there is a graph_rewriter, even an empty one.
    if not root.has("graph_rewriter"):
        return None
    quantization: Quantization = _read_quantization(
        rewriter.child("quantization"), "train.quantization"
    )
    return quantization


def read_training(section: MessageSection) -> Training:
    """Reads `train_config`."""
    bfloat16 = section.value("use_bfloat16", "train.precision")
    bias = section.value("bias_grad_multiplier", "train.bias_gradient_multiplier")
    training: Training = _read(
        section,
        "train",
        ema_decay=_read_moving_average(section.child("optimizer")),
        precision="bfloat16" if bfloat16 else "float32",
        fine_tune=_read_fine_tune(section, "train.fine_tune"),
        # An explicit 0 leaves the gradients alone as well: the original tests its truth.
        bias_gradient_multiplier=bias or 1.0,
    )
    return training


def as_trained_by_keras(train: Training, extractor: MessageSection) -> Training:
    """Returns the training of a model of the second generation, whose parameters Keras updates.

    Args:
        train: that of the first generation, which models of the first generation keep.
        extractor: `feature_extractor` of the model.
    """
    if not extractor.get("type").endswith("_keras"):
        return train
    where, origins = extractor.where("type"), extractor.log.origins
    if isinstance(train.optimizer, Momentum):
        optimizer = replace(train.optimizer, rate_in_accumulator=True)
        train = replace(train, optimizer=optimizer)
        origins["train.optimizer.rate_in_accumulator"] = where
    if train.ema_decay is not None:
        train = replace(train, ema_warmup=True, ema_from_zero=True)
        origins |= dict.fromkeys(("train.ema_warmup", "train.ema_from_zero"), where)
    return train


def _read_moving_average(section: MessageSection) -> float | None:
    decay: float = section.value("moving_average_decay", "train.ema_decay")
    if not section.has("use_moving_average"):
        section.note(
            "",
            "use_moving_average is not set, and the format's default is true; "
            "--set train.ema_decay=null switches it off",
        )
    if section.value("use_moving_average", "train.ema_decay"):
        return decay
    # Both fields are read, so that the log is silent about the one without effect.
    if section.has("moving_average_decay"):
        section.note(
            "moving_average_decay",
            "moving_average_decay has no effect while use_moving_average is false",
        )
    return None


def _read_fine_tune(section: MessageSection, path: str) -> FineTune:
    # The text replaced the boolean at some time; files of both ages are about.
    is_detector = section.value("from_detection_checkpoint", f"{path}.scope")
    if kind := section.value(_KIND, f"{path}.scope"):
        reasons = {"fine_tune": "it belongs to CenterNet"}
        section.choose(_KIND, _SCOPES, reasons=reasons)
    if kind == "classification" and is_detector:
        section.warn(
            _KIND,
            "fine_tune_checkpoint_type 'classification' overrides from_detection_checkpoint: true "
            f"of {section.where('from_detection_checkpoint')}",
        )
    # Also consumes the field if "full", TF2's word for a detector with its heads, overrides it.
    heads = section.value("load_all_detection_checkpoint_vars", f"{path}.load_heads")
    fine_tune: FineTune = _read_weights(
        section,
        path,
        scope=_SCOPES[kind or ("detection" if is_detector else "classification")],
        load_heads=heads or kind == "full",
        min_loaded=_read_least_loaded(section, f"{path}.min_loaded"),
    )
    return fine_tune


def _read_least_loaded(section: MessageSection, path: str) -> float:
    """Returns the least share of the wanted arrays that a checkpoint must have.

    The file tells its own version. With V2 the original refuses one that lacks a single array.
    """
    version = section.value("fine_tune_checkpoint_version", path)
    return 1.0 if version == "v2" else FineTune().min_loaded
