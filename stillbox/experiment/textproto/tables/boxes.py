"""Anchor generators, matchers, similarities, box coders."""

TABLE = """
message SsdAnchorGenerator
  num_layers: int32 = 6
  min_scale: float = 0.2
  max_scale: float = 0.95
  scales: float*
  aspect_ratios: float*
  interpolated_scale_aspect_ratio: float = 1.0
  reduce_boxes_in_lowest_layer: bool = true
  base_anchor_height: float = 1.0
  base_anchor_width: float = 1.0
  height_stride: int32*
  width_stride: int32*
  height_offset: int32*
  width_offset: int32*

message MultiscaleAnchorGenerator
  min_level: int32 = 3
  max_level: int32 = 7
  anchor_scale: float = 4.0
  aspect_ratios: float*
  scales_per_octave: int32 = 2
  normalize_coordinates: bool = true

message AnchorGenerator
  grid_anchor_generator: GridAnchorGenerator | anchor_generator_oneof
  ssd_anchor_generator: SsdAnchorGenerator | anchor_generator_oneof
  multiscale_anchor_generator: MultiscaleAnchorGenerator | anchor_generator_oneof
  flexible_grid_anchor_generator: FlexibleGridAnchorGenerator | anchor_generator_oneof

message GridAnchorGenerator
  height: int32 = 256
  width: int32 = 256
  height_stride: int32 = 16
  width_stride: int32 = 16
  height_offset: int32 = 0
  width_offset: int32 = 0
  scales: float*
  aspect_ratios: float*

message FlexibleGridAnchorGenerator
  anchor_grid: AnchorGrid*
  normalize_coordinates: bool = true

message AnchorGrid
  base_sizes: float*
  aspect_ratios: float*
  height_stride: uint32
  width_stride: uint32
  height_offset: uint32 = 0
  width_offset: uint32 = 0

message Matcher
  argmax_matcher: ArgMaxMatcher | matcher_oneof
  bipartite_matcher: BipartiteMatcher | matcher_oneof

message ArgMaxMatcher
  matched_threshold: float = 0.5
  unmatched_threshold: float = 0.5
  ignore_thresholds: bool = false
  negatives_lower_than_unmatched: bool = true
  force_match_for_each_row: bool = false
  use_matmul_gather: bool = false

message BipartiteMatcher
  use_matmul_gather: bool = false

message RegionSimilarityCalculator
  neg_sq_dist_similarity: NegSqDistSimilarity | region_similarity
  iou_similarity: IouSimilarity | region_similarity
  ioa_similarity: IoaSimilarity | region_similarity
  thresholded_iou_similarity: ThresholdedIouSimilarity | region_similarity

message NegSqDistSimilarity

message IouSimilarity

message IoaSimilarity

message ThresholdedIouSimilarity
  iou_threshold: float = 0.5

message TargetAssigner
  matcher: Matcher
  similarity_calculator: RegionSimilarityCalculator
  box_coder: BoxCoder

message BoxCoder
  faster_rcnn_box_coder: FasterRcnnBoxCoder | box_coder_oneof
  mean_stddev_box_coder: MeanStddevBoxCoder | box_coder_oneof
  square_box_coder: SquareBoxCoder | box_coder_oneof
  keypoint_box_coder: KeypointBoxCoder | box_coder_oneof

message FasterRcnnBoxCoder
  y_scale: float = 10.0
  x_scale: float = 10.0
  height_scale: float = 5.0
  width_scale: float = 5.0

message MeanStddevBoxCoder
  stddev: float = 0.01

message SquareBoxCoder
  y_scale: float = 10.0
  x_scale: float = 10.0
  length_scale: float = 5.0

message KeypointBoxCoder
  num_keypoints: int32
  y_scale: float = 10.0
  x_scale: float = 10.0
  height_scale: float = 5.0
  width_scale: float = 5.0
"""
