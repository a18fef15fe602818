"""The original's sample config of MnasFPN, by its fields and numbers."""

import pytest

from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config

_PENALTY = "regularizer { l2_regularizer { weight: 4e-5 } }"
_INITIALIZER = "initializer { random_normal_initializer { stddev: 0.01 } }"
SAMPLE = f"""
model {{ ssd {{
  num_classes: 90
  inplace_batchnorm_update: true
  freeze_batchnorm: false
  box_coder {{ faster_rcnn_box_coder {{
    y_scale: 10 x_scale: 10 height_scale: 5 width_scale: 5
  }} }}
  matcher {{ argmax_matcher {{
    matched_threshold: 0.5 unmatched_threshold: 0.5 force_match_for_each_row: true
  }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  encode_background_as_zeros: true
  anchor_generator {{ multiscale_anchor_generator {{
    min_level: 3 max_level: 6 anchor_scale: 3 aspect_ratios: [1, 2, 0.5] scales_per_octave: 3
  }} }}
  image_resizer {{ fixed_shape_resizer {{ height: 320 width: 320 }} }}
  box_predictor {{ weight_shared_convolutional_box_predictor {{
    depth: 64 num_layers_before_predictor: 4 kernel_size: 3
    share_prediction_tower: true use_depthwise: true class_prediction_bias_init: -4.6
    conv_hyperparams {{
      activation: RELU_6 {_PENALTY} {_INITIALIZER}
      batch_norm {{ scale: true decay: 0.997 epsilon: 0.001 }}
    }}
  }} }}
  feature_extractor {{
    type: "ssd_mobilenet_v2_mnasfpn"
    fpn {{ min_level: 3 max_level: 6 additional_layer_depth: 48 }}
    min_depth: 16 depth_multiplier: 1
    conv_hyperparams {{
      activation: RELU_6 {_PENALTY} {_INITIALIZER}
      batch_norm {{ scale: true decay: 0.97 epsilon: 0.001 }}
    }}
    override_base_feature_extractor_hyperparams: true
  }}
  loss {{
    classification_loss {{ weighted_sigmoid_focal {{ alpha: 0.25 gamma: 2 }} }}
    localization_loss {{ weighted_smooth_l1 {{ }} }}
    classification_weight: 1 localization_weight: 1
  }}
  normalize_loss_by_num_matches: true
  normalize_loc_loss_by_codesize: true
  post_processing {{
    batch_non_max_suppression {{
      score_threshold: 1e-8 iou_threshold: 0.6
      max_detections_per_class: 100 max_total_detections: 100
    }}
    score_converter: SIGMOID
  }}
}} }}
train_config {{
  batch_size: 1024 num_steps: 50000
  sync_replicas: true startup_delay_steps: 0 replicas_to_aggregate: 32
  max_number_of_boxes: 100 unpad_groundtruth_tensors: false
  data_augmentation_options {{ random_horizontal_flip {{ }} }}
  data_augmentation_options {{ random_crop_image {{
    min_object_covered: 0 min_aspect_ratio: 0.75 max_aspect_ratio: 3
    min_area: 0.75 max_area: 1 overlap_thresh: 0
  }} }}
  optimizer {{
    momentum_optimizer {{
      learning_rate {{ cosine_decay_learning_rate {{
        learning_rate_base: 4 total_steps: 50000
        warmup_learning_rate: 0.026666 warmup_steps: 5000
      }} }}
      momentum_optimizer_value: 0.9
    }}
    use_moving_average: false
  }}
}}
train_input_reader {{
  tf_record_input_reader {{ input_path: "coco/train.record-?????-of-00100" }}
  label_map_path: "coco/labels.pbtxt"
}}
eval_config {{
  metrics_set: "coco_detection_metrics" use_moving_averages: false num_examples: 8000
}}
eval_input_reader {{
  tf_record_input_reader {{ input_path: "coco/val.record-?????-of-00010" }}
  label_map_path: "coco/labels.pbtxt" shuffle: false num_readers: 1
}}
"""


@pytest.fixture(scope="module")
def reading():
    return read_pipeline_config(SAMPLE, "sample.config")


def test_the_detector_is_the_original_s(reading):
    """Variables and numbers: tests/models/test_mobile_extractors.py."""
    model = reading.experiment.model
    assert isinstance(model.backbone, schema.MobileNetV2)
    assert isinstance(model.neck, schema.MnasFpn)
    assert (model.neck.depth, model.neck.count_maps()) == (48, 4)
    head = model.head
    assert (head.depth, head.layers_before, head.share_tower, head.depthwise) == (64, 4, True, True)
    assert head.conv.batch_norm.decay == pytest.approx(0.997)
    assert model.neck.conv.batch_norm.decay == pytest.approx(0.99)
    assert (model.anchors.anchor_scale, model.anchors.scales_per_octave) == (3, 3)


def test_training_is_the_original_s(reading):
    train = reading.experiment.train
    assert (train.batch_size, train.steps, train.ema_decay) == (1024, 50_000, None)
    rate = train.optimizer.schedule
    assert (rate.learning_rate, rate.warmup_steps) == (4, 5000)
    assert [step.kind for step in train.augmentations] == [
        "random_horizontal_flip",
        "random_crop_image",
    ]


def test_only_hyperparameters_without_effect_are_noted_about_the_extractor(reading):
    notes = [note for note in reading.notes if "SsdFeatureExtractor" in note]
    assert ["conv_hyperparams" in notes[0], "override_base" in notes[1]] == [True, True]
    assert all("hyperparameters of its own" in note for note in notes)
    assert len(notes) == 2
