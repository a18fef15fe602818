"""From parameter dictionaries to experiments."""

import math
import re
from dataclasses import replace

import pytest
from flax import nnx

from stillbox.checkpoints.names import reference_names
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import rules, schema
from stillbox.experiment.params_dict import read_params, resolved_text
from stillbox.experiment.resolve import resolve
from stillbox.experiment.run_length import batch_norms
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.training.optimizer import build_schedule
from stillbox.training.trainable import select_trainable
from tests.helpers import refusal as user_error
from tests.small import SHARED, needs_shared

NORM = schema.BatchNorm(
    decay=0.997, epsilon=1e-4, center=True, scale=True, statistics="per_replica"
)
SPINENET = "architecture.backbone=spinenet, architecture.multilevel_features=identity"
YAML = sorted((SHARED / "configs" / "yaml").glob("*.yaml"))
OURS = [path for path in YAML if "retinanet" in path.stem]
OTHERS = [path for path in YAML if "retinanet" not in path.stem]


def read(override=""):
    return read_params(params_override=override).experiment


def refusal(override):
    error = user_error(read, override)
    return str(error)


def test_the_defaults_are_consistent():
    rules.check(read(), {})


def test_the_default_model():
    model = read().model
    assert (model.num_classes, model.background_class, model.class_slots) == (
        90,
        True,
        "label_map_id",
    )
    penalty = schema.L2(weight=1e-4)
    fan_in = schema.VarianceScaling(factor=1.0, mode="fan_in", exact_cut=True)
    glorot = schema.VarianceScaling(factor=1.0, mode="fan_avg", uniform=True)
    assert model.backbone == schema.ResNet(
        depth=50,
        project_first_block=True,
        zero_last_scale=False,
        pool_padding="same",
        conv=schema.ConvHyperparams(
            activation="relu", regularizer=penalty, initializer=fan_in, batch_norm=NORM
        ),
    )
    assert model.neck == schema.RetinaNetFpn(
        min_level=3,
        max_level=7,
        depth=256,
        conv=schema.ConvHyperparams(
            regularizer=penalty, initializer=glorot, batch_norm=NORM, force_bias=True
        ),
    )
    assert model.head == schema.WeightSharedHead(
        depth=256,
        layers_before=4,
        kernel_size=3,
        class_bias_init=-math.log(99),
        predictor_initializer=schema.RandomNormal(stddev=1e-5),
        conv=schema.ConvHyperparams(
            regularizer=penalty,
            initializer=schema.RandomNormal(stddev=0.01),
            batch_norm=NORM,
            force_bias=True,
        ),
    )


def test_the_default_boxes():
    model = read().model
    assert model.anchors == schema.MultiscaleAnchors(
        min_level=3,
        max_level=7,
        anchor_scale=4.0,
        aspect_ratios=(1.0, 2.0, 0.5),
        scales_per_octave=3,
        order="scale_major",
    )
    # Codes without variances; ratios up to log(1000 / 16) = 4.135.
    coder = model.box_coder
    assert {coder.y_scale, coder.x_scale, coder.height_scale, coder.width_scale} == {1.0}
    assert coder.max_log_ratio == pytest.approx(4.13517, abs=1e-5)
    # No band between the thresholds, and a best anchor for every box.
    assert model.matcher == schema.ArgmaxMatcher(
        matched_threshold=0.5, unmatched_threshold=0.5, force_match_for_each_row=True
    )
    # Sums over matches + 1; 50 x Huber at .1 over 4 codes; gamma 1.5, not 2.
    assert model.loss == schema.Loss(
        normalizer="per_replica",
        classification=schema.SigmoidFocalLoss(alpha=0.25, gamma=1.5),
        localization=schema.SmoothL1Loss(delta=0.1),
        localization_weight=50.0,
        normalize_by_matches=True,
        added_matches=1.0,
        normalize_localization_by_code_size=True,
        encode_background_as_zeros=True,
    )
    nms = model.postprocessing.nms
    assert model.postprocessing.score_converter == "sigmoid"
    assert (nms.max_candidates_per_class, nms.max_per_class, nms.max_total) == (5000, 100, 100)
    assert (nms.iou_threshold, nms.score_threshold) == (0.5, 0.05)


