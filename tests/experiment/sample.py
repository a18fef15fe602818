"""A pipeline.config of our own that sets something in every part that the reader knows."""

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
