"""`TrainConfig`: batch, steps, optimiser, learning rate, first weights, data augmentation."""

from dataclasses import replace
from typing import get_args, get_type_hints

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.reading import FieldReader, field_mapping
from stillbox.experiment.values import Value
from stillbox.references import Setting

POLICIES: tuple[str, ...] = get_args(get_type_hints(schema.AutoAugment)["policy"])
"""Legal values of `policy_name`."""

_FACTORS = {"min_factor": "min_delta", "max_factor": "max_delta"}
_SIZE = {"height": "target_height", "width": "target_width"}
_SCALES = {"min_scale": "scale_min", "max_scale": "scale_max"}
_PADDED = "min_padded_size_ratio max_padded_size_ratio"


def _autoaugment(section: MessageSection, path: str) -> schema.AutoAugment:
    policy = section.value("policy_name", f"{path}.policy")
    if policy not in POLICIES:
        problem = f"AutoAugmentImage.policy_name: there is no policy {policy!r}"
        raise UserError(problem, where=section.where("policy_name"), fix=nearest(policy, POLICIES))
    return schema.AutoAugment(policy=policy)


def _subtract_channel_mean(section: MessageSection, path: str) -> schema.SubtractChannelMean:
    if not section.has("means"):
        problem = "subtract_channel_mean has no means"
        raise UserError(problem, where=section.where(), fix="add means: [R, G, B]")
    return schema.SubtractChannelMean(**section.read_fields(path, "means"))


def _padded_crop(section: MessageSection, path: str) -> schema.RandomCropPadImage:
    """Reads an operation of `ssd_random_crop_pad`."""
    # The default is black here, and the mean only if there are no operations.
    color = tuple(section.value(f"pad_color_{c}", f"{path}.pad_color") for c in "rgb")
    return _CROP_PAD(section, path, pad_color=color)


def _with_operations(reader: FieldReader, operation: FieldReader) -> FieldReader:
    """Returns a reader of a crop that takes `operations`, if any, in place of the usual ones."""

    def read(section: MessageSection, path: str) -> Value:
        operations = section.read_inner("operations", operation, f"{path}.operations")
        return reader(section, path, **({"operations": operations} if operations else {}))

    return read


def _fixed_aspect_ratio(section: MessageSection, path: str) -> Value:
    crop = _FIXED_ASPECT_RATIO(section, path)
    if section.has("aspect_ratio") and not section.children("operations"):
        section.warn(
            "aspect_ratio",
            "the original ignores aspect_ratio if there are no operations and takes 1.0; "
            "stillbox honours it",
        )
    return crop


