"""Losses, hard example mining, post-processing, calibration."""

TABLE = """
message Loss
  localization_loss: LocalizationLoss
  classification_loss: ClassificationLoss
  hard_example_miner: HardExampleMiner
  classification_weight: float = 1.0
  localization_weight: float = 1.0
  random_example_sampler: RandomExampleSampler
  equalization_loss: Loss.EqualizationLoss
  expected_loss_weights: Loss.ExpectedLossWeights = NONE
  min_num_negative_samples: float = 0
  desired_negative_sampling_ratio: float = 3

enum Loss.ExpectedLossWeights: NONE=0 EXPECTED_SAMPLING=1 REWEIGHTING_UNMATCHED_ANCHORS=2

message Loss.EqualizationLoss
  weight: float = 0.0
  exclude_prefixes: string*

message LocalizationLoss
  weighted_l2: WeightedL2LocalizationLoss | localization_loss
  weighted_smooth_l1: WeightedSmoothL1LocalizationLoss | localization_loss
  weighted_iou: WeightedIOULocalizationLoss | localization_loss
  l1_localization_loss: L1LocalizationLoss | localization_loss
  weighted_giou: WeightedGIOULocalizationLoss | localization_loss

message WeightedL2LocalizationLoss
  anchorwise_output: bool = false

message WeightedSmoothL1LocalizationLoss
  anchorwise_output: bool = false
  delta: float = 1.0

message WeightedIOULocalizationLoss

message L1LocalizationLoss

message WeightedGIOULocalizationLoss

message ClassificationLoss
  weighted_sigmoid: WeightedSigmoidClassificationLoss | classification_loss
  weighted_softmax: WeightedSoftmaxClassificationLoss | classification_loss
  weighted_logits_softmax: WeightedSoftmaxClassificationAgainstLogitsLoss | classification_loss
  bootstrapped_sigmoid: BootstrappedSigmoidClassificationLoss | classification_loss
  weighted_sigmoid_focal: SigmoidFocalClassificationLoss | classification_loss
  penalty_reduced_logistic_focal_loss: PenaltyReducedLogisticFocalLoss | classification_loss
  weighted_dice_classification_loss: WeightedDiceClassificationLoss | classification_loss

message WeightedSigmoidClassificationLoss
  anchorwise_output: bool = false

message SigmoidFocalClassificationLoss
  anchorwise_output: bool = false
  gamma: float = 2.0
  alpha: float

message WeightedSoftmaxClassificationLoss
  anchorwise_output: bool = false
  logit_scale: float = 1.0

message WeightedSoftmaxClassificationAgainstLogitsLoss
  anchorwise_output: bool = false
  logit_scale: float = 1.0

message BootstrappedSigmoidClassificationLoss
  alpha: float
  hard_bootstrap: bool = false
  anchorwise_output: bool = false

message PenaltyReducedLogisticFocalLoss
  alpha: float
  beta: float

message HardExampleMiner
  num_hard_examples: int32 = 64
  iou_threshold: float = 0.7
  loss_type: HardExampleMiner.LossType = BOTH
  max_negatives_per_positive: int32 = 0
  min_negatives_per_image: int32 = 0

enum HardExampleMiner.LossType: BOTH=0 CLASSIFICATION=1 LOCALIZATION=2

message RandomExampleSampler
  positive_sample_fraction: float = 0.01

message WeightedDiceClassificationLoss
  squared_normalization: bool = false
  is_prediction_probability: bool = false

message BatchNonMaxSuppression
  score_threshold: float = 0.0
  iou_threshold: float = 0.6
  max_detections_per_class: int32 = 100
  max_total_detections: int32 = 100
  use_static_shapes: bool = false
  use_class_agnostic_nms: bool = false
  max_classes_per_detection: int32 = 1
  soft_nms_sigma: float = 0.0
  use_partitioned_nms: bool = false
  use_combined_nms: bool = false
  change_coordinate_frame: bool = true
  use_hard_nms: bool = false
  use_cpu_nms: bool = false

message PostProcessing
  batch_non_max_suppression: BatchNonMaxSuppression
  score_converter: PostProcessing.ScoreConverter = IDENTITY
  logit_scale: float = 1.0
  calibration_config: CalibrationConfig

enum PostProcessing.ScoreConverter: IDENTITY=0 SIGMOID=1 SOFTMAX=2

message CalibrationConfig
  function_approximation: FunctionApproximation | calibrator
  class_id_function_approximations: ClassIdFunctionApproximations | calibrator
  sigmoid_calibration: SigmoidCalibration | calibrator
  class_id_sigmoid_calibrations: ClassIdSigmoidCalibrations | calibrator
  temperature_scaling_calibration: TemperatureScalingCalibration | calibrator

message FunctionApproximation
  x_y_pairs: XYPairs

message ClassIdFunctionApproximations
  class_id_xy_pairs_map: ClassIdFunctionApproximations.ClassIdXyPairsMapEntry*

message ClassIdFunctionApproximations.ClassIdXyPairsMapEntry
  key: int32
  value: XYPairs

message SigmoidCalibration
  sigmoid_parameters: SigmoidParameters

message ClassIdSigmoidCalibrations
  class_id_sigmoid_parameters_map: ClassIdSigmoidCalibrations.ClassIdSigmoidParametersMapEntry*

message ClassIdSigmoidCalibrations.ClassIdSigmoidParametersMapEntry
  key: int32
  value: SigmoidParameters

message TemperatureScalingCalibration
  scaler: float

enum TrainingDataType: DATA_TYPE_UNKNOWN=0 ALL_CLASSES=1 CLASS_SPECIFIC=2

message XYPairs
  x_y_pair: XYPairs.XYPair*
  training_data_type: TrainingDataType

message XYPairs.XYPair
  x: float
  y: float

message SigmoidParameters
  a: float = -1.0
  b: float = 0.0
"""
