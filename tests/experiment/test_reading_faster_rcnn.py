"""Faster R-CNN in a pipeline.config: every field, every extractor, every quirk."""

import dataclasses

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.faster_rcnn import EXTRACTORS, read_extractor
from stillbox.experiment.resolve import resolve
from tests.experiment.sample import FASTER_RCNN, read_section
from tests.helpers import refused
from tests.small import SHARED, needs_shared

ZOO = SHARED / "goldens" / "detection_zoo" / "configs"
GLOROT = schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
HYPERPARAMS = """
conv_hyperparams {
  activation: RELU_6
  regularizer { l2_regularizer { weight: 4e-4 } }
  initializer { truncated_normal_initializer { stddev: 0.03 } }
  batch_norm { decay: 0.997 epsilon: 0.001 scale: true }
}
"""
FEATURES = schema.ConvHyperparams(
    activation="relu6",
    regularizer=schema.L2(weight=4e-4),
    initializer=schema.TruncatedNormal(stddev=0.03),
    batch_norm=schema.BatchNorm(decay=0.997, epsilon=0.001, scale=True, statistics="per_replica"),
    regularize_depthwise=False,
)
KERAS = ('type: "faster_rcnn_resnet50"', 'type: "faster_rcnn_resnet50_keras"')
KERAS_STRIDE = ("first_stage_features_stride: 8", "first_stage_features_stride: 16")


def changed(*replacements):
    text = FASTER_RCNN
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def read(*replacements):
    return read_pipeline_config(changed(*replacements), "p")


def model_of(*replacements):
    return read(*replacements).experiment.model


def said(*replacements):
    reading = read(*replacements)
    return "\n".join((*reading.notes, *reading.warnings))


def extractor(kind, more=""):
    text = f'type: "{kind}"\n{more}'
    return read_section(
        lambda section, _: read_extractor(section), "FasterRcnnFeatureExtractor", text
    )


def resnet_conv(**changes):
    conv = dataclasses.replace(schema.ResNetV1().conv, **{"regularizer": None} | changes)
    norm = dataclasses.replace(conv.batch_norm, statistics="per_replica")
    return dataclasses.replace(conv, batch_norm=norm)


def test_the_sample_reads_field_by_field():
    conv = resnet_conv()
    assert model_of() == schema.FasterRcnn(
        num_classes=3,
        resizer=schema.KeepAspectRatioResizer(min_dimension=200, max_dimension=352),
        pixels=schema.PixelNormalization(mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0)),
        mask_padding=True,
        # The original builds the unused block 4 too.
        backbone=schema.ResNetV1(
            output_stride=8, stride_in_unit=True, last_layer="block_4", conv=conv
        ),
        neck=schema.Identity(min_level=3, max_level=3),
        freeze_batch_norm=False,
        proposals=schema.RPN(
            depth=64,
            kernel_size=5,
            dilation=2,
            conv=schema.ConvHyperparams(
                activation="relu6",
                regularizer=schema.L2(weight=2e-5),
                initializer=schema.TruncatedNormal(stddev=0.02),
            ),
            anchors=schema.GridAnchors(
                base_height=128,
                base_width=64,
                scales=(0.25, 0.5),
                height_stride=8,
                width_stride=8,
                height_offset=1,
                width_offset=2,
            ),
            clip_anchors=True,
            sample_size=128,
            positive_fraction=0.4,
            localization_weight=2.0,
            objectness_weight=0.9,
            score_threshold=0.01,
            iou_threshold=0.6,
            drop_at_threshold=True,
            max_proposals=90,
        ),
        boxes=schema.RoIHead(
            crop=schema.CropAndResize(size=12, pool_size=3, pool_stride=2, outside="fade"),
            head=schema.ResNetBlockHead(stride=1, conv=conv),
            share_boxes=True,
            dropout=True,
            dropout_keep_probability=0.75,
            predictor=schema.ConvHyperparams(
                activation="none",
                regularizer=schema.L2(weight=3e-5),
                initializer=schema.VarianceScaling(factor=2.0, uniform=True, mode="fan_avg"),
            ),
            sample_size=32,
            positive_fraction=0.3,
            classification=schema.SoftmaxLoss(logit_scale=2.0),
            classification_weight=1.25,
            localization_weight=3.0,
            # Without a match, negatives are not counted.
            hard_example_miner=schema.HardExampleMiner(
                num_hard_examples=16, iou_threshold=0.9, loss_type="classification"
            ),
            postprocessing=schema.Postprocessing(
                score_converter="softmax",
                logit_scale=1.5,
                nms=schema.Nms(
                    score_threshold=0.02, iou_threshold=0.5, max_per_class=20, max_total=30
                ),
            ),
        ),
    )


