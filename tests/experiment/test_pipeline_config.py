import dataclasses

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.reader import NoModelError
from stillbox.experiment.resolve import resolve
from tests.experiment.sample import SAMPLE
from tests.helpers import refusal as user_error
from tests.helpers import refused
from tests.small import SHARED, needs_shared

PIPELINES = SHARED / "configs" / "pipeline"
RACCOON = SHARED / "data" / "raccoon" / "pipeline.config"
# What refuses each real config that is refused; all others resolve.
REFUSED = {
    "context_rcnn_camera_trap": "FasterRcnn.context_config: Context R-CNN is not supported",
    "lstm_ssd_interleaved_mobilenet_v2_imagenet": "the extension [lstm_object_detection",
}


def read(text):
    return read_pipeline_config(text, "p.config")


def changed(*replacements):
    text = SAMPLE
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def refusal(*replacements):
    caught = user_error(read, changed(*replacements))
    return caught


def line_of(fragment):
    return next(n for n, line in enumerate(SAMPLE.splitlines(), start=1) if fragment in line)


def test_the_sample_reads_field_by_field():
    features = schema.ConvHyperparams(
        activation="relu6",
        regularizer=schema.L2(weight=2e-5),
        initializer=schema.TruncatedNormal(mean=0.5, stddev=0.03),
        batch_norm=schema.BatchNorm(
            decay=0.99, epsilon=0.002, center=True, scale=True, statistics="per_replica"
        ),
    )
    assert read(SAMPLE).experiment == schema.Experiment(
        data=schema.Data(
            train=schema.Records(
                paths=("train-a.record", "train-b.record"),
                label_map="labels.pbtxt",
                use_display_name=True,
                max_boxes=50,
            ),
            evaluation=schema.Records(
                paths=("val.record",), label_map="labels.pbtxt", shuffle=False, sample_1_of_n=2
            ),
        ),
        model=schema.OneStage(
            num_classes=3,
            resizer=schema.FixedShapeResizer(height=160, width=192),
            backbone=schema.MobileNetV1(
                depth_multiplier=0.5,
                min_depth=8,
                conv=dataclasses.replace(features, regularize_depthwise=True),
            ),
            neck=schema.SsdExtraLayers(depth_multiplier=0.5, min_depth=8, conv=features),
            head=schema.ConvolutionalHead(
                dropout=True,
                dropout_keep_probability=0.7,
                kernel_size=3,
                class_bias_init=-4.6,
                conv=schema.ConvHyperparams(
                    activation="relu",
                    regularizer=schema.L1(weight=3e-5),
                    initializer=schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
                    batch_norm=None,
                ),
            ),
            anchors=schema.SsdAnchors(
                min_scale=0.15,
                max_scale=0.9,
                aspect_ratios=(1.0, 2.0, 0.5),
                interpolated_scale_aspect_ratio=1.5,
                reduce_boxes_in_lowest_layer=False,
            ),
            box_coder=schema.FasterRcnnBoxCoder(
                y_scale=9.0, x_scale=8.0, height_scale=7.0, width_scale=6.0
            ),
            matcher=schema.ArgmaxMatcher(
                matched_threshold=0.6, unmatched_threshold=0.4, force_match_for_each_row=True
            ),
            loss=schema.Loss(
                normalizer="per_replica",
                classification=schema.SigmoidFocalLoss(gamma=1.5, alpha=None),
                localization=schema.SmoothL1Loss(delta=0.5),
                classification_weight=2.0,
                localization_weight=3.0,
                normalize_localization_by_code_size=True,
                encode_background_as_zeros=True,
                negative_class_weight=0.75,
            ),
            postprocessing=schema.Postprocessing(
                score_converter="sigmoid",
                nms=schema.Nms(
                    score_threshold=0.01, iou_threshold=0.5, max_per_class=20, max_total=30
                ),
            ),
        ),
        train=schema.Training(
            batch_size=16,
            steps=400,
            augmentations=(
                schema.RandomHorizontalFlip(probability=0.25),
                schema.RandomCropImage(min_area=0.2, random_coef=0.1),
                schema.SsdRandomCrop(),
            ),
            optimizer=schema.RmsProp(
                schedule=schema.ExponentialSchedule(
                    learning_rate=0.004, decay_steps=100, decay_factor=0.95, staircase=False
                ),
                momentum=0.8,
                decay=0.7,
                epsilon=0.5,
            ),
            ema_decay=0.99,
            gradient_clip_norm=10.0,
            freeze=("backbone.*",),
            precision="bfloat16",
            fine_tune=schema.FineTune(
                checkpoint="backbone.npz", scope="detection", load_heads=True
            ),
        ),
        evaluation=schema.Evaluation(
            batch_size=4,
            use_ema=True,
            num_visualizations=5,
            min_score=0.3,
            max_boxes_drawn=7,
            per_category=False,
        ),
    )