def test_the_default_training():
    experiment = read()
    train = experiment.train
    assert (train.batch_size, train.steps, train.precision) == (64, 22500, "bfloat16")
    assert train.augmentations == (schema.RandomHorizontalFlip(),)
    assert train.optimizer.momentum == 0.9
    assert train.fine_tune == schema.FineTune()
    assert train.freeze == ()
    assert train.evaluate_every == 0
    assert read("eval.eval_file_pattern=val-*").train.evaluate_every == 1000
    # 0 after (pixel / 255 - mean) / std.
    assert experiment.model.resizer == schema.ScaleJitterResizer(
        height=640,
        width=640,
        min_scale=1.0,
        max_scale=1.0,
        multiple=128,
        pad_value=experiment.model.pixels.mean,
    )
    assert experiment.model.pixels.mean == pytest.approx([0.485 * 255, 0.456 * 255, 0.406 * 255])
    assert experiment.model.pixels.std == pytest.approx([0.229 * 255, 0.224 * 255, 0.225 * 255])


@pytest.mark.parametrize(("override", "rates"), [
    # ops.json G.step and G.cosine: 0.0067 + s / 500 x (0.08 - 0.0067), then levels; or
    # 0.04 x (1 + cos(pi x (s - 500) / 22000)), which is 0.04 at 500 + 11000.
    ("", {0: 0.0067, 1: 0.0068466, 250: 0.04335, 499: 0.0798534, 500: 0.08, 14999: 0.08}
     | {15000: 0.008, 19999: 0.008, 20000: 0.0008, 22499: 0.0008}),
    ("train.learning_rate.type=cosine",
     {0: 0.0067, 250: 0.04335, 500: 0.08, 5000: 0.0720216, 11500: 0.04, 22500: 0.0}),
    # The values of Model Garden's own test.
    ("train.learning_rate.init_learning_rate=0.2, "
     "train.learning_rate.warmup_learning_rate=0.1, train.learning_rate.warmup_steps=100, "
     "train.learning_rate.learning_rate_levels=[0.02, 0.002], "
     "train.learning_rate.learning_rate_steps=[200, 400]",
     {0: 0.1, 50: 0.15, 100: 0.2, 200: 0.02, 400: 0.002}),
    ("train.learning_rate.warmup_steps=0", {0: 0.08, 15000: 0.008, 20000: 0.0008}),
    ("train.learning_rate.warmup_steps=0, train.learning_rate.learning_rate_levels=[], "
     "train.learning_rate.learning_rate_steps=[]", {0: 0.08, 22000: 0.08}),
])  # fmt: skip
def test_learning_rates(override, rates):
    schedule = build_schedule(read(override).train.optimizer.schedule)
    computed = {step: float(schedule(step)) for step in rates}
    assert computed == pytest.approx(rates, abs=1e-7)


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        ("momentum", schema.Momentum(momentum=0.8)),
        ("rmsprop", schema.RmsProp(momentum=0.8, decay=0.9, epsilon=1e-3)),
        ("adam", schema.Adam(epsilon=1e-8)),
        ("adagrad", schema.Adagrad()),
        ("adadelta", schema.Adadelta()),
    ],
)
def test_optimizers(kind, optimizer):
    optimizer_read = read(
        f"train.optimizer.type={kind}, train.optimizer.momentum=0.8"
    ).train.optimizer
    assert type(optimizer_read) is type(optimizer)
    assert getattr(optimizer_read, "momentum", None) == getattr(optimizer, "momentum", None)
    assert getattr(optimizer_read, "epsilon", None) == getattr(optimizer, "epsilon", None)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        # `detection/modeling/architecture/spinenet.py`: endpoints, filter scale, alpha, repeats.
        ("49S", (128, 0.65, 0.5, 1)),
        ("49", (256, 1.0, 0.5, 1)),
        ("96", (256, 1.0, 0.5, 2)),
        ("143", (256, 1.0, 1.0, 3)),
        ("143l", (256, 1.3, 1.0, 3)),
        ("190", (512, 1.3, 1.0, 4)),
    ],
)
def test_spinenets(model, sizes):
    spine = read(f"{SPINENET}, spinenet.model_id={model}").model.backbone
    sizes_read = (spine.endpoints_depth, spine.filter_scale, spine.resample_alpha, spine.repeats)
    assert sizes_read == sizes
    assert spine.conv.regularizer == schema.L2(weight=1e-4)
    assert spine.conv.activation == "relu"