def test_a_short_file_has_the_defaults_of_the_format():
    text = (
        "model { faster_rcnn { image_resizer { fixed_shape_resizer { } } "
        'feature_extractor { type: "faster_rcnn_resnet101" } '
        "first_stage_anchor_generator { grid_anchor_generator { "
        "scales: [0.25, 0.5, 1, 2] aspect_ratios: [0.5, 1, 2] } } "
        "first_stage_box_predictor_conv_hyperparams { initializer { truncated_normal_initializer "
        "{ stddev: 0.01 } } } initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2 "
        "second_stage_box_predictor { mask_rcnn_box_predictor { } } "
        "second_stage_post_processing { score_converter: SOFTMAX batch_non_max_suppression { "
        "max_total_detections: 300 } } } }"
    )
    model = read_pipeline_config(text, "p").experiment.model
    conv = resnet_conv()
    assert model == schema.FasterRcnn(
        num_classes=0,
        backbone=schema.ResNetV1(
            depth=101, output_stride=16, stride_in_unit=True, last_layer="block_4", conv=conv
        ),
        boxes=schema.RoIHead(head=schema.ResNetBlockHead(conv=conv)),
    )


@pytest.mark.parametrize("kind", EXTRACTORS)
def test_every_type_reads_and_taps_layers_of_its_backbone(kind):
    read, log = extractor(kind, HYPERPARAMS if "fpn" in kind else "")
    taps = read.neck.taps_of(read.backbone)
    assert len(taps) == (4 if "fpn" in kind else 1)
    assert set(taps) <= set(read.backbone.layers)
    assert read.keras == kind.endswith("_keras")
    assert (read.pixels.std == (1.0, 1.0, 1.0)) == ("inception" not in kind)
    assert str(getattr(read.backbone, "depth", "v2")) in kind
    assert log.notes == []


def test_the_generations_differ_in_the_second_half_of_a_resnet():
    first, _ = extractor("faster_rcnn_resnet50")
    second, _ = extractor("faster_rcnn_resnet50_keras")
    assert (first.head.stride, second.head.stride) == (1, 2)
    assert (first.backbone.last_layer, second.backbone.last_layer) == ("block_4", "")
    assert first.neck == second.neck == schema.Identity(min_level=4, max_level=4)
    assert second.backbone.conv == second.head.conv
    keras = schema.VarianceScaling(factor=1.0, exact_cut=True)
    assert second.backbone == schema.ResNetV1(conv=resnet_conv(initializer=keras))


def test_inception_v2_keeps_its_own_hyperparameters_without_a_penalty():
    read, _ = extractor("faster_rcnn_inception_v2")
    base = schema.InceptionV2().conv
    norm = dataclasses.replace(base.batch_norm, statistics="per_replica")
    conv = dataclasses.replace(base, regularizer=None, batch_norm=norm)
    assert read.backbone == schema.InceptionV2(conv=conv)
    assert read.head == schema.InceptionV2BlockHead(conv=conv)
    assert read.neck.taps_of(read.backbone) == ("mixed_4e",)


def test_inception_resnet_v2_has_no_penalty_and_its_generations_pad_crops_differently():
    first, _ = extractor("faster_rcnn_inception_resnet_v2", "first_stage_features_stride: 8")
    second, _ = extractor("faster_rcnn_inception_resnet_v2_keras")
    norm = schema.BatchNorm(decay=0.9997, epsilon=0.001, scale=False, statistics="per_replica")
    conv = schema.ConvHyperparams(initializer=GLOROT, batch_norm=norm)
    assert first.backbone == schema.InceptionResNetV2(output_stride=8, conv=conv)
    assert second.backbone == schema.InceptionResNetV2(output_stride=16, conv=conv)
    assert first.head == schema.InceptionResNetV2BlockHead(padding="valid", conv=conv)
    assert second.head == schema.InceptionResNetV2BlockHead(padding="same", conv=conv)
    for read in (first, second):
        assert read.neck.taps_of(read.backbone) == ("block17_20",)