def test_every_value_that_is_set_has_line_and_column():
    origins = read(SAMPLE).origins
    line = line_of("matched_threshold: 0.6")
    assert origins["model.matcher.matched_threshold"] == f"p.config:{line}:9"
    line = line_of("data_augmentation_options { random_crop_image")
    assert origins["train.augmentations.1.min_area"] == f"p.config:{line}:51"
    assert "model.matcher.ignore_thresholds" not in origins
    assert origins["model.backbone.conv.batch_norm.decay"].startswith("p.config:14:")
    assert origins["model.neck.conv.batch_norm.decay"].startswith("p.config:14:")


def test_without_the_override_the_base_network_keeps_its_own_hyperparameters():
    text = changed(("override_base_feature_extractor_hyperparams: true", ""))
    model = read(text).experiment.model
    # mobilenet_v1.py of slim: L2 4e-5 on depthwise kernels too, decay .9997, eps .001, sigma .09.
    assert model.backbone.conv == schema.ConvHyperparams(
        activation="relu6",
        regularizer=schema.L2(weight=4e-5),
        initializer=schema.TruncatedNormal(stddev=0.09),
        batch_norm=schema.BatchNorm(
            decay=0.9997, epsilon=0.001, scale=True, statistics="per_replica"
        ),
        regularize_depthwise=True,
    )
    assert model.neck.conv == read(SAMPLE).experiment.model.neck.conv


def test_surprising_defaults_hold_and_are_noted():
    text = changed(("use_dropout: true", ""), ("use_moving_averages: true", ""))
    reading = read(text)
    assert reading.experiment.model.head.dropout
    assert reading.experiment.train.ema_decay == 0.99
    assert not reading.experiment.evaluation.use_ema
    notes = "\n".join(reading.notes)
    assert "model.head.dropout=false" in notes
    assert "train.ema_decay=null" in notes
    assert "evaluation.use_ema=true" in notes


def test_zero_is_not_unset():
    text = changed(("gamma: 1.5", "alpha: 0"))
    assert read(text).experiment.model.loss.classification.alpha == 0.0
    assert read(SAMPLE).experiment.model.loss.classification.alpha is None
    text = changed(
        ("weighted_sigmoid_focal { gamma: 1.5 }", "weighted_sigmoid {}"),
        ("classification_weight: 2.0", "hard_example_miner { loss_type: CLASSIFICATION }"),
    )
    assert read(text).experiment.model.loss.hard_example_miner == schema.HardExampleMiner(
        num_hard_examples=64, iou_threshold=0.7, loss_type="classification"
    )


def test_switching_the_moving_average_off_leaves_its_decay_without_effect():
    text = changed(
        ("moving_average_decay: 0.99", "moving_average_decay: 0.99 use_moving_average: f")
    )
    reading = read(text)
    assert reading.experiment.train.ema_decay is None
    assert any("moving_average_decay has no effect" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("fields", "scope"),
    [
        ("", "classification"),
        ("from_detection_checkpoint: true", "detection"),
        ("from_detection_checkpoint: false", "classification"),
        ('fine_tune_checkpoint_type: "detection"', "detection"),
        ('fine_tune_checkpoint_type: "classification"', "classification"),
        (
            'from_detection_checkpoint: true fine_tune_checkpoint_type: "classification"',
            "classification",
        ),
    ],
)
def test_the_fine_tune_checkpoint_has_a_scope(fields, scope):
    text = changed(('fine_tune_checkpoint_type: "detection"', fields))
    assert read(text).experiment.train.fine_tune.scope == scope


