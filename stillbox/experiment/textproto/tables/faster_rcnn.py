"""Faster R-CNN, so that its configs are refused by name and not as unknown fields."""

TABLE = """
message FasterRcnn
  number_of_stages: int32 = 2
  num_classes: int32
  image_resizer: ImageResizer
  feature_extractor: FasterRcnnFeatureExtractor
  first_stage_anchor_generator: AnchorGenerator
  first_stage_atrous_rate: int32 = 1
  first_stage_box_predictor_conv_hyperparams: Hyperparams
  first_stage_box_predictor_kernel_size: int32 = 3
  first_stage_box_predictor_depth: int32 = 512
  first_stage_minibatch_size: int32 = 256
  first_stage_positive_balance_fraction: float = 0.5
  first_stage_nms_score_threshold: float = 0.0
  first_stage_nms_iou_threshold: float = 0.7
  first_stage_max_proposals: int32 = 300
  first_stage_localization_loss_weight: float = 1.0
  first_stage_objectness_loss_weight: float = 1.0
  initial_crop_size: int32
  maxpool_kernel_size: int32
  maxpool_stride: int32
  second_stage_box_predictor: BoxPredictor
  second_stage_batch_size: int32 = 64
  second_stage_balance_fraction: float = 0.25
  second_stage_post_processing: PostProcessing
  second_stage_localization_loss_weight: float = 1.0
  second_stage_classification_loss_weight: float = 1.0
  second_stage_mask_prediction_loss_weight: float = 1.0
  hard_example_miner: HardExampleMiner
  second_stage_classification_loss: ClassificationLoss
  inplace_batchnorm_update: bool = false
  use_matmul_crop_and_resize: bool = false
  clip_anchors_to_image: bool = false
  use_matmul_gather_in_matcher: bool = false
  use_static_balanced_label_sampler: bool = false
  use_static_shapes: bool = false
  resize_masks: bool = true
  use_static_shapes_for_eval: bool = false
  use_partitioned_nms_in_first_stage: bool = true
  return_raw_detections_during_predict: bool = false
  use_combined_nms_in_first_stage: bool = false
  output_final_box_features: bool = false
  output_final_box_rpn_features: bool = false
  context_config: Context

enum AttentionPosition: ATTENTION_DEFAULT=0 POST_BOX_CLASSIFIER=1 POST_RPN=2

message Context
  max_num_context_features: int32 = 2000
  attention_bottleneck_dimension: int32 = 2048
  attention_temperature: float = 0.01
  context_feature_length: int32 = 2057
  use_self_attention: bool = false
  use_long_term_attention: bool = true
  self_attention_in_sequence: bool = false
  num_attention_heads: int32 = 1
  num_attention_layers: int32 = 1
  attention_position: AttentionPosition = POST_BOX_CLASSIFIER

message FasterRcnnFeatureExtractor
  type: string
  first_stage_features_stride: int32 = 16
  batch_norm_trainable: bool = false
  conv_hyperparams: Hyperparams
  override_base_feature_extractor_hyperparams: bool = false
  pad_to_multiple: int32 = 32
  fpn: FeaturePyramidNetworks
"""