def test_a_pyramid_has_two_fully_connected_layers_behind_its_crops():
    override = "override_base_feature_extractor_hyperparams: true"
    read, _ = extractor("faster_rcnn_resnet50_fpn_keras", HYPERPARAMS + override)
    assert read.neck == schema.Fpn(min_level=2, max_level=6, top_down="smoothed", conv=FEATURES)
    assert read.head.widths == (1024, 1024)
    assert read.head.conv == schema.ConvHyperparams(
        initializer=GLOROT, batch_norm=FEATURES.batch_norm
    )
    # Activations of the sums too come from the config.
    assert read.backbone == schema.ResNetV1(conv=FEATURES, unit_activation="relu6")
    base, _ = extractor("faster_rcnn_resnet50_fpn_keras", HYPERPARAMS)
    keras = schema.VarianceScaling(factor=1.0, exact_cut=True)
    conv = resnet_conv(initializer=keras, regularizer=schema.L2(weight=2e-4))
    assert base.backbone == schema.ResNetV1(conv=conv)
    # A message that is there has the message's own defaults.
    levels, _ = extractor("faster_rcnn_resnet50_fpn_keras", HYPERPARAMS + "fpn { min_level: 2 }")
    assert (levels.neck.min_level, levels.neck.max_level) == (2, 7)
    with pytest.raises(UserError, match="no conv_hyperparams"):
        extractor("faster_rcnn_resnet50_fpn_keras")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("faster_rcnn_nas", "found by architecture search"),
        ("faster_rcnn_pnas", "found by architecture search"),
        ("faster_rcnn_mobilenet_v1", "in SSD alone"),
        ("faster_rcnn_resnet5", "is not supported"),
        ("", "has no type"),
    ],
)
def test_other_extractors_are_refused_with_what_there_is(kind, reason):
    with pytest.raises(UserError, match=reason) as caught:
        extractor(kind)
    assert "faster_rcnn_resnet50," in caught.value.fix


def test_strides_are_those_that_an_extractor_has():
    stride = "first_stage_features_stride: %d"
    assert extractor("faster_rcnn_resnet50", stride % 8)[0].neck.min_level == 3
    inception_resnet = "faster_rcnn_inception_resnet_v2"
    assert extractor(inception_resnet, stride % 8)[0].neck.min_level == 3
    for kind, number in (
        ("faster_rcnn_resnet50", 32),
        ("faster_rcnn_resnet50_keras", 8),
        (inception_resnet, 32),
        # The second stage of the original joins maps of two sizes there, and fails.
        (f"{inception_resnet}_keras", 8),
    ):
        with refused("p:2:1") as caught:
            extractor(kind, stride % number)
        assert "16" in caught.value.fix
    read, log = extractor("faster_rcnn_inception_v2", stride % 8)
    assert read.neck.min_level == 4
    assert "has a stride of 16 whatever is set" in log.notes[0]


def test_what_only_pyramids_read_has_no_effect_elsewhere():
    read, log = extractor("faster_rcnn_resnet50", HYPERPARAMS + "fpn { } pad_to_multiple: 8")
    assert read == extractor("faster_rcnn_resnet50")[0]
    assert [note.partition(" has no effect")[0].rpartition(".")[2] for note in log.notes] == [
        "conv_hyperparams",
        "fpn",
        "pad_to_multiple",
    ]


def test_padding_is_masked_where_the_original_has_none():
    inside = changed().partition("keep_aspect_ratio_resizer {")[2].partition("}")[0]
    resizer = f"keep_aspect_ratio_resizer {{{inside}}}"
    for other, masked in (
        (resizer.replace("false", "true"), False),
        ("fixed_shape_resizer { height: 96 width: 96 }", False),
        ("identity_resizer { }", True),
        ("conditional_shape_resizer { size_threshold: 96 }", True),
        ("pad_to_multiple_resizer { multiple: 32 }", True),
    ):
        reading = read((resizer, other))
        assert reading.experiment.model.mask_padding == masked, other
        assert ("model.mask_padding" in reading.origins) == masked
    assert "the padding changes no result" in said()