def test_the_limit_of_boxes_is_that_of_the_reader():
    # inputs.py of the original takes max_number_of_boxes of each reader, and its default is 100.
    reading = read(changed(("sync_replicas: true", "max_number_of_boxes: 7")))
    assert reading.experiment.data.train.max_boxes == 50
    assert reading.experiment.data.evaluation.max_boxes == 100
    warnings = "\n".join(reading.warnings)
    assert "TrainConfig.max_number_of_boxes is deprecated and has no effect" in warnings
    assert "of the input readers is the limit" in warnings


# Fields that the protos had once: value of their time that is so anyway, another value, and words
# of its refusal; after the line before which they stand.
OLD_FIELDS = {
    "batch_norm_trainable": ("min_depth: 8", "true", "false", "Ssd.freeze_batchnorm: true"),
    "weight_regression_loss_by_score": ("num_classes: 3", "false", "true", "field of 2018; scores"),
    "use_expected_classification_loss_under_sampling": (
        "num_classes: 3",
        "false",
        "true",
        "expected-sampling weights of the anchors",
    ),
}


@pytest.mark.parametrize("name", OLD_FIELDS)
def test_an_old_field_is_read_where_it_says_what_is_so(name):
    line, same, other, reason = OLD_FIELDS[name]
    before = read(SAMPLE)
    reading = read(changed((line, f"{line} {name}: {same}")))
    assert (reading.experiment, reading.warnings) == (before.experiment, before.warnings)
    caught = refusal((line, f"{line} {name}: {other}"))
    assert f"{name} = {other}: a field" in caught.what
    assert reason in caught.what
    assert caught.fix == f"leave it at its default, {same}"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("shuffle: false", "prefetch_buffer_size: 5"),
        ("num_classes: 3", "minimum_negative_sampling: 7"),
        ("num_classes: 3", "min_num_negative_samples: 7"),
        ("num_classes: 3", "desired_negative_sampling_ratio: 4"),
    ],
)
def test_an_old_field_without_effect_is_named(line, field):
    reading = read(changed((line, f"{line} {field}")))
    assert reading.experiment == read(SAMPLE).experiment
    name = field.partition(":")[0]
    assert any(f".{name} is deprecated and has no effect" in said for said in reading.warnings)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "ssd_random_crop {}",
            "ssd_random_crop_pad_fixed_aspect_ratio { operations { max_padded_size_ratio: [2, 2] "
            "max_area: 1 } }",
            "max_padded_size_ratio = 2.0: a field from before March 2018; write the pair into ssd_",
        ),
        (
            "score_converter: SIGMOID",
            "score_converter: SIGMOID calibration_config { label_sigmoid_calibrations { "
            'label_map_path: "x" } }',
            "write class_id_sigmoid_calibrations with their numbers",
        ),
        ("kernel_size: 3", "kernel_size: 3 mask_head { mask_height: 9 }", "masks are not supp"),
    ],
)
def test_an_old_message_is_refused_with_the_truth(old, new, reason):
    assert reason in refusal((old, new)).what


@pytest.mark.parametrize(("text", "schedule"), [
    ("constant_learning_rate {}", schema.ConstantSchedule(learning_rate=0.002)),
    (
        "cosine_decay_learning_rate { learning_rate_base: .9 hold_base_rate_steps: 5 }",
        schema.CosineSchedule(
            learning_rate=0.9, total_steps=4_000_000, warmup_steps=10_000, hold_steps=5
        ),
    ),
    ("manual_step_learning_rate { initial_learning_rate: .1 warmup: true "
     "schedule { step: 9 learning_rate: .01 } schedule { step: 20 } }",
     schema.ManualStepSchedule(learning_rate=0.1, warmup=True,
     schedule=(schema.ScheduleStep(step=9, learning_rate=0.01),
     schema.ScheduleStep(step=20, learning_rate=0.002)))),
])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("momentum_optimizer", schema.Momentum), ("adam_optimizer", schema.Adam)],
)
def test_optimizers_and_schedules_combine(text, schedule, name, optimizer):
    start = SAMPLE.index("    rms_prop_optimizer {")
    end = SAMPLE.index("    moving_average_decay")
    config = f"{SAMPLE[:start]}{name} {{ learning_rate {{ {text} }} }}\n{SAMPLE[end:]}"
    assert read(config).experiment.train.optimizer == optimizer(schedule=schedule)


