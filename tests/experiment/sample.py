"""A pipeline.config of our own that sets something in every part that the reader knows.

A Faster R-CNN of our own that sets something in every part that its reader knows.

An experiment of Model Garden.

One message of a pipeline.config, read without the rest of the file.
"""

from collections.abc import Callable
from typing import Any

from stillbox.experiment.pipeline_config.section import MessageSection, load_schema
from stillbox.experiment.reading import ReadTracker
from stillbox.textformat.messages import Decoder
from stillbox.textformat.parser import parse

SAMPLE = """\
# An SSD for squirrels.
model {
  ssd {
    num_classes: 3
    image_resizer { fixed_shape_resizer { height: 160 width: 192 } }
    feature_extractor {
      type: "ssd_mobilenet_v1"
      depth_multiplier: 0.5
      min_depth: 8
      conv_hyperparams {
        activation: RELU_6,
        regularizer { l2_regularizer { weight: 2e-5 } }
        initializer { truncated_normal_initializer { stddev: .03; mean: 0.5 } }
        batch_norm { decay: 0.99, epsilon: 0.002, scale: true }
      }
      override_base_feature_extractor_hyperparams: true
    }
    box_coder { faster_rcnn_box_coder { y_scale: 9 x_scale: 8 height_scale: 7 width_scale: 6 } }
    matcher {
      argmax_matcher {
        matched_threshold: 0.6
        unmatched_threshold: 0.4
        force_match_for_each_row: true
        use_matmul_gather: true
      }
    }
    similarity_calculator { iou_similarity {} }
    encode_background_as_zeros: true
    negative_class_weight: 0.75
    anchor_generator {
      ssd_anchor_generator {
        num_layers: 6
        min_scale: 0.15
        max_scale: 0.9
        aspect_ratios: [1.0, 2.0, 0.5]
        interpolated_scale_aspect_ratio: 1.5
        reduce_boxes_in_lowest_layer: false
      }
    }
    box_predictor {
      convolutional_box_predictor {
        use_dropout: true
        dropout_keep_probability: 0.7
        kernel_size: 3
        class_prediction_bias_init: -4.6
        conv_hyperparams {
          activation: RELU
          regularizer { l1_regularizer { weight: 3e-5 } }
          initializer { variance_scaling_initializer { factor: 1.0 uniform: true mode: FAN_AVG } }
        }
      }
    }
    loss {
      classification_loss { weighted_sigmoid_focal { gamma: 1.5 } }
      localization_loss { weighted_smooth_l1 { delta: 0.5 anchorwise_output: true } }
      classification_weight: 2.0
      localization_weight: 3.0
    }
    normalize_loc_loss_by_codesize: true
    post_processing {
      batch_non_max_suppression {
        score_threshold: 0.01
        iou_threshold: 0.5
        max_detections_per_class: 20
        max_total_detections: 30
      }
      score_converter: SIGMOID
    }
  }
}
train_config {
  batch_size: 16
  num_steps: 400
  data_augmentation_options { random_horizontal_flip { probability: 0.25 } }
  data_augmentation_options { random_crop_image { min_area: 0.2 random_coef: 0.1 } }
  data_augmentation_options { ssd_random_crop {} }
  optimizer {
    rms_prop_optimizer {
      learning_rate {
        exponential_decay_learning_rate {
          initial_learning_rate: 0.004
          decay_steps: 100
          decay_factor: 0.95
          staircase: false
        }
      }
      momentum_optimizer_value: 0.8
      decay: 0.7
      epsilon: 0.5
    }
    moving_average_decay: 0.99
  }
  gradient_clipping_by_norm: 10
  fine_tune_checkpoint: "backbone.npz"
  fine_tune_checkpoint_type: "detection"
  load_all_detection_checkpoint_vars: true
  freeze_variables: "backbone.*"
  use_bfloat16: true
  sync_replicas: true
}
train_input_reader {
  label_map_path: "labels.pbtxt"
  tf_record_input_reader { input_path: ["train-a.record", "train-b.record"] }
  max_number_of_boxes: 50
  use_display_name: true
  num_readers: 4
}
eval_config {
  metrics_set: "coco_detection_metrics"
  use_moving_averages: true
  batch_size: 4
  num_visualizations: 5
  min_score_threshold: 0.3
  max_num_boxes_to_visualize: 7
  include_metrics_per_category: false
}
eval_input_reader {
  label_map_path: "labels.pbtxt"
  tf_record_input_reader { input_path: "val.record" }
  shuffle: false
  sample_1_of_n_examples: 2
}
"""