def test_batch_norm_rests_unless_it_is_trainable_and_that_of_predictors_never():
    assert not model_of().freeze_batch_norm
    frozen = model_of(("batch_norm_trainable: true", ""))
    assert frozen.freeze_batch_norm
    assert frozen == dataclasses.replace(model_of(), freeze_batch_norm=True)
    norm = ("activation: RELU_6\n", "activation: RELU_6\n batch_norm { decay: 0.9 }\n")
    model = model_of(norm, ("batch_norm_trainable: true", ""))
    assert not model.freeze_batch_norm
    assert model.proposals.conv.batch_norm.train
    assert not model.backbone.conv.batch_norm.train
    assert not model.boxes.head.conv.batch_norm.train


def test_one_stage_leaves_the_second_without_effect():
    one_stage = ("number_of_stages: 2", "number_of_stages: 1")
    model = model_of(one_stage)
    assert model.boxes is None
    assert model.max_detections == 90
    notes = said(one_stage)
    for name in ("initial_crop_size", "second_stage_post_processing", "hard_example_miner"):
        assert f"FasterRcnn.{name} has no effect here: number_of_stages is 1" in notes
    for stages, reason in ((3, "the third stage predicts masks"), (0, "is not supported")):
        with pytest.raises(UserError, match=reason) as caught:
            read(("number_of_stages: 2", f"number_of_stages: {stages}"))
        assert caught.value.fix == "there is: 1, 2"


def test_the_first_stage_alone_has_the_name_of_2017_too():
    old = ("number_of_stages: 2", "first_stage_only: true")
    assert model_of(old) == model_of(("number_of_stages: 2", "number_of_stages: 1"))
    assert any("write number_of_stages: 1" in warning for warning in read(old).warnings)
    assert model_of(("number_of_stages: 2", "first_stage_only: false")) == model_of()


def test_combined_nms_keeps_what_lies_outside_and_overlaps_of_the_threshold():
    combined = ("use_combined_nms_in_first_stage: false", "use_combined_nms_in_first_stage: true")
    proposals = model_of(combined).proposals
    assert (proposals.keep_outside, proposals.drop_at_threshold) == (True, False)
    static = ("use_static_shapes: true", "use_static_shapes: false")
    assert not model_of(static).proposals.drop_at_threshold


def test_relu6_of_the_proposals_is_not_a_matter_of_the_config():
    text = "the original has relu6 in the region proposal network whatever is configured"
    relu = ("activation: RELU_6", "activation: RELU")
    assert text in said(relu)
    assert text not in said()
    assert model_of(relu).proposals.conv.activation == "relu6"


def test_the_second_generation_ignores_initialiser_and_penalty_of_its_predictions():
    model = model_of(KERAS, KERAS_STRIDE)
    assert model.boxes.predictor == schema.ConvHyperparams(activation="none", initializer=GLOROT)
    assert "leaves its fully connected layers at Keras's defaults" in said(KERAS, KERAS_STRIDE)
    usual = (
        ("factor: 2.0 uniform: true mode: FAN_AVG", "factor: 1 uniform: true mode: FAN_AVG"),
        ("weight: 3e-5", "weight: 0"),
    )
    assert "Keras's defaults" not in said(KERAS, KERAS_STRIDE, *usual)


def test_hyperparameters_of_convolutions_reach_no_fully_connected_layer():
    for op in ("", "op: CONV"):
        model = model_of(("op: FC", op))
        assert model.boxes.predictor == schema.ConvHyperparams(
            activation="none", initializer=GLOROT
        )
        assert "op is not FC" in said(("op: FC", op))