def test_keep_aspect_ratio_is_always_padded_with_a_warning():
    old = "fixed_shape_resizer { height: 160 width: 192 }"
    new = "keep_aspect_ratio_resizer { min_dimension: 200 max_dimension: 300 resize_method: AREA }"
    reading = read(changed((old, new)))
    assert reading.experiment.model.resizer == schema.KeepAspectRatioResizer(
        min_dimension=200, max_dimension=300, method="area", pad_value=(127.5, 127.5, 127.5)
    )
    assert any("stillbox pads them" in warning for warning in reading.warnings)
    padded = new.replace("}", "pad_to_max_dimension: true per_channel_pad_value: [1, 2, 3] }")
    reading = read(changed((old, padded)))
    # The colour is that behind the normalisation of pixels.
    assert reading.experiment.model.resizer.pad_value == (255.0, 382.5, 510.0)
    assert reading.warnings == ()


def test_fewer_feature_maps_cut_the_extra_layers_first():
    reading = read(changed(("min_depth: 8", "min_depth: 8 num_layers: 4")))
    assert reading.experiment.model.neck.extra_depths == (512, 256)
    reading = read(changed(("min_depth: 8", "min_depth: 8 num_layers: 1")))
    assert reading.experiment.model.neck.taps == ("conv_11_pointwise",)
    assert reading.experiment.model.neck.extra_depths == ()


def test_operations_of_the_ssd_crop_are_read():
    text = changed(("ssd_random_crop {}", "ssd_random_crop { operations { max_area: 1.0 } }"))
    assert read(text).experiment.train.augmentations[2].operations == (
        # SSDRandomCropOperation has no defaults but zero, except for clip_boxes.
        schema.RandomCropImage(
            min_object_covered=0.0,
            min_aspect_ratio=0.0,
            max_aspect_ratio=0.0,
            min_area=0.0,
            max_area=1.0,
            overlap_thresh=0.0,
        ),
    )


def test_an_evaluation_reader_never_shuffles():
    reading = read(changed(("shuffle: false", "shuffle: true")))
    assert not reading.experiment.data.evaluation.shuffle
    assert any("shuffle has no effect on evaluation" in note for note in reading.notes)
    reading = read(changed(("  shuffle: false\n", "")))
    assert not reading.experiment.data.evaluation.shuffle


def test_a_config_of_a_model_alone_has_defaults_elsewhere():
    reading = read(SAMPLE[: SAMPLE.index("train_config")])
    assert reading.experiment.train == schema.Training()
    assert reading.experiment.data == schema.Data()


@pytest.mark.parametrize(
    ("old", "new", "message", "fix"),
    [
        ('"ssd_mobilenet_v1"', '"ssd_pnasnet"', "'ssd_pnasnet' is not supp", "ssd_inc"),
        ('"ssd_mobilenet_v1"', '"ssd_mobilnet_v2"', "'ssd_mobilnet_v2'", "did you mean"),
        ('type: "ssd_mobilenet_v1"', "", "feature extractor has no type", "there is: ssd_mobile"),
        ("iou_similarity {}", "", "chooses nothing", "add iou_similarity"),
        ("min_depth: 8", "num_layers: 7", "num_layers = 7 is out of range", "1 to 6"),
        ("min_depth: 8", "bifpn { min_level: 3 }", "has no BiFPN", "take it out"),
        ("min_depth: 8", "fpn { min_level: 3 }", "no feature pyramid", "take it out"),
        ("activation: RELU\n", "group_norm {}\n", "it is not read from a pipeline", "take it"),
        ("activation: RELU\n", "op: FC\n", "Hyperparams.op = FC", "default, CONV"),
        ("use_bfloat16: true", "use_multiclass_scores: t", "use_multiclass_scores = true", "fal"),
        ("use_display_name: true", "num_keypoints: 2", "InputReader.num_keypoints = 2", "0"),
        ("ssd_random_crop {}", 'autoaugment_image { policy_name: "v4" }', "no policy 'v4'", "v3"),
        ("ssd_random_crop {}", "scale_boxes_to_pixel_coordinates {}", "are normalised", "ssd_rand"),
        ("ssd_random_crop {}", "convert_class_logits_to_softmax {}", "multiclass scores", "ssd_ra"),
        ("ssd_random_crop {}", "subtract_channel_mean {}", "has no means", "[R, G, B]"),
        ("height: 160", "convert_to_grayscale: true", "all detectors here take RGB", "false"),
        ("ssd_random_crop {}", "", "PreprocessingStep chooses nothing", "add random_horizontal"),
        ("localization_weight: 3.0", "random_example_sampler {}", "random_example_sampler", "tak"),
    ],
)
def test_what_there_is_not_is_refused_by_name_and_line(old, new, message, fix):
    error = refusal((old, new))
    assert error.where.startswith("p.config:")
    assert message in error.what
    assert fix in error.fix


