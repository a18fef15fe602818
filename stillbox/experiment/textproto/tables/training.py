"""Optimisers, learning rates, `TrainConfig`, `EvalConfig`."""

TABLE = """
message Optimizer
  rms_prop_optimizer: RMSPropOptimizer | optimizer
  momentum_optimizer: MomentumOptimizer | optimizer
  adam_optimizer: AdamOptimizer | optimizer
  use_moving_average: bool = true
  moving_average_decay: float = 0.9999

message RMSPropOptimizer
  learning_rate: LearningRate
  momentum_optimizer_value: float = 0.9
  decay: float = 0.9
  epsilon: float = 1.0

message MomentumOptimizer
  learning_rate: LearningRate
  momentum_optimizer_value: float = 0.9

message AdamOptimizer
  learning_rate: LearningRate
  epsilon: float = 1e-8

message LearningRate
  constant_learning_rate: ConstantLearningRate | learning_rate
  exponential_decay_learning_rate: ExponentialDecayLearningRate | learning_rate
  manual_step_learning_rate: ManualStepLearningRate | learning_rate
  cosine_decay_learning_rate: CosineDecayLearningRate | learning_rate

message ConstantLearningRate
  learning_rate: float = 0.002

message ExponentialDecayLearningRate
  initial_learning_rate: float = 0.002
  decay_steps: uint32 = 4000000
  decay_factor: float = 0.95
  staircase: bool = true
  burnin_learning_rate: float = 0.0
  burnin_steps: uint32 = 0
  min_learning_rate: float = 0.0

message ManualStepLearningRate
  initial_learning_rate: float = 0.002
  schedule: ManualStepLearningRate.LearningRateSchedule*
  warmup: bool = false

message ManualStepLearningRate.LearningRateSchedule
  step: uint32
  learning_rate: float = 0.002

message CosineDecayLearningRate
  learning_rate_base: float = 0.002
  total_steps: uint32 = 4000000
  warmup_learning_rate: float = 0.0002
  warmup_steps: uint32 = 10000
  hold_base_rate_steps: uint32 = 0

enum CheckpointVersion: UNKNOWN=0 V1=1 V2=2

message TrainConfig
  batch_size: uint32 = 32
  data_augmentation_options: PreprocessingStep*
  sync_replicas: bool = false
  keep_checkpoint_every_n_hours: float = 10000.0
  optimizer: Optimizer
  gradient_clipping_by_norm: float = 0.0
  fine_tune_checkpoint: string = ""
  fine_tune_checkpoint_type: string = ""
  fine_tune_checkpoint_version: CheckpointVersion = V1
  from_detection_checkpoint: bool = false ! fine_tune_checkpoint_type: 'detection'
  load_all_detection_checkpoint_vars: bool = false
  run_fine_tune_checkpoint_dummy_computation: bool = true
  num_steps: uint32 = 0
  startup_delay_steps: float = 15
  bias_grad_multiplier: float = 0
  update_trainable_variables: string*
  freeze_variables: string*
  replicas_to_aggregate: int32 = 1
  batch_queue_capacity: int32 = 150 !
  num_batch_queue_threads: int32 = 8 !
  prefetch_queue_capacity: int32 = 5 !
  merge_multiple_label_boxes: bool = false
  use_multiclass_scores: bool = false
  add_regularization_loss: bool = true
  max_number_of_boxes: int32 = 100 ! max_number_of_boxes of the input readers
  unpad_groundtruth_tensors: bool = true
  retain_original_images: bool = false
  use_bfloat16: bool = false
  summarize_gradients: bool = false

message EvalConfig
  batch_size: uint32 = 1
  num_visualizations: uint32 = 10
  num_examples: uint32 = 5000 !
  eval_interval_secs: uint32 = 300
  max_evals: uint32 = 0 !
  save_graph: bool = false
  visualization_export_dir: string = ""
  eval_master: string = ""
  metrics_set: string*
  parameterized_metric: ParameterizedMetric*
  export_path: string
  ignore_groundtruth: bool = false
  use_moving_averages: bool = false
  eval_instance_masks: bool = false
  min_score_threshold: float = 0.5
  max_num_boxes_to_visualize: int32 = 20
  skip_scores: bool = false
  skip_labels: bool = false
  visualize_groundtruth_boxes: bool = false
  groundtruth_box_visualization_color: string = "black"
  keep_image_id_for_visualization_export: bool = false
  retain_original_images: bool = true
  include_metrics_per_category: bool = false
  all_metrics_per_category: bool = false
  recall_lower_bound: float = 0.0
  recall_upper_bound: float = 1.0
  retain_original_image_additional_channels: bool = false
  force_no_resize: bool = false
  use_dummy_loss_in_eval: bool = false
  keypoint_edge: KeypointEdge*
  skip_predictions_for_unlabeled_class: bool = false
  image_classes_field_map_empty_to_ones: bool = false
  super_categories: opaque

message ParameterizedMetric
  coco_keypoint_metrics: CocoKeypointMetrics | parameterized_metric

message CocoKeypointMetrics
  class_label: string
  keypoint_label_to_sigmas: opaque

message KeypointEdge
  start: int32
  end: int32
"""