def test_proposals_have_anchors_in_pixels():
    grid = changed().partition("grid_anchor_generator {")[2].partition("}")[0]
    old = f"grid_anchor_generator {{{grid}}}"
    new = "multiscale_anchor_generator { min_level: 2 max_level: 6 normalize_coordinates: false }"
    anchors = model_of((old, new)).proposals.anchors
    assert anchors == schema.MultiscaleAnchors(min_level=2, max_level=6, aspect_ratios=())
    with refused("p:20:35") as caught:
        read((old, new.replace("normalize_coordinates: false", "")))
    assert caught.value.fix == "write normalize_coordinates: false"
    with refused("p:20:7", "ssd_anchor_generator"):
        read((old, "ssd_anchor_generator { }"))


def test_the_loss_of_classes_is_a_softmax_where_nothing_is_chosen():
    old = "second_stage_classification_loss { weighted_softmax { logit_scale: 2.0 } }"
    assert model_of((old, "")).boxes.classification == schema.SoftmaxLoss()
    focal = "second_stage_classification_loss { weighted_sigmoid_focal { alpha: 0.25 } }"
    expected = schema.SigmoidFocalLoss(alpha=0.25)
    assert model_of((old, focal)).boxes.classification == expected


@pytest.mark.parametrize(("old", "new", "message", "fix"), [
    ("share_box", "predict_instance_masks: true share_box", "masks are not supported", "false"),
    ("share_box", "predict_keypoints: true share_box", "keypoints are not", "false"),
    ("share_box", "box_code_size: 7 share_box", "written as 4 numbers", "leave it out"),
    ("initial_crop_size: 12", "", "initial_crop_size is not set", "initial_crop_size: 14"),
    ("maxpool_stride: 2", "maxpool_stride: 0", "at least one row", "maxpool_stride: 2"),
    ("change_coordinate_frame: true", "use_combined_nms: true",
     "combined NMS cannot make boxes relative to the true image", "false"),
    ("weighted_softmax { logit_scale: 2.0 }", "bootstrapped_sigmoid { }",
     "computes weighted_softmax in its place", "weighted_softmax { }"),
    ("use_static_shapes: true", "context_config { }", "Context R-CNN is not", "take it out"),
    ("use_static_shapes: true", "output_final_box_features: true",
     "features of detections are not returned", "false"),
])  # fmt: skip
def test_what_there_is_not_is_refused_with_its_line(old, new, message, fix):
    with pytest.raises(UserError, match=message) as caught:
        read((old, new))
    assert caught.value.where.startswith("p:")
    assert fix in caught.value.fix


@pytest.mark.parametrize("kind", ["rfcn_box_predictor", "convolutional_box_predictor"])
def test_other_box_predictors_are_refused_by_name(kind):
    inside = changed().partition("mask_rcnn_box_predictor {")[2].partition("mask_height: 14")[0]
    with pytest.raises(UserError, match=f"BoxPredictor.{kind}") as caught:
        read((f"mask_rcnn_box_predictor {{{inside}mask_height: 14", f"{kind} {{"))
    assert caught.value.fix == "there is: mask_rcnn_box_predictor"


def test_mining_and_the_coordinate_frame_are_warned_about():
    warnings = read().warnings
    assert any("mines in the first image of a batch" in warning for warning in warnings)
    assert said().count("this miner is not told which proposals are matched") == 2
    relative = ("change_coordinate_frame: true", "change_coordinate_frame: false")
    assert model_of(relative).boxes.postprocessing.nms.change_coordinate_frame
    assert "change_coordinate_frame false has no effect" in said(relative)


def test_a_detection_checkpoint_gives_both_halves_and_on_demand_the_rest():
    fine_tune = read().experiment.train.fine_tune
    assert (fine_tune.scope, fine_tune.load_heads) == ("detection", True)
    load = ("load_all_detection_checkpoint_vars: true", "")
    assert not read(load).experiment.train.fine_tune.load_heads


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("path", sorted(ZOO.glob("faster_rcnn_*.config")), ids=lambda p: p.stem)
def test_every_config_of_the_zoo_resolves(path):
    model = resolve(path).experiment.model
    assert isinstance(model, schema.FasterRcnn)
    assert model.boxes.head.kind.split("_")[0] in path.stem
    # Models of the first generation take images as they come.
    assert model.mask_padding == model.freeze_batch_norm == ("tpu-8" not in path.stem)