def test_everything_that_is_refused_is_named_at_once():
    error = refusal(
        ("min_depth: 8", "replace_preprocessor_with_placeholder: true fpn { min_level: 3 }")
    )
    assert "SsdFeatureExtractor.replace_preprocessor_with_placeholder = true" in error.what
    assert "SsdFeatureExtractor.fpn" in error.what


def test_a_refused_field_at_its_default_is_no_matter():
    placeholder = "replace_preprocessor_with_placeholder: false"
    text = changed(("min_depth: 8", f"min_depth: 8 {placeholder}"))
    assert read(text).experiment == read(SAMPLE).experiment


def test_a_graph_rewriter_quantises():
    rewriter = "graph_rewriter { quantization { delay: 48000 symmetric: true } }"
    experiment = read(SAMPLE + rewriter).experiment
    assert experiment.train.quantization == schema.Quantization(delay=48000, symmetric=True)
    # An empty one has the delay of `graph_rewriter.proto`.
    assert read(SAMPLE + "graph_rewriter { }").experiment.train.quantization.delay == 500_000
    assert read(SAMPLE).experiment.train.quantization is None


def test_other_architectures_are_refused_with_what_there_is():
    caught = user_error(read, "model {\n  center_net { object_center_params { } }\n}")
    assert str(caught) == (
        "p.config:2:3: DetectionModel.center_net: stillbox has detectors with anchors\n"
        "  fix: there is: ssd, faster_rcnn"
    )


def test_no_model_and_two_evaluation_readers_are_refused():
    with refused("p.config:1:1", kind=NoModelError):
        read("train_config { }")
    with pytest.raises(UserError, match="second eval_input_reader"):
        read(SAMPLE + 'eval_input_reader { tf_record_input_reader { input_path: "b" } }')


@needs_shared
@pytest.mark.proof
def test_the_tpu_sample_reads_field_by_field():
    def hyperparams(initializer, **more):
        return schema.ConvHyperparams(
            activation="relu6",
            regularizer=schema.L2(weight=4e-5),
            initializer=initializer,
            batch_norm=schema.BatchNorm(
                decay=0.97, epsilon=0.001, scale=True, statistics="per_replica"
            ),
            **more,
        )

    features = schema.TruncatedNormal(stddev=0.03)
    records = {"label_map": "PATH_TO_BE_CONFIGURED/mscoco_label_map.pbtxt"}
    expected = schema.Experiment(
        name="ssd_mobilenet_v1_300x300_coco14_sync",
        data=schema.Data(
            train=schema.Records(
                paths=("PATH_TO_BE_CONFIGURED/mscoco_train.record-00000-of-00100",), **records
            ),
            evaluation=schema.Records(
                paths=("PATH_TO_BE_CONFIGURED/mscoco_val.record-00000-of-00010",),
                shuffle=False,
                **records,
            ),
        ),
        model=schema.OneStage(
            num_classes=90,
            resizer=schema.FixedShapeResizer(height=300, width=300),
            backbone=schema.MobileNetV1(conv=hyperparams(features, regularize_depthwise=True)),
            neck=schema.SsdExtraLayers(conv=hyperparams(features)),
            head=schema.ConvolutionalHead(
                dropout=False,
                class_bias_init=-4.6,
                conv=hyperparams(schema.RandomNormal(stddev=0.01)),
            ),
            anchors=schema.SsdAnchors(aspect_ratios=(1.0, 2.0, 0.5, 3.0, 0.3333)),
            matcher=schema.ArgmaxMatcher(force_match_for_each_row=True),
            loss=schema.Loss(
                normalizer="per_replica",
                classification=schema.SigmoidFocalLoss(gamma=2.0, alpha=0.75),
                normalize_localization_by_code_size=True,
                encode_background_as_zeros=True,
            ),
            postprocessing=schema.Postprocessing(
                score_converter="sigmoid", nms=schema.Nms(score_threshold=1e-8)
            ),
        ),
        train=schema.Training(
            batch_size=1024,
            steps=20000,
            augmentations=(schema.RandomHorizontalFlip(), schema.SsdRandomCrop()),
            optimizer=schema.Momentum(
                schedule=schema.CosineSchedule(
                    learning_rate=0.9,
                    total_steps=20000,
                    warmup_learning_rate=0.3,
                    warmup_steps=1000,
                )
            ),
            fine_tune=schema.FineTune(
                checkpoint="PATH_TO_BE_CONFIGURED/model.ckpt", scope="classification"
            ),
        ),
        evaluation=schema.Evaluation(use_ema=False, max_examples=8000),
    )
    resolved = resolve(PIPELINES / "ssd_mobilenet_v1_300x300_coco14_sync.config")
    assert resolved.experiment == expected
    warned = "\n".join(resolved.warnings)
    assert "mscoco_train.record-?????-of-00100" in warned
    assert "num_examples 8000: of more images only the first" in warned


