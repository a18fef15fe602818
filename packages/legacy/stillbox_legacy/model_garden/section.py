"""Fields of an experiment without effect, refused fields, and its convolutions.

A field in `NO_EFFECT`, or one of a section that nothing chooses, leaves a note if it is given with
another value than the experiment's default. Every other field that is not read is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from stillbox.experiment import schema
from stillbox.experiment.params_dict.section import GLOROT_UNIFORM, VARIANCE_SCALING, KeySection
from stillbox.references import Command

MODEL, DATA, TRAINER = "task.model", ("task.train_data", "task.validation_data"), "trainer"
OPTIMIZATION = f"{TRAINER}.optimizer_config"
_DEVICES = "all devices that JAX finds run one synchronous program, compiled by XLA"
_READING = "records are read in a global random order by processes of this program"
_LOOPS = "every step is one call of a compiled program; trainer.summary_interval is honoured"
_SERVICE = "images are decoded on this machine"
_LABEL = "it is a name for TensorFlow's graphs"
_FLAGS = "`stillbox export_saved_model` has flags of these names"


def _each(section: str, names: str, reason: str) -> dict[str, str]:
    return {f"{section}.{name}": reason for name in names.split()}


_RUNTIME = (
    "distribution_strategy enable_xla gpu_thread_mode dataset_num_private_threads "
    "per_gpu_thread_count tpu num_gpus worker_hosts task_index all_reduce_alg num_packs "
    "batchnorm_spatial_persistent tpu_enable_xla_dynamic_padder default_shard_dim "
    "use_tpu_mp_strategy"
)
_READ_OTHERWISE = (
    "shuffle_buffer_size cycle_length block_length sharding prefetch_buffer_size autotune_algorithm"
)
_OF_SERVICE = (
    "enable_tf_data_service tf_data_service_address tf_data_service_job_name trainer_id "
    "enable_shared_tf_data_service_between_parallel_trainers apply_tf_data_service_before_batching"
)
_TFDS = "tfds_split tfds_data_dir tfds_as_supervised tfds_skip_decoding_feature"
_OF_DATA = {
    "drop_remainder": "no image of an evaluation is lost, and training has whole batches",
    **dict.fromkeys(_READ_OTHERWISE.split(), _READING),
    "deterministic": "every run with one seed has the same order",
    "cache": "data.cache_images keeps decoded images",
    "dtype": "runtime.mixed_precision_dtype is the type of activations; losses are float32",
    **dict.fromkeys(_OF_SERVICE.split(), _SERVICE),
    **dict.fromkeys(_TFDS.split(), "it belongs to tfds_name"),
    "parser.aug_policy": "the original does not read it; parser.aug_type does",
    **{
        f"decoder.{decoder}.{name}": why
        for decoder in ("simple_decoder", "label_map_decoder")
        for name, why in (
            ("regenerate_source_id", "an image without an id gets one"),
            ("mask_binarize_threshold", "masks are not read"),
        )
    },
}
_TRAINING_ONLY = (
    "aug_rand_hflip aug_scale_min aug_scale_max aug_type.type match_threshold unmatched_threshold "
    "skip_crowd_during_training"
)
_LOOPING = (
    "train_tf_while_loop train_tf_function eval_tf_function eval_tf_while_loop allow_tpu_summary "
    "steps_per_loop"
)
_EXPORTED = (
    "output_normalized_coordinates cast_num_detections_to_float cast_detection_classes_to_float"
)
NO_EFFECT: Mapping[str, str] = {
    **_each("runtime", _RUNTIME, _DEVICES),
    "runtime.run_eagerly": "every program is compiled",
    "runtime.loss_scale": "bfloat16 has the range of float32, so that no loss needs scaling",
    **{f"{section}.{name}": why for section in DATA for name, why in _OF_DATA.items()},
    **_each("task.validation_data.parser", _TRAINING_ONLY, "it belongs to training"),
    "task.validation_data.seed": _READING,
    "task.validation_data.weights": "it belongs to training",
    "task.name": "the model directory names a run",
    "task.allow_image_summary": "evaluation draws pictures in any case",
    "task.use_coco_metrics": "COCO's metrics are always computed",
    **_each("task.export_config", _EXPORTED, _FLAGS),
    f"{MODEL}.detection_generator.use_cpu_nms": _DEVICES,
    f"{MODEL}.decoder.fpn.use_keras_layer": "both forms are the same arithmetic",
    f"{MODEL}.backbone.spinenet_mobile.use_keras_upsampling_2d": "pixels are repeated either way",
    **_each(TRAINER, _LOOPING, _LOOPS),
    **{
        f"{OPTIMIZATION}.optimizer.{kind}_experimental.jit_compile": _DEVICES
        for kind in ("sgd", "adam", "adamw")
    },
    f"{TRAINER}.continuous_eval_timeout": (
        f"{Command('model_garden', mode='continuous_eval')} reads it"
    ),
    f"{TRAINER}.best_checkpoint_export_subdir": "the best checkpoint is always kept",
    **_each(TRAINER, "loss_upper_bound recovery_begin_steps", "it belongs to recovery_max_trials"),
    f"{TRAINER}.validation_summary_subdir": "scores go into the history of the run",
    f"{TRAINER}.preemption_on_demand_checkpoint": "a stopped run always saves what it has",
}
"""Field -> why it changes nothing."""

_ATTRIBUTES = "stillbox predicts boxes and classes, and no attributes of them"
REFUSED: Mapping[str, str] = {
    f"{MODEL}.head.attribute_heads": _ATTRIBUTES,
    f"{MODEL}.head.share_classification_heads": _ATTRIBUTES,
    f"{MODEL}.backbone.type=vit": "vision transformers are not supported",
    f"{MODEL}.backbone.type=revnet": "RevNet is not supported",
    f"{MODEL}.backbone.type=dilated_resnet": "it is for segmentation",
    f"{MODEL}.backbone.type=efficientnet": "it has no published detector with this head, and its "
    "blocks differ from the EfficientNet of the Object Detection API",
    f"{MODEL}.decoder.type=aspp": "it is for segmentation",
    f"{MODEL}.detection_generator.nms_version=tflite": (
        f"{Command('export', format='tflite')} writes TFLite's operation in any case"
    ),
    f"{MODEL}.detection_generator.nms_version=v3": "its refinements are not supported",
    f"{MODEL}.detection_generator.apply_nms": "detections are the result of non-maximum "
    "suppression",
    f"{MODEL}.detection_generator.return_decoded": "exports return detections",
    "runtime.num_cores_per_replica": "devices.spatial_partitions divides images by their height",
    "task.use_wod_metrics": "metrics of the Waymo Open Dataset are not computed",
    "task.max_num_eval_detections": "COCO's metrics count at most 100 detections of an image",
    "task.export_config.output_intermediate_features": "exports return detections",
    "task.differential_privacy_config.clipping_norm": "differential privacy is not supported",
    "task.differential_privacy_config.noise_multiplier": "differential privacy is not supported",
    f"{TRAINER}.recovery_max_trials": "a run ends where the loss is not finite, and does not go "
    "back",
    f"{TRAINER}.best_checkpoint_metric_comp": "all scores are better if they are higher",
    f"{OPTIMIZATION}.ema.start_step": "an average begins with the run",
    f"{OPTIMIZATION}.ema.dynamic_decay": "the original's average starts at 0, and is useless for "
    "thousands of steps without it",
    **_each(
        f"{OPTIMIZATION}.optimizer",
        "type=lamb type=lars type=slide type=adafactor",
        "it is not supported",
    ),
    f"{OPTIMIZATION}.optimizer.type=adagrad": "its epsilon, decay or start differ from the "
    "optimiser of this name in stillbox",
    **{
        f"{OPTIMIZATION}.learning_rate.type={kind}": "there is no such schedule"
        for kind in ("power", "power_linear", "power_with_offset", "step_cosine_with_offset")
    },
    **{
        f"{section}.{name}": why
        for section in DATA
        for name, why in {
            "weights": "several data sets are read in proportion to their sizes",
            "file_type": "records are TFRecords",
            "parser.num_channels": "images have three channels",
            "decoder.simple_decoder.attribute_names": _ATTRIBUTES,
        }.items()
    },
}
"""Field, or field and value as `field=value` -> why it is refused."""

CHOICES = (
    f"{MODEL}.backbone",
    f"{MODEL}.decoder",
    "task.train_data.decoder",
    "task.validation_data.decoder",
    "task.train_data.parser.aug_type",
    f"{OPTIMIZATION}.optimizer",
    f"{OPTIMIZATION}.learning_rate",
    f"{OPTIMIZATION}.warmup",
)
"""The `type` of these sections names the inner section that is in use."""


class GardenSection(KeySection):
    """A section of an experiment, or all of it; names of inner fields are dotted paths."""

    refused: ClassVar[Mapping[str, str]] = REFUSED

    def where(self, name: str = "") -> str | None:
        """Returns where a field is given; of a default, where its section is chosen."""
        path = self.label(name)
        chosen = (f"{choice}.type" for choice in CHOICES if path.startswith(f"{choice}."))
        return next(filter(None, map(self.params.where, (path, *chosen))), None)

    def no_effect(self) -> Mapping[str, str]:
        """Returns why fields have no effect, by path."""
        return {**NO_EFFECT, **dict(self._unused()), **dict(self._idle())}

    def _unused(self) -> Iterator[tuple[str, str]]:
        """Yields the fields of sections that nothing chooses, each with the reason."""
        value = self.params.value
        chosen = {choice: value(f"{choice}.type") for choice in CHOICES}
        generator = f"{MODEL}.detection_generator"
        for path in self.params.keys:
            for choice, kind in chosen.items():
                rest = path.removeprefix(f"{choice}.")
                if rest != path and rest.partition(".")[0] not in (kind, "type"):
                    yield path, f"{choice}.type is {kind}"
            if path.startswith(f"{generator}.tflite_post_processing."):
                yield path, f"{generator}.nms_version is {value(f'{generator}.nms_version')}"
            if path.startswith("task.validation_data.parser.aug_type."):
                yield path, "it belongs to training"
            if path.startswith(OPTIMIZATION) and path.endswith(".name"):
                yield path, _LABEL

    def _idle(self) -> Iterator[tuple[str, str]]:
        """Yields the fields that others switch off, each with the reason."""
        value, generator = self.params.value, f"{MODEL}.detection_generator"
        version = value(f"{generator}.nms_version")
        if version != "v1":
            yield f"{generator}.soft_nms_sigma", "nms_version is not v1"
        if version == "batched":
            yield f"{generator}.pre_nms_top_k", "nms_version is batched, which compares all boxes"


def read_conv(
    root: GardenSection,
    path: str,
    *,
    initializer: schema.Initializer = VARIANCE_SCALING,
    biased: bool = False,
) -> schema.ConvHyperparams:
    """Reads the hyperparameters of a part's convolutions.

    Args:
        root: the experiment.
        path: the part.
        initializer: of fresh kernels.
        biased: whether there are biases in front of its batch norms.
    """
    norm = root.child(f"{MODEL}.norm_activation")
    weight = root.value("task.losses.l2_weight_decay", f"{path}.conv.regularizer.weight")
    weight *= root.value("task.losses.loss_weight")
    fields = [f"{path}.conv.batch_norm.{field}" for field in ("statistics", "moving_variance")]
    synchronised = norm.value("use_sync_bn", *fields)
    return schema.ConvHyperparams(
        activation=norm.choose(
            "activation", ("relu", "relu6", "swish", "hard_swish"), f"{path}.conv.activation"
        ),
        regularizer=schema.L2(weight=weight) if weight else None,
        regularize_depthwise=False,
        initializer=initializer,
        force_bias=biased,
        batch_norm=schema.BatchNorm(
            center=True,
            scale=True,
            statistics="global" if synchronised else "per_replica",
            # Only the fused kernel computes the unbiased variance.
            moving_variance="biased" if synchronised else "unbiased",
            **norm.read_fields(
                f"{path}.conv.batch_norm", decay="norm_momentum", epsilon="norm_epsilon"
            ),
        ),
    )


def frozen_norm(conv: schema.ConvHyperparams) -> schema.ConvHyperparams:
    """Returns hyperparameters with batch norms that use their moving statistics in training too."""
    assert conv.batch_norm is not None
    return replace(conv, batch_norm=replace(conv.batch_norm, train=False))


def separable(conv: schema.ConvHyperparams) -> schema.ConvHyperparams:
    """Returns the hyperparameters of Keras' separable convolutions: its defaults, no penalty."""
    return replace(conv, regularizer=None, initializer=GLOROT_UNIFORM)


def as_texts(value: object) -> tuple[str, ...]:
    """Returns a text with commas, or a list of texts, as texts."""
    parts = value if isinstance(value, list | tuple) else [value or ""]
    return tuple(text.strip() for part in parts for text in str(part).split(",") if text.strip())
