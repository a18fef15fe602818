"""SSD: the model, its feature extractor, pyramids, image resizers."""

TABLE = """
message Ssd
  num_classes: int32
  image_resizer: ImageResizer
  feature_extractor: SsdFeatureExtractor
  box_coder: BoxCoder
  matcher: Matcher
  similarity_calculator: RegionSimilarityCalculator
  encode_background_as_zeros: bool = false
  negative_class_weight: float = 1.0
  box_predictor: BoxPredictor
  anchor_generator: AnchorGenerator
  post_processing: PostProcessing
  normalize_loss_by_num_matches: bool = true
  normalize_loc_loss_by_codesize: bool = false
  loss: Loss
  freeze_batchnorm: bool = false
  inplace_batchnorm_update: bool = false
  add_background_class: bool = true
  explicit_background_class: bool = false
  use_confidences_as_targets: bool = false
  implicit_example_weight: float = 1.0
  return_raw_detections_during_predict: bool = false
  mask_head_config: Ssd.MaskHead

message Ssd.MaskHead
  mask_height: int32 = 15
  mask_width: int32 = 15
  masks_are_class_agnostic: bool = true
  mask_prediction_conv_depth: int32 = 256
  mask_prediction_num_conv_layers: int32 = 2
  convolve_then_upsample_masks: bool = false
  mask_loss_weight: float = 5.0
  mask_loss_sample_size: int32 = 16
  conv_hyperparams: Hyperparams
  initial_crop_size: int32 = 15

message SsdFeatureExtractor
  type: string
  depth_multiplier: float = 1.0
  min_depth: int32 = 16
  conv_hyperparams: Hyperparams
  override_base_feature_extractor_hyperparams: bool = false
  pad_to_multiple: int32 = 1
  use_explicit_padding: bool = false
  use_depthwise: bool = false
  fpn: FeaturePyramidNetworks | feature_pyramid_oneof
  bifpn: BidirectionalFeaturePyramidNetworks | feature_pyramid_oneof
  replace_preprocessor_with_placeholder: bool = false
  num_layers: int32 = 6
  spaghettinet_arch_name: string

message FeaturePyramidNetworks
  min_level: int32 = 3
  max_level: int32 = 7
  additional_layer_depth: int32 = 256

message BidirectionalFeaturePyramidNetworks
  min_level: int32 = 3
  max_level: int32 = 7
  num_iterations: int32
  num_filters: int32
  combine_method: string = fast_attention

message ImageResizer
  keep_aspect_ratio_resizer: KeepAspectRatioResizer | image_resizer_oneof
  fixed_shape_resizer: FixedShapeResizer | image_resizer_oneof
  identity_resizer: IdentityResizer | image_resizer_oneof
  conditional_shape_resizer: ConditionalShapeResizer | image_resizer_oneof
  pad_to_multiple_resizer: PadToMultipleResizer | image_resizer_oneof

enum ResizeType: BILINEAR=0 NEAREST_NEIGHBOR=1 BICUBIC=2 AREA=3

message IdentityResizer

message KeepAspectRatioResizer
  min_dimension: int32 = 600
  max_dimension: int32 = 1024
  resize_method: ResizeType = BILINEAR
  pad_to_max_dimension: bool = false
  convert_to_grayscale: bool = false
  per_channel_pad_value: float*

message FixedShapeResizer
  height: int32 = 300
  width: int32 = 300
  resize_method: ResizeType = BILINEAR
  convert_to_grayscale: bool = false

message ConditionalShapeResizer
  condition: ConditionalShapeResizer.ResizeCondition = GREATER
  size_threshold: int32 = 300
  resize_method: ResizeType = BILINEAR
  convert_to_grayscale: bool = false

enum ConditionalShapeResizer.ResizeCondition: INVALID=0 GREATER=1 SMALLER=2

message PadToMultipleResizer
  multiple: int32 = 1
  convert_to_grayscale: bool = false
"""