@needs_shared
@pytest.mark.proof
def test_the_raccoon_config_reads_field_by_field_where_it_differs():
    experiment = resolve(RACCOON).experiment
    assert experiment.model.num_classes == 1
    assert experiment.model.loss == schema.Loss(
        normalizer="per_replica",
        classification=schema.SigmoidLoss(),
        hard_example_miner=schema.HardExampleMiner(
            num_hard_examples=3000,
            iou_threshold=0.99,
            loss_type="classification",
            max_negatives_per_positive=3,
        ),
    )
    assert experiment.model.backbone.conv.initializer == schema.TruncatedNormal(stddev=0.09)
    assert experiment.train.optimizer == schema.RmsProp(
        schedule=schema.ExponentialSchedule(
            learning_rate=0.004, decay_steps=800720, decay_factor=0.95
        ),
        momentum=0.9,
        decay=0.9,
        epsilon=1.0,
    )
    assert experiment.train.steps == 0
    assert experiment.train.ema_decay == 0.9999
    assert experiment.train.fine_tune.scope == "detection"


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.config")), ids=lambda path: path.stem)
def test_every_real_config_resolves_or_is_refused_with_its_place(path):
    if path.stem not in REFUSED:
        resolve(path)
        return
    caught = user_error(resolve, path)
    assert REFUSED[path.stem] in caught.what
    assert caught.where.startswith(f"{path}:")
    assert caught.fix


def test_what_the_original_trains_otherwise_is_noted():
    bias = ("sync_replicas: true", "bias_grad_multiplier: 2")
    keras = ('type: "ssd_mobilenet_v1"', 'type: "ssd_mobilenet_v1_keras"')
    sentences = (
        "decay is the share of the mean square",
        "does not read the field",
        "train.py reads",
    )
    for replacements, told in (
        ([], []),
        ([keras], [0, 1]),
        ([bias], [2]),
        ([keras, bias], [0, 1, 2]),
    ):
        notes = "\n".join(read(changed(*replacements)).notes)
        assert [index for index, text in enumerate(sentences) if text in notes] == told


def test_a_center_net_is_refused_before_what_belongs_to_it():
    text = "model { center_net {} }\ntrain_config { fine_tune_checkpoint_type: 'fine_tune' }"
    with refused("p.config:1:9", "center_net"):
        read(text)


def test_the_old_name_of_open_images_metrics_is_read_with_a_warning():
    old = changed(('"coco_detection_metrics"', '"open_images_V2_detection_metrics"'))
    reading = read(old)
    assert reading.experiment.evaluation.metrics == ("open_images",)
    assert any("write oid_V2_detection_metrics" in warning for warning in reading.warnings)