def test_block_specs_of_2020_are_read():
    specs = '[[3, "bottleneck", [0, 1], false], [4, "residual", [1, 2], true]]'
    reading = read_params(
        params_override=f"{{architecture: {{backbone: spinenet, multilevel_features: identity}}, "
        f"spinenet: {{block_specs: '{specs}', resample_alpha: 0.25}}}}"
    )
    spine = reading.experiment.model.backbone
    assert spine.blocks == (
        schema.SpineBlock(level=3, block="bottleneck", inputs=(0, 1), output=False),
        schema.SpineBlock(level=4, block="residual", inputs=(1, 2), output=True),
    )
    assert spine.resample_alpha == 0.25


@pytest.mark.parametrize("specs", ["[3]", "[[3, 'x', [0, 1], true]]", "[[3, 4, [0], 1]]", "{"])
def test_a_broken_spinenet_is_refused(specs):
    text = f'{{architecture: {{backbone: spinenet, multilevel_features: identity}}, \
spinenet: {{block_specs: "{specs}"}}}}'
    assert "spinenet.block_specs" in refusal(text)


@pytest.mark.parametrize(
    ("model", "sizes"), [("49", (48, 1.0)), ("49S", (40, 0.65)), ("49XS", (24, 0.6))]
)
def test_spinenets_of_inverted_residuals(model, sizes):
    override = SPINENET.replace("spinenet", "spinenet_mbconv", 1)
    spine = read(f"{override}, spinenet_mbconv.model_id={model}").model.backbone
    assert (spine.endpoints_depth, spine.filter_scale) == sizes
    assert spine.se_ratio == 0.2


def test_separable_heads_have_the_initialiser_of_tensorflows_layers():
    head = read("retinanet_head.use_separable_conv=true").model.head
    assert head.depthwise and head.predictor_initializer is None
    assert head.conv.initializer == schema.VarianceScaling(factor=1.0, mode="fan_avg", uniform=True)


def test_nas_fpn_follows_the_common_activation_unless_it_has_its_own():
    swish = "architecture.multilevel_features=nasfpn, batch_norm_activation.activation=swish"
    assert read(swish).model.neck.conv.activation == "swish"
    model = read(f"{swish}, nasfpn.activation=relu").model
    assert (model.neck.conv.activation, model.head.conv.activation) == ("relu", "swish")
    # Between two levels of a plain pyramid stands a ReLU, whatever the model has.
    assert read("batch_norm_activation.activation=swish").model.neck.conv.activation == "relu"


def test_bottlenecks_of_nas_fpn_are_those_of_resnet():
    neck = read("{architecture: {multilevel_features: nasfpn}, nasfpn: {block_fn: bottleneck}}")
    inner = neck.model.neck.block_conv
    assert inner.initializer == neck.model.backbone.conv.initializer
    assert not inner.force_bias
    assert neck.model.neck.conv.force_bias


def test_a_part_without_batch_norm_has_biases():
    model = read("fpn.use_batch_norm=false, retinanet_head.use_batch_norm=false").model
    for conv in (model.neck.conv, model.head.conv):
        assert conv.batch_norm is None and not conv.force_bias


def test_batch_norm_that_is_not_trained():
    experiment = read("batch_norm_activation.batch_norm_trainable=false, fpn.use_batch_norm=false")
    assert not experiment.model.backbone.conv.batch_norm.train
    patterns = experiment.train.freeze
    frozen = ("backbone.stem.norm.scale", "head.box_tower_0.norm_3.bias")
    trained = ("backbone.stem.kernel", "neck.p3.norm.scale", "head.box_.bias")
    for path in frozen:
        assert any(re.search(pattern, path) for pattern in patterns), path
    for path in trained:
        assert not any(re.search(pattern, path) for pattern in patterns), path


def test_crops_and_policies_in_the_originals_order():
    experiment = read(
        "retinanet_parser.aug_policy=v1, retinanet_parser.aug_scale_min=0.5, "
        "retinanet_parser.aug_scale_max=2.0, retinanet_parser.output_size=[512, 896]"
    )
    assert experiment.train.augmentations == (
        schema.AutoAugment(policy="v1"),
        schema.RandomHorizontalFlip(),
    )
    resizer = experiment.model.resizer
    assert (resizer.min_scale, resizer.max_scale) == (0.5, 2.0)
    assert (resizer.height, resizer.width, resizer.multiple) == (512, 896, 128)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        # Executed, both of the first drop a box at the threshold and the third does not.
        ("", (5000, True)),
        ("postprocess.nms_version=v2", (5000, True)),
        ("postprocess.nms_version=batched", (0, False)),
        ("postprocess.use_batched_nms=true", (0, False)),
    ],
)
def test_versions_of_non_maximum_suppression(override, expected):
    experiment = read(override)
    rules.check(experiment, {})
    nms = experiment.model.postprocessing.nms
    assert (nms.max_candidates_per_class, nms.drop_at_threshold) == expected
    assert nms.clip_first


