"""Every field of a RetinaNet experiment of TensorFlow Model Garden, with type and default.

The original's are dataclasses: `official/vision/configs/retinanet.py`, `common.py`, `backbones.py`
and `decoders.py`, `official/core/config_definitions.py` and
`official/modeling/optimization/configs` (tensorflow/models 2.15). A choice has a `type` and one
section for each of its members, in use or not.
"""

from collections.abc import Iterator, Mapping
from types import GenericAlias
from typing import Any

from stillbox.experiment.params_dict.keys import Key

_INTS, _FLOATS, _TEXTS = tuple[int, ...], tuple[float, ...], tuple[str, ...]

# In place of a default, a type stands for a field that is null unless it is set. A field of type
# `object` takes several kinds of values.
_BACKBONE: dict[str, Any] = {
    "dilated_resnet": {
        "last_stage_repeats": 1,
        "model_id": 50,
        "multigrid": _INTS,
        "output_stride": 16,
        "replace_stem_max_pool": False,
        "resnetd_shortcut": False,
        "se_ratio": 0.0,
        "stem_type": "v0",
        "stochastic_depth_drop_rate": 0.0,
    },
    "efficientnet": {
        "model_id": "b0",
        "se_ratio": 0.0,
        "stochastic_depth_drop_rate": 0.0,
    },
    "mobiledet": {
        "filter_size_scale": 1.0,
        "model_id": "MobileDetCPU",
    },
    "mobilenet": {
        "filter_size_scale": 1.0,
        "model_id": "MobileNetV2",
        "output_intermediate_endpoints": False,
        "output_stride": int,
        "stochastic_depth_drop_rate": 0.0,
    },
    "resnet": {
        "bn_trainable": True,
        "depth_multiplier": 1.0,
        "model_id": 50,
        "replace_stem_max_pool": False,
        "resnetd_shortcut": False,
        "scale_stem": True,
        "se_ratio": 0.0,
        "stem_type": "v0",
        "stochastic_depth_drop_rate": 0.0,
    },
    "revnet": {
        "model_id": 56,
    },
    "spinenet": {
        "max_level": 7,
        "min_level": 3,
        "model_id": "49",
        "stochastic_depth_drop_rate": 0.0,
    },
    "spinenet_mobile": {
        "expand_ratio": 6,
        "max_level": 7,
        "min_level": 3,
        "model_id": "49",
        "se_ratio": 0.2,
        "stochastic_depth_drop_rate": 0.0,
        "use_keras_upsampling_2d": False,
    },
    "type": "resnet",
    "vit": {
        "hidden_size": 1,
        "init_stochastic_depth_rate": 0.0,
        "layer_scale_init_value": 0.0,
        "model_name": "vit-b16",
        "original_init": True,
        "output_2d_feature_maps": False,
        "output_encoded_tokens": True,
        "patch_size": 16,
        "pooler": "token",
        "pos_embed_shape": _INTS,
        "representation_size": 0,
        "transformer": {
            "attention_dropout_rate": 0.0,
            "dropout_rate": 0.0,
            "mlp_dim": 1,
            "num_heads": 1,
            "num_layers": 1,
        },
        "transformer_partition_dims": _INTS,
    },
}
_DATA: dict[str, Any] = {
    "apply_tf_data_service_before_batching": False,
    "autotune_algorithm": str,
    "block_length": 1,
    "cache": False,
    "cycle_length": int,
    "decoder": {
        "label_map_decoder": {
            "label_map": "",
            "mask_binarize_threshold": float,
            "regenerate_source_id": False,
        },
        "simple_decoder": {
            "attribute_names": Key(_TEXTS, ()),
            "mask_binarize_threshold": float,
            "regenerate_source_id": False,
        },
        "type": "simple_decoder",
    },
    "deterministic": bool,
    "drop_remainder": True,
    "dtype": "bfloat16",
    "enable_shared_tf_data_service_between_parallel_trainers": False,
    "enable_tf_data_service": False,
    "file_type": "tfrecord",
    "global_batch_size": 0,
    "input_path": Key(object, ""),
    "is_training": True,
    "parser": {
        "aug_policy": str,
        "aug_rand_hflip": False,
        "aug_scale_max": 1.0,
        "aug_scale_min": 1.0,
        "aug_type": {
            "autoaug": {
                "augmentation_name": "v0",
                "cutout_const": 100.0,
                "translate_const": 250.0,
            },
            "randaug": {
                "cutout_const": 40.0,
                "exclude_ops": Key(_TEXTS, ()),
                "magnitude": 10.0,
                "magnitude_std": 0.0,
                "num_layers": 2,
                "prob_to_apply": float,
                "translate_const": 10.0,
            },
            "type": str,
        },
        "match_threshold": 0.5,
        "max_num_instances": 100,
        "num_channels": 3,
        "pad": True,
        "skip_crowd_during_training": True,
        "unmatched_threshold": 0.5,
    },
    "prefetch_buffer_size": int,
    "seed": int,
    "sharding": True,
    "shuffle_buffer_size": 10000,
    "tf_data_service_address": str,
    "tf_data_service_job_name": str,
    "tfds_as_supervised": False,
    "tfds_data_dir": "",
    "tfds_name": Key(object, ""),
    "tfds_skip_decoding_feature": "",
    "tfds_split": "",
    "trainer_id": str,
    "weights": Key(object, None),
}
_OPTIMIZATION: dict[str, Any] = {
    "ema": {
        "average_decay": 0.99,
        "clipnorm": float,
        "clipvalue": float,
        "dynamic_decay": True,
        "global_clipnorm": float,
        "name": "ExponentialMovingAverage",
        "start_step": 0,
        "trainable_weights_only": True,
    },
    "learning_rate": {
        "constant": {
            "learning_rate": 0.1,
            "name": "Constant",
        },
        "cosine": {
            "alpha": 0.0,
            "decay_steps": int,
            "initial_learning_rate": float,
            "name": "CosineDecay",
            "offset": 0,
        },
        "exponential": {
            "decay_rate": float,
            "decay_steps": int,
            "initial_learning_rate": float,
            "name": "ExponentialDecay",
            "offset": 0,
            "staircase": bool,
        },
        "polynomial": {
            "cycle": False,
            "decay_steps": int,
            "end_learning_rate": 0.0001,
            "initial_learning_rate": float,
            "name": "PolynomialDecay",
            "offset": 0,
            "power": 1.0,
        },
        "power": {
            "initial_learning_rate": float,
            "name": "DirectPowerDecay",
            "power": -0.5,
        },
        "power_linear": {
            "initial_learning_rate": float,
            "linear_decay_fraction": 0.1,
            "name": "PowerAndLinearDecay",
            "offset": 0,
            "power": -0.5,
            "total_decay_steps": int,
        },
        "power_with_offset": {
            "initial_learning_rate": float,
            "name": "PowerDecayWithOffset",
            "offset": 0,
            "power": -0.5,
            "pre_offset_learning_rate": 1000000.0,
        },
        "step_cosine_with_offset": {
            "boundaries": _INTS,
            "name": "StepCosineDecayWithOffset",
            "offset": 0,
            "values": _FLOATS,
        },
        "stepwise": {
            "boundaries": _INTS,
            "name": "PiecewiseConstantDecay",
            "offset": 0,
            "values": _FLOATS,
        },
        "type": str,
    },
    "optimizer": {
        "adafactor": {
            "beta1": float,
            "clipnorm": float,
            "clipping_threshold": 1.0,
            "clipvalue": float,
            "decay_rate": 0.8,
            "epsilon1": 1e-30,
            "epsilon2": 0.001,
            "factored": True,
            "global_clipnorm": float,
            "include_in_weight_decay": str,
            "min_dim_size_to_factor": 128,
            "multiply_by_parameter_scale": True,
            "name": "Adafactor",
            "step_offset": 0,
            "weight_decay": float,
        },
        "adagrad": {
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-07,
            "global_clipnorm": float,
            "initial_accumulator_value": 0.1,
            "name": "Adagrad",
        },
        "adam": {
            "amsgrad": False,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-07,
            "global_clipnorm": float,
            "name": "Adam",
        },
        "adam_experimental": {
            "amsgrad": False,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-07,
            "global_clipnorm": float,
            "jit_compile": False,
            "name": "Adam",
        },
        "adamw": {
            "amsgrad": False,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-07,
            "exclude_from_weight_decay": _TEXTS,
            "global_clipnorm": float,
            "gradient_clip_norm": 1.0,
            "include_in_weight_decay": _TEXTS,
            "name": "AdamWeightDecay",
            "weight_decay_rate": 0.0,
        },
        "adamw_experimental": {
            "amsgrad": False,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-07,
            "global_clipnorm": 1.0,
            "jit_compile": False,
            "name": "AdamWeightDecayExperimental",
            "weight_decay": 0.0,
        },
        "lamb": {
            "beta_1": 0.9,
            "beta_2": 0.999,
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-06,
            "exclude_from_layer_adaptation": _TEXTS,
            "exclude_from_weight_decay": _TEXTS,
            "global_clipnorm": float,
            "name": "LAMB",
            "weight_decay_rate": 0.0,
        },
        "lars": {
            "classic_momentum": True,
            "clipnorm": float,
            "clipvalue": float,
            "eeta": 0.001,
            "exclude_from_layer_adaptation": _TEXTS,
            "exclude_from_weight_decay": _TEXTS,
            "global_clipnorm": float,
            "momentum": 0.9,
            "name": "LARS",
            "nesterov": False,
            "weight_decay_rate": 0.0,
        },
        "rmsprop": {
            "centered": False,
            "clipnorm": float,
            "clipvalue": float,
            "epsilon": 1e-07,
            "global_clipnorm": float,
            "momentum": 0.0,
            "name": "RMSprop",
            "rho": 0.9,
        },
        "sgd": {
            "clipnorm": float,
            "clipvalue": float,
            "decay": 0.0,
            "global_clipnorm": float,
            "momentum": 0.0,
            "name": "SGD",
            "nesterov": False,
        },
        "sgd_experimental": {
            "clipnorm": float,
            "clipvalue": float,
            "global_clipnorm": float,
            "jit_compile": False,
            "momentum": 0.0,
            "name": "SGD",
            "nesterov": False,
        },
        "slide": {
            "beta_1": 0.9,
            "beta_2": 0.999,
            "clipnorm": float,
            "clipvalue": float,
            "do_gradient_rescaling": True,
            "epsilon": 1e-06,
            "exclude_from_layer_adaptation": _TEXTS,
            "exclude_from_weight_decay": _TEXTS,
            "global_clipnorm": float,
            "include_in_sparse_layer_adaptation": _TEXTS,
            "name": "SLIDE",
            "norm_type": "layer",
            "ratio_clip_norm": 100000.0,
            "sparse_layer_learning_rate": 0.1,
            "weight_decay_rate": 0.0,
            "weight_decay_type": "inner",
        },
        "type": str,
    },
    "warmup": {
        "linear": {
            "name": "linear",
            "warmup_learning_rate": 0.0,
            "warmup_steps": int,
        },
        "polynomial": {
            "name": "polynomial",
            "power": 1.0,
            "warmup_steps": int,
        },
        "type": str,
    },
}
_EXPERIMENT: dict[str, Any] = {
    "runtime": {
        "all_reduce_alg": str,
        "batchnorm_spatial_persistent": False,
        "dataset_num_private_threads": int,
        "default_shard_dim": -1,
        "distribution_strategy": "mirrored",
        "enable_xla": False,
        "gpu_thread_mode": str,
        "loss_scale": Key(object, None),
        "mixed_precision_dtype": str,
        "num_cores_per_replica": 1,
        "num_gpus": 0,
        "num_packs": 1,
        "per_gpu_thread_count": 0,
        "run_eagerly": False,
        "task_index": -1,
        "tpu": str,
        "tpu_enable_xla_dynamic_padder": bool,
        "use_tpu_mp_strategy": False,
        "worker_hosts": str,
    },
    "task": {
        "allow_image_summary": False,
        "annotation_file": str,
        "differential_privacy_config": {
            "clipping_norm": 100000000.0,
            "noise_multiplier": 0.0,
        },
        "export_config": {
            "cast_detection_classes_to_float": False,
            "cast_num_detections_to_float": False,
            "output_intermediate_features": False,
            "output_normalized_coordinates": False,
        },
        "freeze_backbone": False,
        "init_checkpoint": str,
        "init_checkpoint_modules": Key(object, "all"),
        "losses": {
            "box_loss_weight": 50.0,
            "focal_loss_alpha": 0.25,
            "focal_loss_gamma": 1.5,
            "huber_loss_delta": 0.1,
            "l2_weight_decay": 0.0,
            "loss_weight": 1.0,
        },
        "max_num_eval_detections": 100,
        "model": {
            "anchor": {
                "anchor_size": 4.0,
                "aspect_ratios": (0.5, 1.0, 2.0),
                "num_scales": 3,
            },
            "decoder": {
                "aspp": {
                    "dilation_rates": Key(_INTS, ()),
                    "dropout_rate": 0.0,
                    "level": 4,
                    "num_filters": 256,
                    "output_tensor": False,
                    "pool_kernel_size": _INTS,
                    "spp_layer_version": "v1",
                    "use_depthwise_convolution": False,
                },
                "fpn": {
                    "fusion_type": "sum",
                    "num_filters": 256,
                    "use_keras_layer": False,
                    "use_separable_conv": False,
                },
                "nasfpn": {
                    "num_filters": 256,
                    "num_repeats": 5,
                    "use_separable_conv": False,
                },
                "type": "fpn",
            },
            "detection_generator": {
                "apply_nms": True,
                "box_coder_weights": _FLOATS,
                "max_num_detections": 100,
                "nms_iou_threshold": 0.5,
                "nms_version": "v2",
                "pre_nms_score_threshold": 0.05,
                "pre_nms_top_k": 5000,
                "return_decoded": bool,
                "soft_nms_sigma": float,
                "tflite_post_processing": {
                    "max_classes_per_detection": 5,
                    "max_detections": 200,
                    "nms_iou_threshold": 0.5,
                    "nms_score_threshold": 0.1,
                    "normalize_anchor_coordinates": False,
                    "omit_nms": False,
                    "use_regular_nms": False,
                },
                "use_class_agnostic_nms": False,
                "use_cpu_nms": False,
            },
            "head": {
                "attribute_heads": Key(object, []),
                "num_convs": 4,
                "num_filters": 256,
                "share_classification_heads": False,
                "share_level_convs": True,
                "use_separable_conv": False,
            },
            # A published file has `[320 320, 3]`, in which the first item is a text.
            "input_size": Key(object, ()),
            "max_level": 7,
            "min_level": 3,
            "norm_activation": {
                "activation": "relu",
                "norm_epsilon": 0.001,
                "norm_momentum": 0.99,
                "use_sync_bn": True,
            },
            "num_classes": 0,
            "backbone": _BACKBONE,
        },
        "name": str,
        "per_category_metrics": False,
        "use_coco_metrics": True,
        "use_wod_metrics": False,
        "train_data": _DATA | {"is_training": True},
        "validation_data": _DATA | {"is_training": False},
    },
    "trainer": {
        "allow_tpu_summary": False,
        "best_checkpoint_eval_metric": "",
        "best_checkpoint_export_subdir": "",
        "best_checkpoint_metric_comp": "higher",
        "checkpoint_interval": 1000,
        "continuous_eval_timeout": 3600,
        "eval_tf_function": True,
        "eval_tf_while_loop": False,
        "loss_upper_bound": 1000000.0,
        "max_to_keep": 5,
        "preemption_on_demand_checkpoint": True,
        "recovery_begin_steps": 0,
        "recovery_max_trials": 0,
        "steps_per_loop": 1000,
        "summary_interval": 1000,
        "train_steps": 0,
        "train_tf_function": True,
        "train_tf_while_loop": True,
        "validation_interval": 1000,
        "validation_steps": -1,
        "validation_summary_subdir": "validation",
        "optimizer_config": _OPTIMIZATION,
    },
}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Key]]:
    for name, item in tree.items():
        path = prefix + name
        if isinstance(item, dict):
            yield from _flatten(item, f"{path}.")
        elif isinstance(item, Key):
            yield path, item
        elif isinstance(item, type | GenericAlias):
            yield path, Key(item, None)
        elif isinstance(item, tuple):
            yield path, Key(_FLOATS if isinstance(item[0], float) else _INTS, item)
        else:
            yield path, Key(type(item), item)


FIELDS: Mapping[str, Key] = dict(_flatten(_EXPERIMENT))
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
