"""The whole file: `TrainEvalPipelineConfig`, the choice of meta-architecture, graph rewriting."""

TABLE = """
message TrainEvalPipelineConfig
  model: DetectionModel
  train_config: TrainConfig
  train_input_reader: InputReader
  eval_config: EvalConfig
  eval_input_reader: InputReader*
  graph_rewriter: GraphRewriter

message DetectionModel
  faster_rcnn: FasterRcnn | model
  ssd: Ssd | model
  experimental_model: ExperimentalModel | model
  center_net: opaque | model

message ExperimentalModel
  name: string

message GraphRewriter
  quantization: Quantization

message Quantization
  delay: int32 = 500000
  weight_bits: int32 = 8
  activation_bits: int32 = 8
  symmetric: bool = false
"""