def test_records_and_ground_truth():
    data = read(
        "train.train_file_pattern='a/train-*, b/train-*', eval.eval_file_pattern=a/val-*, "
        "eval.val_json_file=a/val.json, retinanet_parser.max_num_instances=50"
    ).data
    assert data.train.paths == ("a/train-*", "b/train-*")
    assert data.evaluation.paths == ("a/val-*",)
    assert data.evaluation.annotations == "a/val.json"
    assert (data.train.max_boxes, data.evaluation.max_boxes) == (50, 50)
    assert data.train.crowds == "drop"
    assert read("retinanet_parser.skip_crowd_during_training=false").data.train.crowds == "train"
    # The records' own boxes are the truth, whatever file is named.
    streamed = read("eval.use_json_file=false, eval.val_json_file=a/val.json").data
    assert streamed.evaluation.annotations == ""


def test_the_label_map(tmp_path):
    override = f"train.train_file_pattern={tmp_path}/train-*, architecture.num_classes={{}}"
    assert read(override.format(91)).data.train.label_map == "coco"
    assert read(override.format(4)).data.train.label_map == ""
    (tmp_path / "label_map.pbtxt").write_text("")
    reading = read_params(params_override=override.format(91))
    beside = str(tmp_path / "label_map.pbtxt")
    assert reading.experiment.data.train.label_map == beside
    assert reading.experiment.data.evaluation.label_map == beside
    assert any(f"the label map is {beside}: it is beside the records" in n for n in reading.notes)


def test_a_missing_label_map_is_refused_with_a_remedy(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train: {train_file_pattern: a-*}\narchitecture: {num_classes: 4}\n")
    with pytest.raises(UserError, match=r"data\.train\.label_map="):
        rules.check_trainable(resolve(file).experiment, {})


def test_an_interval_is_kept_for_records_that_set_names(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("type: retinanet\neval: {num_steps_per_eval: 57}\n")
    train = resolve(file, changes_of(["data.evaluation.paths=val-*"])).experiment.train
    assert train.evaluate_every == 57


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.checkpoint.path=m.ckpt, train.checkpoint.prefix=resnet50/",
         schema.FineTune(checkpoint="m.ckpt", scope="classification")),
        ("train.checkpoint.path=m.ckpt, train.checkpoint.prefix=resnet50",
         schema.FineTune(checkpoint="m.ckpt", scope="classification")),
        (
            "train.checkpoint.path=m.ckpt, train.checkpoint.skip_variables_regex=retinanet/.*",
            schema.FineTune(
                checkpoint="m.ckpt", scope="detection", load_heads=True, skip=("^(?:retinanet/.*)",)
            ),
        ),
        # `--set train.fine_tune.checkpoint` can still name one.
        ("train.checkpoint.prefix=resnet50/", schema.FineTune(scope="classification")),
    ],
)  # fmt: skip
def test_first_weights(override, expected):
    assert read(override).train.fine_tune == expected


def test_a_prefix_of_another_backbone_would_load_nothing():
    override = "train.checkpoint.path=m, train.checkpoint.prefix=resnet50/, resnet.resnet_depth=101"
    message = refusal(override)
    assert "resnet101/" in message
    assert "train.checkpoint.prefix=resnet101/" in message


def names_of(model):
    """Returns the names of all parameters in the original's checkpoints, by path."""
    detector = nnx.eval_shape(lambda: build_detector(model))
    _, params, _ = split_detector(detector)
    return params, reference_names(model, params)


def test_what_2020_froze_and_what_batch_norm_trains_are_real_parameters():
    regex = r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/"
    experiment = read(
        f"{{resnet: {{resnet_depth: 10}}, train: {{frozen_variable_prefix: '{regex}'}}}}"
    )
    params, names = names_of(experiment.model)
    trained = select_trainable(params, names, experiment.train)
    # A stem and four groups of a shortcut and two convolutions: of 13 the first 11, each with its
    # scale and offset.
    assert len(set(params) - trained) == 3 * 11
    fixed = read("resnet.resnet_depth=10, batch_norm_activation.batch_norm_trainable=false")
    trained = select_trainable(params, names, fixed.train)
    assert set(params) - trained == {path for path in params if ".norm" in path}