_AREA = "min_object_covered min_area max_area overlap_thresh clip_boxes random_coef"
_WINDOW = f"{_AREA} min_aspect_ratio max_aspect_ratio"
_CROP = field_mapping(schema.RandomCropImage, _WINDOW)
_CROP_PAD = field_mapping(
    schema.RandomCropPadImage, f"{_WINDOW} {_PADDED} pad_color", f"{_PADDED} pad_color"
)
_FIXED_ASPECT_RATIO = _with_operations(
    field_mapping(schema.SsdRandomCropFixedAspectRatio, "aspect_ratio"),
    field_mapping(schema.FixedAspectCrop, _AREA),
)
_STEPS: dict[str, FieldReader] = {
    "random_horizontal_flip": field_mapping(schema.RandomHorizontalFlip, "probability"),
    "random_vertical_flip": field_mapping(schema.RandomVerticalFlip, "probability"),
    "random_rotation90": field_mapping(schema.RandomRotation90, "probability"),
    "random_self_concat_image": field_mapping(
        schema.RandomSelfConcatImage,
        vertical_probability="concat_vertical_probability",
        horizontal_probability="concat_horizontal_probability",
    ),
    "random_crop_image": _CROP,
    "random_crop_pad_image": _CROP_PAD,
    "random_crop_to_aspect_ratio": field_mapping(
        schema.RandomCropToAspectRatio, "aspect_ratio overlap_thresh clip_boxes"
    ),
    "ssd_random_crop": _with_operations(field_mapping(schema.SsdRandomCrop), _CROP),
    "ssd_random_crop_pad": _with_operations(field_mapping(schema.SsdRandomCropPad), _padded_crop),
    "ssd_random_crop_fixed_aspect_ratio": _fixed_aspect_ratio,
    "ssd_random_crop_pad_fixed_aspect_ratio": _with_operations(
        field_mapping(schema.SsdRandomCropPadFixedAspectRatio, f"aspect_ratio {_PADDED}", _PADDED),
        _CROP,
    ),
    "random_square_crop_by_scale": field_mapping(
        schema.RandomSquareCropByScale, "max_border num_scales", **_SCALES
    ),
    "random_scale_crop_and_pad_to_square": field_mapping(
        schema.RandomScaleCropAndPadToSquare, "output_size", **_SCALES
    ),
    "random_pad_image": field_mapping(
        schema.RandomPadImage,
        "pad_color",
        "min_height min_width max_height max_width pad_color",
        min_height="min_image_height",
        min_width="min_image_width",
        max_height="max_image_height",
        max_width="max_image_width",
    ),
    "random_absolute_pad_image": field_mapping(
        schema.RandomAbsolutePadImage, "max_height_padding max_width_padding pad_color", "pad_color"
    ),
    "random_image_scale": field_mapping(
        schema.RandomImageScale, min_ratio="min_scale_ratio", max_ratio="max_scale_ratio"
    ),
    "random_resize_method": field_mapping(schema.RandomResizeMethod, **_SIZE),
    "resize_image": field_mapping(
        schema.ResizeImage, "method", height="new_height", width="new_width"
    ),
    # The format and its operation have two defaults of max_target_pixels; the operation's is ours.
    "random_downscale_to_target_pixels": field_mapping(
        schema.RandomDownscaleToTargetPixels,
        "min_target_pixels max_target_pixels random_coef",
        "max_target_pixels",
    ),
    "random_adjust_brightness": field_mapping(schema.RandomAdjustBrightness, "max_delta"),
    "random_adjust_contrast": field_mapping(schema.RandomAdjustContrast, **_FACTORS),
    "random_adjust_hue": field_mapping(schema.RandomAdjustHue, max_turn="max_delta"),
    "random_adjust_saturation": field_mapping(schema.RandomAdjustSaturation, **_FACTORS),
    "random_distort_color": field_mapping(schema.RandomDistortColor, ordering="color_ordering"),
    "random_pixel_value_scale": field_mapping(
        schema.RandomPixelValueScale, min_factor="minval", max_factor="maxval"
    ),
    "random_rgb_to_gray": field_mapping(schema.RandomRgbToGray, "probability"),
    "rgb_to_gray": field_mapping(schema.RgbToGray),
    "adjust_gamma": field_mapping(schema.AdjustGamma, "gamma gain"),
    "normalize_image": field_mapping(
        schema.NormalizeImage,
        original_min="original_minval",
        original_max="original_maxval",
        target_min="target_minval",
        target_max="target_maxval",
    ),
    "subtract_channel_mean": _subtract_channel_mean,
    "random_black_patches": field_mapping(
        schema.RandomBlackPatches,
        "probability",
        max_patches="max_black_patches",
        size_ratio="size_to_image_ratio",
    ),
    "random_jpeg_quality": field_mapping(
        schema.RandomJpegQuality,
        "random_coef",
        min_quality="min_jpeg_quality",
        max_quality="max_jpeg_quality",
    ),
    "random_patch_gaussian": field_mapping(
        schema.RandomPatchGaussian,
        "min_patch_size max_patch_size random_coef",
        min_stddev="min_gaussian_stddev",
        max_stddev="max_gaussian_stddev",
    ),
    "autoaugment_image": _autoaugment,
    "random_jitter_boxes": field_mapping(schema.RandomJitterBoxes, "ratio", mode="jitter_mode"),
    "drop_label_probabilistically": field_mapping(
        schema.DropLabelProbabilistically, "label", probability="drop_probability"
    ),
    "remap_labels": field_mapping(
        schema.RemapLabels, "original_labels new_label", "original_labels"
    ),
}


def read_augmentation(section: MessageSection, path: str) -> schema.Augmentation:
    """Reads one of `data_augmentation_options`."""
    name = section.member("preprocessing_step", _STEPS)
    section.log.origins[path] = section.where(name)
    augmentation: schema.Augmentation = _STEPS[name](section.child(name), path)
    return augmentation


