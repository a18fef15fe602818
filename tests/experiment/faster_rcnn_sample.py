"""A Faster R-CNN of our own that sets something in every part that its reader knows."""

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