def test_what_2020_froze_is_found_by_its_names():
    regex = r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/"
    (pattern,) = read(f"{{train: {{frozen_variable_prefix: '{regex}'}}}}").train.freeze
    for name in ("resnet50/conv2d/kernel", "resnet50/batch_normalization_10/gamma"):
        assert re.search(pattern, name)
    for name in ("resnet50/conv2d_11/kernel", "my/resnet50/conv2d/kernel", "fpn/l3/kernel"):
        assert not re.search(pattern, name)
    # The expression is about ResNets, and a pattern that matches nothing would stop training.
    reading = read_params(
        params_override=f"{{architecture: {{backbone: spinenet, multilevel_features: identity}}, "
        f"train: {{frozen_variable_prefix: '{regex}'}}}}"
    )
    assert reading.experiment.train.freeze == ()
    assert any("freezes nothing of this spinenet" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("regex", "bias", "norm", "depthwise"),
    [
        (r".*(kernel|weight):0$", False, False, True),
        (r".*kernel:0$", False, False, True),
        (r".*/kernel", False, False, None),
        (r".*", True, True, True),
        (r".*(kernel|bias):0$", True, False, True),
        (r"(?!.*(gamma|beta|bias|depthwise)).*", False, False, False),
    ],
)
def test_which_variables_are_penalised(regex, bias, norm, depthwise):
    override = f"{{train: {{regularization_variable_regex: '{regex}'}}}}"
    if depthwise is None:
        # The expression leaves pointwise kernels out.
        assert "kernels are penalised in all parts" in refusal(override)
        return
    conv = read(override).model.head.conv
    penalised = (conv.regularize_bias, conv.regularize_norm, conv.regularize_depthwise)
    assert penalised == (bias, norm, depthwise)


def test_regularizer_and_precision_follow_the_weight_decay_and_the_device():
    assert read("train.l2_weight_decay=0").model.head.conv.regularizer is None
    reading = read_params(params_override="use_tpu=false")
    assert reading.experiment.train.precision == "float32"
    assert any("train.precision=bfloat16" in note for note in reading.notes)
    assert read("architecture.use_bfloat16=false").train.precision == "float32"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("type=mask_rcnn", "Mask R-CNN is a detector of two stages"),
        ("type=retinanets", "did you mean 'retinanet'"),
        ("architecture.parser=shapemask_parser", "ShapeMask"),
        ("architecture.backbone=efficientnet", "EfficientNet is not supported"),
        ("architecture.backbone=resnets", "did you mean 'resnet'"),
        ("architecture.backbone=spinenet", "spinenet makes all levels itself"),
        ("architecture.num_classes=1", "nothing is left to detect"),
        ("train.num_cores_per_replica=2", "input_partition_dims cuts an image into 1"),
        ("train.input_partition_dims=[1, 4, 2, 1]", "an image is cut along its height alone"),
        ("train.input_partition_dims=[4]", "an image is cut along its height alone"),
        ("train.learning_rate.learning_rate_steps=[1]", "2 learning_rate_levels and 1"),
        ("train.frozen_variable_prefix='('", "is no regular expression"),
        ("train.regularization_variable_regex='('", "is no regular expression"),
        ("train.train_dataset_type=sstable", "records are TFRecords"),
        ("eval.type=box_and_mask", "it scores masks"),
        ("postprocess.apply_nms=false", "leave it at true"),
        ("postprocess.nms_version=v3", "there is: v1, v2, batched"),
        ("retinanet_parser.output_size=[640]", "it is a height and a width"),
        ("retinanet_parser.aug_policy=v4", "there is: v0, v1, v2, v3, test"),
        ("retinanet_head.anchors_per_location=6", "make 9 at a location"),
        ("dropblock.dropblock_keep_prob=0.9", "it needs dropblock_size"),
        ("spinenet.model_id=50", "has no effect"),
        ("batch_norm_activation.activation=gelu", "there is: none, relu"),
        ("architecture.space_to_depth_block_size=4", "blocks of 2 pixels"),
    ],
)
def test_what_is_refused(override, said):
    if said == "has no effect":
        reading = read_params(params_override=override)
        assert any(said in note for note in reading.notes)
        return
    message = refusal(override)
    assert said in message
    assert "fix: " in message


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("postprocess.nms_version=batched, postprocess.pre_nms_num_boxes=9", "compares all boxes"),
        ("postprocess.use_batched_nms=true, postprocess.pre_nms_num_boxes=9", "compares all boxes"),
        (
            "retinanet_parser.use_autoaugment=false, retinanet_parser.autoaugment_policy_name=v1",
            "use_autoaugment is false or not given",
        ),
    ],
)
def test_a_key_that_another_switches_off_is_noted(override, said):
    assert any(said in note for note in read_params(params_override=override).notes)


