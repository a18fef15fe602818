"""Input readers."""

TABLE = """
enum InstanceMaskType: DEFAULT=0 NUMERICAL_MASKS=1 PNG_MASKS=2
enum InputType: INPUT_DEFAULT=0 TF_EXAMPLE=1 TF_SEQUENCE_EXAMPLE=2

message InputReader
  name: string = ""
  label_map_path: string = ""
  shuffle: bool = true
  shuffle_buffer_size: uint32 = 2048
  filenames_shuffle_buffer_size: uint32 = 100
  num_epochs: uint32 = 0
  sample_1_of_n_examples: uint32 = 1
  num_readers: uint32 = 64
  num_parallel_batches: uint32 = 8
  num_prefetch_batches: int32 = 2
  queue_capacity: uint32 = 2000 !
  min_after_dequeue: uint32 = 1000 !
  read_block_length: uint32 = 32
  prefetch_size: uint32 = 512 !
  num_parallel_map_calls: uint32 = 64 !
  drop_remainder: bool = true
  num_additional_channels: int32 = 0
  num_keypoints: uint32 = 0
  keypoint_type_weight: float*
  max_number_of_boxes: int32 = 100
  load_multiclass_scores: bool = false
  load_context_features: bool = false
  load_context_image_ids: bool = false
  load_instance_masks: bool = false
  mask_type: InstanceMaskType = NUMERICAL_MASKS
  load_dense_pose: bool = false
  load_track_id: bool = false
  load_keypoint_depth_features: bool = false
  use_display_name: bool = false
  include_source_id: bool = false
  input_type: InputType = TF_EXAMPLE
  frame_index: int32 = -1
  tf_record_input_reader: TFRecordInputReader | input_reader
  external_input_reader: ExternalInputReader | input_reader
  sample_from_datasets_weights: float*
  expand_labels_hierarchy: bool = false
  use_keypoint_label_map: bool = false

message TFRecordInputReader
  input_path: string*

message ExternalInputReader
"""