FASTER_RCNN = """\
# Two stages for squirrels.
model {
  faster_rcnn {
    number_of_stages: 2
    num_classes: 3
    image_resizer {
      keep_aspect_ratio_resizer {
        min_dimension: 200
        max_dimension: 352
        pad_to_max_dimension: false
      }
    }
    feature_extractor {
      type: "faster_rcnn_resnet50"
      first_stage_features_stride: 8
      batch_norm_trainable: true
      pad_to_multiple: 16
    }
    first_stage_anchor_generator {
      grid_anchor_generator {
        height: 128
        width: 64
        height_stride: 8
        width_stride: 8
        height_offset: 1
        width_offset: 2
        scales: [0.25, 0.5]
        aspect_ratios: [0.5, 1.0, 2.0]
      }
    }
    first_stage_atrous_rate: 2
    first_stage_box_predictor_conv_hyperparams {
      op: CONV
      activation: RELU_6
      regularizer { l2_regularizer { weight: 2e-5 } }
      initializer { truncated_normal_initializer { stddev: 0.02 } }
    }
    first_stage_box_predictor_kernel_size: 5
    first_stage_box_predictor_depth: 64
    first_stage_minibatch_size: 128
    first_stage_positive_balance_fraction: 0.4
    first_stage_nms_score_threshold: 0.01
    first_stage_nms_iou_threshold: 0.6
    first_stage_max_proposals: 90
    first_stage_localization_loss_weight: 2.0
    first_stage_objectness_loss_weight: 0.9
    initial_crop_size: 12
    maxpool_kernel_size: 3
    maxpool_stride: 2
    second_stage_box_predictor {
      mask_rcnn_box_predictor {
        fc_hyperparams {
          op: FC
          activation: RELU
          regularizer { l2_regularizer { weight: 3e-5 } }
          initializer { variance_scaling_initializer { factor: 2.0 uniform: true mode: FAN_AVG } }
        }
        use_dropout: true
        dropout_keep_probability: 0.75
        share_box_across_classes: true
        mask_height: 14
      }
    }
    second_stage_batch_size: 32
    second_stage_balance_fraction: 0.3
    second_stage_post_processing {
      batch_non_max_suppression {
        score_threshold: 0.02
        iou_threshold: 0.5
        max_detections_per_class: 20
        max_total_detections: 30
        change_coordinate_frame: true
      }
      score_converter: SOFTMAX
      logit_scale: 1.5
    }
    second_stage_localization_loss_weight: 3.0
    second_stage_classification_loss_weight: 1.25
    second_stage_mask_prediction_loss_weight: 4.0
    hard_example_miner {
      num_hard_examples: 16
      iou_threshold: 0.9
      loss_type: CLASSIFICATION
      max_negatives_per_positive: 3
      min_negatives_per_image: 2
    }
    second_stage_classification_loss { weighted_softmax { logit_scale: 2.0 } }
    inplace_batchnorm_update: true
    use_matmul_crop_and_resize: true
    clip_anchors_to_image: true
    use_matmul_gather_in_matcher: true
    use_static_balanced_label_sampler: true
    use_static_shapes: true
    use_static_shapes_for_eval: true
    use_partitioned_nms_in_first_stage: false
    use_combined_nms_in_first_stage: false
    resize_masks: false
    return_raw_detections_during_predict: true
  }
}
train_config {
  batch_size: 2
  num_steps: 400
  optimizer {
    momentum_optimizer {
      learning_rate { constant_learning_rate { learning_rate: 0.001 } }
      momentum_optimizer_value: 0.9
    }
    use_moving_average: false
  }
  fine_tune_checkpoint: "detector/model.ckpt"
  fine_tune_checkpoint_type: "detection"
  load_all_detection_checkpoint_vars: true
}
"""

GARDEN = """\
runtime: {mixed_precision_dtype: bfloat16}
task:
  init_checkpoint: "/weights/ckpt-1"
  init_checkpoint_modules: [backbone, decoder]
  model:
    num_classes: 4
    input_size: [320, 320, 3]
    backbone: {type: mobilenet, mobilenet: {model_id: MobileNetV2}}
    decoder: {type: fpn, fpn: {num_filters: 128, use_separable_conv: true}}
    detection_generator: {nms_version: v1, soft_nms_sigma: 0.5}
    norm_activation: {activation: relu6, norm_momentum: 0.9}
  train_data:
    input_path: "train-*"
    global_batch_size: 32
    parser: {aug_rand_hflip: true, aug_scale_min: 0.5, aug_scale_max: 2.0}
  validation_data: {input_path: "val-*", global_batch_size: 8}
trainer:
  train_steps: 5000
  validation_interval: 500
  optimizer_config:
    optimizer: {type: adamw, adamw: {beta_1: 0.8, weight_decay_rate: 1.0e-4}}
    learning_rate: {type: cosine, cosine: {initial_learning_rate: 0.1, decay_steps: 5000}}
    warmup: {type: linear, linear: {warmup_steps: 100}}
"""


def read_section(
    read: Callable[[MessageSection, str], Any], message_type: str, text: str
) -> tuple[Any, ReadTracker]:
    """Returns what `read` makes of a message of that type, and the log, which is finished."""
    message = Decoder(load_schema()).decode(parse(text, "p"), message_type)
    log = ReadTracker()
    section = MessageSection(message, log)
    result = read(section, "here")
    section.finish()
    return result, log


def members_of(family):
    """Returns the members of a family of the schema that the package defines."""
    return [cls for cls in family.variants.values() if cls.__module__.startswith("stillbox.")]