def test_spatial_partitions_are_along_the_height():
    assert read("train.num_cores_per_replica=1, train.input_partition_dims=[1, 1, 1, 1]") == read()
    override = "train.num_cores_per_replica=4, train.input_partition_dims=[1, 4, 1, 1]"
    assert read(override).devices.spatial_partitions == 4
    assert replace(read(override), devices=read().devices) == read()


def test_batch_norm_and_loss_count_by_replicas_unless_they_are_synchronised():
    plain, synchronised = read().model, read("batch_norm_activation.use_sync_bn=true").model
    assert {norm.statistics for _, norm in batch_norms(plain)} == {"per_replica"}
    assert {norm.statistics for _, norm in batch_norms(synchronised)} == {"global"}
    assert plain.loss == synchronised.loss
    assert plain.loss.normalizer == "per_replica"
    reading = read_params(params_override="use_tpu=false, batch_norm_activation.use_sync_bn=true")
    norms = {norm.statistics for _, norm in batch_norms(reading.experiment.model)}
    assert norms == {"per_replica"}
    assert any("ignores use_sync_bn" in note for note in reading.notes)
    averaged = read("retinanet_loss.normalizer_momentum=0.9").model.loss
    assert averaged.normalizer == "global"


@needs_shared
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_retinanet_resolves(path, tmp_path):
    resolved = resolve(path)
    reading = read_params(config_file=path)
    assert resolved.experiment == reading.experiment
    (tmp_path / path.name).write_text(resolved_text(reading.params))
    again = read_params(config_file=tmp_path / path.name)
    assert again.experiment == reading.experiment


@needs_shared
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_every_other_model_is_refused_by_name(path):
    said = "Mask R-CNN" if "mrcnn" in path.stem else "a classifier"
    with pytest.raises(UserError, match=said) as error:
        resolve(path)
    assert str(error.value).startswith(f"{path}:")


@needs_shared
def test_a_spinenets_file_is_honoured_in_full():
    experiment = resolve(SHARED / "configs" / "yaml" / "spinenet190_retinanet.yaml").experiment
    spine, head, train = experiment.model.backbone, experiment.model.head, experiment.train
    assert (spine.kind, spine.repeats, spine.drop_connect_rate) == ("spinenet", 4, 0.2)
    assert (head.depth, head.layers_before, head.conv.activation) == (512, 7, "swish")
    assert spine.conv.regularizer.weight == 4e-5
    assert experiment.model.anchors.anchor_scale == 4.0
    resizer = experiment.model.resizer
    assert (resizer.height, resizer.min_scale, resizer.max_scale) == (1280, 0.1, 1.9)
    assert (train.batch_size, train.steps, train.gradient_clip_norm) == (256, 185200, 10.0)
    schedule = train.optimizer.schedule.schedule
    assert [(step.step, step.learning_rate) for step in schedule] == [
        (2000, 0.3),
        (171310, 0.03),
        (180570, 0.003),
    ]


def test_swish_does_not_reach_the_relu_between_the_coarsest_levels():
    model = read("{batch_norm_activation: {activation: swish}}").model
    assert model.backbone.conv.activation == "swish"
    assert model.head.conv.activation == "swish"
    assert model.neck.conv.activation == "relu"


def test_a_label_map_beside_records_at_a_url_is_not_taken_and_the_note_says_so():
    notes = read_params(params_override="train.train_file_pattern=gs://b/train-*").notes
    assert any("label map is coco" in n and "beside records at a URL is not" in n for n in notes)
    notes = read_params(params_override="train.train_file_pattern=b/train-*").notes
    assert not any("at a URL" in note for note in notes)
