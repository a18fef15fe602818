"""Box predictors and the hyperparameters of convolutions."""

TABLE = """
message BoxPredictor
  convolutional_box_predictor: ConvolutionalBoxPredictor | box_predictor
  mask_rcnn_box_predictor: MaskRCNNBoxPredictor | box_predictor
  rfcn_box_predictor: RfcnBoxPredictor | box_predictor
  weight_shared_convolutional_box_predictor: WeightSharedConvolutionalBoxPredictor | box_predictor

message ConvolutionalBoxPredictor
  conv_hyperparams: Hyperparams
  min_depth: int32 = 0
  max_depth: int32 = 0
  num_layers_before_predictor: int32 = 0
  use_dropout: bool = true
  dropout_keep_probability: float = 0.8
  kernel_size: int32 = 1
  box_code_size: int32 = 4
  apply_sigmoid_to_scores: bool = false
  class_prediction_bias_init: float = 0.0
  use_depthwise: bool = false
  box_encodings_clip_range: ConvolutionalBoxPredictor.BoxEncodingsClipRange

message ConvolutionalBoxPredictor.BoxEncodingsClipRange
  min: float
  max: float

message WeightSharedConvolutionalBoxPredictor
  conv_hyperparams: Hyperparams
  apply_conv_hyperparams_to_heads: bool = false
  apply_conv_hyperparams_pointwise: bool = false
  num_layers_before_predictor: int32 = 0
  depth: int32 = 0
  kernel_size: int32 = 3
  box_code_size: int32 = 4
  class_prediction_bias_init: float = 0.0
  use_dropout: bool = false
  dropout_keep_probability: float = 0.8
  share_prediction_tower: bool = false
  use_depthwise: bool = false
  score_converter: WeightSharedConvolutionalBoxPredictor.ScoreConverter = IDENTITY
  box_encodings_clip_range: WeightSharedConvolutionalBoxPredictor.BoxEncodingsClipRange

enum WeightSharedConvolutionalBoxPredictor.ScoreConverter: IDENTITY=0 SIGMOID=1

message WeightSharedConvolutionalBoxPredictor.BoxEncodingsClipRange
  min: float
  max: float

message MaskRCNNBoxPredictor
  fc_hyperparams: Hyperparams
  use_dropout: bool = false
  dropout_keep_probability: float = 0.5
  box_code_size: int32 = 4
  conv_hyperparams: Hyperparams
  predict_instance_masks: bool = false
  mask_prediction_conv_depth: int32 = 256
  predict_keypoints: bool = false
  mask_height: int32 = 15
  mask_width: int32 = 15
  mask_prediction_num_conv_layers: int32 = 2
  masks_are_class_agnostic: bool = false
  share_box_across_classes: bool = false
  convolve_then_upsample_masks: bool = false

message RfcnBoxPredictor
  conv_hyperparams: Hyperparams
  num_spatial_bins_height: int32 = 3
  num_spatial_bins_width: int32 = 3
  depth: int32 = 1024
  box_code_size: int32 = 4
  crop_height: int32 = 12
  crop_width: int32 = 12

message Hyperparams
  op: Hyperparams.Op = CONV
  regularizer: Regularizer
  initializer: Initializer
  activation: Hyperparams.Activation = RELU
  batch_norm: BatchNorm | normalizer_oneof
  sync_batch_norm: BatchNorm | normalizer_oneof
  group_norm: GroupNorm | normalizer_oneof
  regularize_depthwise: bool = false
  force_use_bias: bool = false

enum Hyperparams.Op: CONV=1 FC=2
enum Hyperparams.Activation: NONE=0 RELU=1 RELU_6=2 SWISH=3

message Regularizer
  l1_regularizer: L1Regularizer | regularizer_oneof
  l2_regularizer: L2Regularizer | regularizer_oneof

message L1Regularizer
  weight: float = 1.0

message L2Regularizer
  weight: float = 1.0

message Initializer
  truncated_normal_initializer: TruncatedNormalInitializer | initializer_oneof
  variance_scaling_initializer: VarianceScalingInitializer | initializer_oneof
  random_normal_initializer: RandomNormalInitializer | initializer_oneof
  keras_initializer_by_name: string | initializer_oneof

message TruncatedNormalInitializer
  mean: float = 0.0
  stddev: float = 1.0

message VarianceScalingInitializer
  factor: float = 2.0
  uniform: bool = false
  mode: VarianceScalingInitializer.Mode = FAN_IN

enum VarianceScalingInitializer.Mode: FAN_IN=0 FAN_OUT=1 FAN_AVG=2

message RandomNormalInitializer
  mean: float = 0.0
  stddev: float = 1.0

message BatchNorm
  decay: float = 0.999
  center: bool = true
  scale: bool = false
  epsilon: float = 0.001
  train: bool = true

message GroupNorm
"""