_read_schedule = choice(
    "learning_rate",
    {
        "cosine_decay_learning_rate": field_mapping(
            schema.CosineSchedule,
            "total_steps warmup_learning_rate warmup_steps",
            learning_rate="learning_rate_base",
            hold_steps="hold_base_rate_steps",
        ),
        "exponential_decay_learning_rate": field_mapping(
            schema.ExponentialSchedule,
            "decay_steps decay_factor staircase burnin_learning_rate burnin_steps "
            "min_learning_rate",
            learning_rate="initial_learning_rate",
        ),
        "manual_step_learning_rate": field_mapping(
            schema.ManualStepSchedule,
            "warmup",
            learning_rate="initial_learning_rate",
            schedule=("schedule", field_mapping(schema.ScheduleStep, "step learning_rate")),
        ),
        "constant_learning_rate": field_mapping(schema.ConstantSchedule, "learning_rate"),
    },
)
_SCHEDULE = ("learning_rate", _read_schedule)
_read_optimizer = choice(
    "optimizer",
    {
        "momentum_optimizer": field_mapping(
            schema.Momentum, schedule=_SCHEDULE, momentum="momentum_optimizer_value"
        ),
        "rms_prop_optimizer": field_mapping(
            schema.RmsProp, "decay epsilon", schedule=_SCHEDULE, momentum="momentum_optimizer_value"
        ),
        "adam_optimizer": field_mapping(schema.Adam, "epsilon", schedule=_SCHEDULE),
    },
)
_read = field_mapping(
    schema.Training,
    "batch_size",
    augmentations=("data_augmentation_options", read_augmentation),
    optimizer=("optimizer", _read_optimizer),
    freeze="freeze_variables",
    trainable="update_trainable_variables",
    steps="num_steps",
    gradient_clip_norm="gradient_clipping_by_norm",
    regularization="add_regularization_loss",
)
_read_weights = field_mapping(schema.FineTune, checkpoint="fine_tune_checkpoint")
_read_quantization = field_mapping(
    schema.Quantization, "delay weight_bits activation_bits symmetric"
)
_KIND = "fine_tune_checkpoint_type"
_SCOPES = {"classification": "classification", "detection": "detection", "full": "detection"}


def read_quantization(root: MessageSection) -> schema.Quantization | None:
    """Reads `graph_rewriter` of a whole file."""
    rewriter = root.child("graph_rewriter")
    # The original rewrites the graph wherever there is a graph_rewriter, even an empty one.
    if not root.has("graph_rewriter"):
        return None
    return _read_quantization(rewriter.child("quantization"), "train.quantization")


def read_training(section: MessageSection) -> schema.Training:
    """Reads `train_config`."""
    bfloat16 = section.value("use_bfloat16", "train.precision")
    bias = section.value("bias_grad_multiplier", "train.bias_gradient_multiplier")
    return _read(
        section,
        "train",
        ema_decay=_read_moving_average(section.child("optimizer")),
        precision="bfloat16" if bfloat16 else "float32",
        fine_tune=_read_fine_tune(section, "train.fine_tune"),
        # An explicit 0 leaves the gradients alone as well: the original tests its truth.
        bias_gradient_multiplier=bias or 1.0,
    )


def as_trained_by_keras(train: schema.Training, extractor: MessageSection) -> schema.Training:
    """Returns training with Keras's updates if the model is of the second generation."""
    if not extractor.get("type").endswith("_keras"):
        return train
    where, origins = extractor.where("type"), extractor.log.origins
    if isinstance(train.optimizer, schema.Momentum):
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
            f"{Setting('train.ema_decay', None)} switches it off",
        )
    if section.value("use_moving_average", "train.ema_decay"):
        return decay
    # Each of the two fields is read, so that the log is silent about the one without effect.
    if section.has("moving_average_decay"):
        text = "moving_average_decay has no effect while use_moving_average is false"
        section.note("moving_average_decay", text)
    return None


def _read_fine_tune(section: MessageSection, path: str) -> schema.FineTune:
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
    return _read_weights(
        section,
        path,
        scope=_SCOPES[kind or ("detection" if is_detector else "classification")],
        load_heads=heads or kind == "full",
        min_loaded=_read_least_loaded(section, f"{path}.min_loaded"),
    )


def _read_least_loaded(section: MessageSection, path: str) -> float:
    """Returns the least share of the wanted arrays that a checkpoint must have.

    The config names the version. With V2 the original refuses a file that lacks a single array.
    """
    version = section.value("fine_tune_checkpoint_version", path)
    return 1.0 if version == "v2" else schema.FineTune().min_loaded
